"""devices: the hardware abstraction layer. What accelerators a node has, how they fare, how a rank is shown its own.

Refuses to know which job uses a device and why. Vendor libraries are imported inside ``open_backend()``.
"""

MAY_IMPORT = ("base", "model")
