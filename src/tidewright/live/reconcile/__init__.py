"""live.reconcile: desired state against agents' reports: commands become calls, reports events; images are copied."""
