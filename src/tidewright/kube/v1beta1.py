"""The kubelet's device plugin API v1beta1: its messages and methods, for both sides of the socket.

Source: kubernetes ``staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`` (names and field numbers). The
messages are described here and built when first used, in a pool of their own: generated code would tie us to one version of
protobuf, and a second description of package v1beta1 in the same process would be refused in the common pool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from ..base.errors import UsageError

VERSION = "v1beta1"
PLUGIN, REGISTRATION = "v1beta1.DevicePlugin", "v1beta1.Registration"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
NEEDS = "pip install 'tidewright[kube]'"

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
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
    "ContainerAllocateResponse": {"envs": (1, "map"), "cdi_devices": (5, "*CDIDevice")},
    "AllocateResponse": {"container_responses": (1, "*ContainerAllocateResponse")},
}
"""Message to field to (number, type); ``*`` is repeated, ``map`` from string to string."""
METHODS: dict[str, dict[str, tuple[str, str, bool]]] = {
    REGISTRATION: {"Register": ("RegisterRequest", "Empty", False)},
    PLUGIN: {
        "GetDevicePluginOptions": ("Empty", "DevicePluginOptions", False),
        "ListAndWatch": ("Empty", "ListAndWatchResponse", True),
        "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse", False),
        "Allocate": ("AllocateRequest", "AllocateResponse", False),
        "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse", False),
    },
}
"""Service to method to (request, response, whether the response is a stream)."""


@cache
def messages() -> SimpleNamespace:
    """Every message's class by its name. Raises UsageError without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise UsageError("talking to the kubelet needs protobuf", NEEDS) from error
    file = descriptor_pb2.FileDescriptorProto(name="tidewright/v1beta1.proto", package="v1beta1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"v1beta1.{name}") for name in _MESSAGES}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in found.items()})


def _describe(message: Any, fields: Mapping[str, tuple[int, str]]) -> None:
    for name, (number, kind) in fields.items():
        field = message.field.add(name=name, number=number)
        many = kind.startswith("*") or kind == "map"
        field.label = field.LABEL_REPEATED if many else field.LABEL_OPTIONAL
        if kind == "map":
            entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
            entry.options.map_entry = True
            _describe(entry, {"key": (1, "string"), "value": (2, "string")})
            field.type, field.type_name = field.TYPE_MESSAGE, f".v1beta1.{message.name}.{entry.name}"
        elif (plain := kind.removeprefix("*")) in _MESSAGES:
            field.type, field.type_name = field.TYPE_MESSAGE, f".v1beta1.{plain}"
        else:
            field.type = getattr(field, f"TYPE_{plain.upper()}")


def grpc_module() -> Any:
    """``grpc`` with its asyncio half. Raises UsageError when it is not installed."""
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise UsageError("talking to the kubelet needs grpcio", NEEDS) from error
    return grpc


def handlers(service: str, does: Mapping[str, Callable[..., Any]]) -> Any:
    """For a server: ``does`` gives each method of ``service`` its coroutine function (or async generator function)."""
    grpc, kinds, found = grpc_module(), messages(), {}
    for name, (request, response, streams) in METHODS[service].items():
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        found[name] = make(
            does[name],
            request_deserializer=getattr(kinds, request).FromString,
            response_serializer=getattr(kinds, response).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, found)


def caller(channel: Any, service: str, method: str) -> Callable[..., Awaitable[Any]]:
    """For a client: call it with a request, or await or iterate what it gives."""
    request, response, streams = METHODS[service][method]
    kinds = messages()
    make = channel.unary_stream if streams else channel.unary_unary
    found: Callable[..., Awaitable[Any]] = make(
        f"/{service}/{method}",
        request_serializer=getattr(kinds, request).SerializeToString,
        response_deserializer=getattr(kinds, response).FromString,
    )
    return found
