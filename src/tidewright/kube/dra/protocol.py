"""Dynamic Resource Allocation: the words of the API server and the two gRPC services by which the kubelet knows a driver.

Sources: kubernetes ``staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1`` and ``.../dra/v1`` (names and field
numbers); ``staging/src/k8s.io/api/resource/v1``.
"""

from __future__ import annotations

from typing import Any

from ..node.proto import Fields, Proto

DRIVER = "gpu.tidewright.io"
GROUP = "/apis/resource.k8s.io/v1"
SLICES = f"{GROUP}/resourceslices"
MEMORY, SM_PERCENT = "memory", "smPercent"
"""Capacities of a GPU that is shared; C identifiers, as the API server wants them."""
REGISTRATION, PLUGIN = "pluginregistration.Registration", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
TYPE, VERSION = "DRAPlugin", "v1.DRAPlugin"
OLDEST, GATES_ON = (1, 34), (1, 36)
"""Kubernetes with resource.k8s.io/v1, and with every feature that is used here switched on by default."""

REGISTERING = Proto(
    "pluginregistration",
    {
        "InfoRequest": {},
        "PluginInfo": {
            "type": (1, "string"),
            "name": (2, "string"),
            "endpoint": (3, "string"),
            "supported_versions": (4, "*string"),
        },
        "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
        "RegistrationStatusResponse": {},
    },
    {
        REGISTRATION: {
            "GetInfo": ("InfoRequest", "PluginInfo", False),
            "NotifyRegistrationStatus": ("RegistrationStatus", "RegistrationStatusResponse", False),
        }
    },
)
_MESSAGES: dict[str, Fields] = {
    "Claim": {"namespace": (1, "string"), "uid": (2, "string"), "name": (3, "string")},
    "Device": {
        "request_names": (1, "*string"),
        "pool_name": (2, "string"),
        "device_name": (3, "string"),
        "cdi_device_ids": (4, "*string"),
        "share_id": (5, "?string"),
    },
    "NodePrepareResourcesRequest": {"claims": (1, "*Claim")},
    "NodePrepareResourceResponse": {"devices": (1, "*Device"), "error": (2, "string")},
    "NodePrepareResourcesResponse": {"claims": (1, "map:NodePrepareResourceResponse")},
    "NodeUnprepareResourcesRequest": {"claims": (1, "*Claim")},
    "NodeUnprepareResourceResponse": {"error": (1, "string")},
    "NodeUnprepareResourcesResponse": {"claims": (1, "map:NodeUnprepareResourceResponse")},
}
DRA = Proto(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    _MESSAGES,
    {
        PLUGIN: {
            "NodePrepareResources": ("NodePrepareResourcesRequest", "NodePrepareResourcesResponse", False),
            "NodeUnprepareResources": ("NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse", False),
        }
    },
)


def messages() -> tuple[Any, Any]:
    """Classes of the registration and of the plugin, by their names. Raises UsageError without protobuf."""
    return REGISTERING.messages, DRA.messages
