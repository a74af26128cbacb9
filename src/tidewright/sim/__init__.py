"""sim: a world made of arithmetic. Traces, clusters, faults, the loop that jumps through time, and what came of it.

It drives the same engine as a live controller. It refuses to know which policy decides (planners are handed in) and
never waits or asks the time.
"""

MAY_IMPORT = ("base", "model", "plan", "estimate", "placement", "engine", "drive", "report")
