"""Client of the Kubernetes API: HTTP, credentials, list and watch, Leases.

Knows nothing of GPUs.
"""
