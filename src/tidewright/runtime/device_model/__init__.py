"""device_model: a discrete-event model of one accelerator, to compare ways of sharing it where there is none.

Its figures are those of a model, never measurements. Deterministic, in whole nanoseconds of virtual time. It knows neither
workloads nor statistics; ``runtime.disb`` drives it.
"""
