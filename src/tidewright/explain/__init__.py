"""explain: why a job waits, the least that would start it, and when it starts: asked of a fork of the live engine.

Nothing here decides by rules of its own: a change is offered only after the planner that runs has started the job with it, in a
fork. It refuses to know who asks, and asks no clock: how long a search may take is for its caller to say.
"""

MAY_IMPORT = ("base", "model", "plan", "estimate", "placement", "policy", "engine", "drive", "sim")
