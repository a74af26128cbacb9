"""checkpoint: how running ranks are made to release their devices, and are restored. Drivers by level.

Refuses to know why a job is suspended, which jobs wait for its devices, and what is reported to a controller.
"""

MAY_IMPORT = ("base", "model")
