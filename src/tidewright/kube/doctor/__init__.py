"""Reports on a cluster for administrators: ``tide kube inspect`` and ``tide kube doctor``. Pure: listed objects in, text out."""
