"""Protocol buffers and gRPC services described in a table in place of generated code, for both sides of a socket.

The messages are built when first used, in a pool of their own: generated code would tie us to one version of protobuf, and a
second description of a package in the same process would be refused in the common pool.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...base.errors import UsageError, WorldError

NEEDS = "pip install 'tidewright[kube]'"
Fields = Mapping[str, tuple[int, str]]
"""Field to (number, type). ``*`` before a type is repeated, ``map`` from string to string, ``map:Kind`` from string to a
message, ``?`` before a type optional with presence; other types are scalars of proto3 or messages of the same package."""


@dataclass(frozen=True)
class Proto:
    """One package. ``services``: full name to method to (request, response, whether the response is a stream)."""

    package: str
    described: Mapping[str, Fields]
    services: Mapping[str, Mapping[str, tuple[str, str, bool]]] = field(default_factory=dict)

    @cached_property
    def messages(self) -> SimpleNamespace:
        """Every message's class by its name. Raises UsageError without protobuf."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ImportError as error:
            raise UsageError("talking to the kubelet needs protobuf", NEEDS) from error
        file = descriptor_pb2.FileDescriptorProto(
            name=f"tidewright/{self.package}.proto", package=self.package, syntax="proto3"
        )
        for name, fields in self.described.items():
            self._describe(file.message_type.add(name=name), name, fields)
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        found = {name: pool.FindMessageTypeByName(f"{self.package}.{name}") for name in self.described}
        return SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in found.items()})

    def _describe(self, message: Any, path: str, fields: Fields) -> None:
        for name, (number, kind) in fields.items():
            field = message.field.add(name=name, number=number)
            mapped = kind == "map" or kind.startswith("map:")
            field.label = field.LABEL_REPEATED if mapped or kind.startswith("*") else field.LABEL_OPTIONAL
            if mapped:
                # protobuf wants the entry's name made of the field's in just this way.
                entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
                entry.options.map_entry = True
                inner = f"{path}.{entry.name}"
                self._describe(entry, inner, {"key": (1, "string"), "value": (2, kind.partition(":")[2] or "string")})
                field.type, field.type_name = field.TYPE_MESSAGE, f".{self.package}.{inner}"
            elif (plain := kind.lstrip("*?")) in self.described:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{self.package}.{plain}"
            else:
                field.type = getattr(field, f"TYPE_{plain.upper()}")
                if kind.startswith("?"):
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{name}")

    def handlers(self, service: str, does: Mapping[str, Callable[..., Any]]) -> Any:
        """For a server: ``does`` gives each method of ``service`` its coroutine function (or async generator function)."""
        grpc, kinds, found = grpc_module(), self.messages, {}
        for name, (request, response, streams) in self.services[service].items():
            make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            found[name] = make(
                does[name],
                request_deserializer=getattr(kinds, request).FromString,
                response_serializer=getattr(kinds, response).SerializeToString,
            )
        return grpc.method_handlers_generic_handler(service, found)

    def caller(self, channel: Any, service: str, method: str) -> Callable[..., Awaitable[Any]]:
        """For a client: call it with a request, or await or iterate what it gives."""
        request, response, streams = self.services[service][method]
        kinds = self.messages
        make = channel.unary_stream if streams else channel.unary_unary
        found: Callable[..., Awaitable[Any]] = make(
            f"/{service}/{method}",
            request_serializer=getattr(kinds, request).SerializeToString,
            response_deserializer=getattr(kinds, response).FromString,
        )
        return found


async def serve(path: Path, handler: Any, options: Sequence[tuple[str, Any]] = ()) -> Any:
    """A running server on a unix socket, for this user only; what lies at ``path`` goes. Raises WorldError."""
    grpc = grpc_module()
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((handler,))
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except (RuntimeError, OSError) as error:
        await server.stop(0)
        raise WorldError(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(before)
    return server


def grpc_module() -> Any:
    """``grpc`` with its asyncio half. Raises UsageError when it is not installed."""
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise UsageError("talking to the kubelet needs grpcio", NEEDS) from error
    return grpc
