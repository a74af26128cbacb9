"""The words on the wire: what Alibaba's gpushare calls its resources, annotations and variables, and the few we add.

Read off gpushare-scheduler-extender c0b6141 and gpushare-device-plugin 45fb8b8 as facts; every value is a string.
"""

from __future__ import annotations

MEM = "aliyun.com/gpu-mem"
"""Schedulable resource: units of GPU memory, GiB or MiB by the cluster's convention."""
COUNT = "aliyun.com/gpu-count"
"""On nodes the number of GPUs. On a pod (limit, label or annotation): over how many GPUs its memory is spread evenly."""

IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""The GPU's index, chosen at bind."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Units of one whole GPU."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Units of the pod."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
""" "false" at bind, "true" once the node's plugin has handed the GPU over."""
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Decimal nanoseconds since 1970: of the bind, later of the handing over."""
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""Only in a container's environment: its own units."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Only in a container's environment: which GPUs NVIDIA's container runtime shows it, by UUID."""
CGPU_LABEL, CGPU_OFF = "cgpu.disable.isolation", "CGPU_DISABLE"
"""Node label, and the variable that containers there get: for the cGPU kernel module, which is not ours."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON ``{"<container index>": {"<GPU index>": units}}``, for pods on several GPUs."""

NODE = "tidewright.io/gpu-node"
"""The node a pod was annotated for. Without it an annotated pod that was never bound counts nowhere after a restart."""
POLICY = "tidewright.io/gpu-policy"
"""On a pod: ``best-fit``, ``spread`` or ``fgd``."""
TABLE = "tidewright.io/gpus"
"""On a node: every GPU as it is, written by our device plugin (see cards)."""
PLUGIN = "tidewright.io/gpu-plugin"
"""On a node: our device plugin's heartbeat (see beat)."""
OURS = "tidewright.io/unhealthy"
"""On the ConfigMap of unhealthy GPUs: those that our device plugin put there, not an administrator."""

LEVEL = "tidewright.io/gpu-isolation"
"""On nodes and pods: the isolation level in force, such as ``L3 MPS, L0 watchdog (evicts)``."""
USE = "tidewright.io/gpu-use"
"""On a node: the memory that each pod was last seen to use (see usage)."""
SM_PERCENT = "tidewright.io/gpu-sm-percent"
"""On a pod: the share of each GPU's multiprocessors that it gets at most, where MPS or HAMi-core is in force; 1 to 100."""
COOPERATES = "tidewright.io/gpu-cooperates"
"""On a pod: frameworks that take their limit from a variable only some versions know, such as ``torch`` (2.10 and later)."""

UNHEALTHY_PREFIX, UNHEALTHY_NAMESPACE, UNHEALTHY_KEY = "unhealthy-gpu-", "kube-system", "gpus"
"""The ConfigMap of a node whose ``data.gpus`` lists indices not to be used, separated by commas."""
