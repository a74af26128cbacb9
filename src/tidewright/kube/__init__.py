"""kube: the world of pods. GPUs of a Kubernetes cluster shared out by memory, under the names that gpushare gave them.

One pure allocator core (quantity, ask, cards, pool, choose) and several front ends: scheduler extender, device plugin,
DRA driver, inspect. Refuses to know Tidewright's own queue and book: here the cluster's scheduler decides who comes next.
"""

MAY_IMPORT = ("base", "model", "plan", "placement", "wire", "devices")
