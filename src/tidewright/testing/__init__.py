"""testing: builders, strategies, fakes and conformance kits, for the project's own tests and for third parties' plugins.

Nothing that runs a job imports it.
"""

MAY_IMPORT = (
    "base", "model", "plan", "estimate", "devices", "checkpoint", "placement", "policy", "launch", "engine", "explain", "drive",
    "wire", "fabric", "sim", "live", "agent", "kube", "runtime",
)  # fmt: skip
