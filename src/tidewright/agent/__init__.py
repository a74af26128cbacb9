"""agent: a node's own process. Starts ranks, watches them, stops, freezes and thaws them, and reports their state.

Refuses to know why: which job deserves what is the controller's, and ranks live on without either.
"""

MAY_IMPORT = ("base", "model", "wire", "devices", "checkpoint", "runtime", "launch")
