"""What objects of the Kubernetes API say about GPUs: names, quantities, schema checks, requests, inventories. Pure.

JSON in, values out (and back). Every other sub-package of kube may import this one; it imports none of them.
"""
