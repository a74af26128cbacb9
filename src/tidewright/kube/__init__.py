"""kube: GPUs of a Kubernetes cluster, shared by memory under gpushare's resource names.

Sub-packages, each importing only those before it: ``objects`` and ``allocation`` (pure), ``client``, ``node``, ``isolation``,
``plugin``, ``dra``, ``extender``, ``webhook``, ``doctor``. Nothing here knows Tidewright's own queue: the cluster's scheduler
decides which pod is next.
"""

MAY_IMPORT = ("base", "model", "plan", "placement", "wire", "devices")
