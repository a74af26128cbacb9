"""Which GPUs a pod gets: the pool of a cluster, GPU selection, preemption, and the slots of one node. Pure.

No API calls, files, clocks or threads: state and time are arguments. The extender and the device plugin call it.
"""
