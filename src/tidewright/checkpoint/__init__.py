"""checkpoint: how running ranks are made to let go of their devices, and brought back. Drivers by level.

Refuses to know why a job is suspended, who waits for its devices, and how a controller is told.
"""

MAY_IMPORT = ("base", "model")
