"""live: the controller in real time. The run loop, the durable store, the agents' reports and the HTTP API around one book.

Refuses to know which policy is in force, what a device is and how a rank is started: those come in as arguments.
"""

MAY_IMPORT = ("base", "model", "plan", "engine", "drive", "wire", "fabric")
