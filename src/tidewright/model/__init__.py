"""model: what exists. Jobs, nodes, devices, allocations, the pool's occupancy and the frozen ``View`` of it all.

Refuses to know who decides, what anything costs, or how a device is driven.
"""

MAY_IMPORT = ("base",)
