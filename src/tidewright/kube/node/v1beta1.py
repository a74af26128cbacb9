"""The kubelet's device plugin API v1beta1: its messages and methods.

Source: kubernetes ``staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`` (names and field numbers).
"""

from __future__ import annotations

from types import SimpleNamespace

from .proto import Fields, Proto

VERSION = "v1beta1"
PLUGIN, REGISTRATION = "v1beta1.DevicePlugin", "v1beta1.Registration"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

_MESSAGES: dict[str, Fields] = {
    "DevicePluginOptions": {
        "pre_start_required": (1, "bool"),
        "get_preferred_allocation_available": (2, "bool"),
    },
    "RegisterRequest": {
        "version": (1, "string"),
        "endpoint": (2, "string"),
        "resource_name": (3, "string"),
        "options": (4, "DevicePluginOptions"),
    },
    "Empty": {},
    "Device": {"ID": (1, "string"), "health": (2, "string")},
    "ListAndWatchResponse": {"devices": (1, "*Device")},
    "PreStartContainerRequest": {"devices_ids": (1, "*string")},
    "PreStartContainerResponse": {},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": (1, "*string"),
        "must_include_deviceIDs": (2, "*string"),
        "allocation_size": (3, "int32"),
    },
    "PreferredAllocationRequest": {"container_requests": (1, "*ContainerPreferredAllocationRequest")},
    "ContainerPreferredAllocationResponse": {"deviceIDs": (1, "*string")},
    "PreferredAllocationResponse": {"container_responses": (1, "*ContainerPreferredAllocationResponse")},
    "ContainerAllocateRequest": {"devices_ids": (1, "*string")},
    "AllocateRequest": {"container_requests": (1, "*ContainerAllocateRequest")},
    "CDIDevice": {"name": (1, "string")},
    "Mount": {"container_path": (1, "string"), "host_path": (2, "string"), "read_only": (3, "bool")},
    "ContainerAllocateResponse": {
        "envs": (1, "map"),
        "mounts": (2, "*Mount"),
        "annotations": (4, "map"),
        "cdi_devices": (5, "*CDIDevice"),
    },
    "AllocateResponse": {"container_responses": (1, "*ContainerAllocateResponse")},
}
_SERVICES: dict[str, dict[str, tuple[str, str, bool]]] = {
    REGISTRATION: {"Register": ("RegisterRequest", "Empty", False)},
    PLUGIN: {
        "GetDevicePluginOptions": ("Empty", "DevicePluginOptions", False),
        "ListAndWatch": ("Empty", "ListAndWatchResponse", True),
        "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse", False),
        "Allocate": ("AllocateRequest", "AllocateResponse", False),
        "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse", False),
    },
}
API = Proto("v1beta1", _MESSAGES, _SERVICES)


def messages() -> SimpleNamespace:
    """Every message's class by its name. Raises UsageError without protobuf."""
    return API.messages
