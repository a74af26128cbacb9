"""runtime: one accelerator shared by kernels. One real-time queue and many best-effort queues; best-effort work stops when
real-time work arrives and resumes exactly where it was.

Refuses to know jobs, nodes and the pool: who may be real-time here was decided above. torch, triton and CUDA are imported when
a device is opened.
"""

MAY_IMPORT = ("base", "model", "devices")
