"""launch: what runs around and inside a rank: the shim that starts it and outlives everyone, and its environment.

Standard library only, because it runs where the user's programs run. Refuses to know jobs, devices and policies.
"""

MAY_IMPORT = ("base",)
