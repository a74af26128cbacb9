"""app: put together. The only place where concrete classes of different rooms meet, and where files become settings.

Refuses to decide, to schedule and to print. Importing the room itself loads nothing: the command line must start fast.
"""

MAY_IMPORT = (
    "base", "model", "plan", "estimate", "devices", "checkpoint", "placement", "policy", "runtime", "launch", "engine", "explain",
    "drive", "wire", "fabric", "sim", "live", "agent", "serve", "notify", "kube", "report",
)  # fmt: skip
