"""The kubelet's folder: its socket and our own below it, its checkpoint, and saying hello.

Source: kubernetes pkg/kubelet/cm/devicemanager. A kubelet that starts removes every socket in the folder and makes its own
anew without a notification. So the directory is checked every second.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UsageError, WorldError
from ..allocation.container_lookup import CheckpointEntry, entries, whole_gpus
from ..objects import names
from .proto import grpc_module, serve
from .v1beta1 import API, PLUGIN, REGISTRATION, VERSION, messages

FOLDER = Path("/var/lib/kubelet/device-plugins")
SOCKET, OURS, CHECKPOINT = "kubelet.sock", "tidewright-gpushare.sock", "kubelet_internal_checkpoint"
PRIVATE = "tidewright/plugin.sock"
"""Of a plugin behind its proxy. In a folder of its own: a kubelet that starts removes the sockets beside its own, and leaves
folders alone (1.36; earlier versions too)."""
REGISTER_S = 10.0
LONGEST_PATH = 107
"""Bytes of a unix socket's path."""
LONGEST_REQUEST = 32 << 20
"""Bytes; a GetPreferredAllocation names all free ids, and the sender is the kubelet on this node."""
_NUMBERS = itertools.count()
LIMITS = (("grpc.max_receive_message_length", LONGEST_REQUEST),)


@dataclass(frozen=True, slots=True)
class KubeletFolder:
    """``/var/lib/kubelet/device-plugins`` or another; nothing outside it is touched."""

    path: Path = FOLDER

    def check(self) -> None:
        """Raises UsageError when sockets could not be made here."""
        longest = f".{OURS}.{10**6}"
        if len(os.fsencode(self.path / longest)) > LONGEST_PATH:
            raise UsageError(
                f"{self.path} is too long for a socket's path", f"at most {LONGEST_PATH} bytes with {longest}"
            )

    def kubelet(self) -> tuple[int, int] | None:
        """Which socket the kubelet has now; None while there is none."""
        return _socket(self.path / SOCKET)

    def ours(self) -> tuple[int, int] | None:
        """Which socket lies under our name."""
        return _socket(self.path / OURS)

    def private(self) -> tuple[int, int] | None:
        """Which socket a plugin behind its proxy has now."""
        return _socket(self.path / PRIVATE)

    def remove_ours(self) -> None:
        """What cannot be removed stays."""
        with suppress(OSError):
            (self.path / OURS).unlink(missing_ok=True)

    def remove_private(self) -> None:
        """That socket and its folder; what cannot be removed stays."""
        with suppress(OSError):
            (self.path / PRIVATE).unlink(missing_ok=True)
            (self.path / PRIVATE).parent.rmdir()

    def allocated(self) -> tuple[CheckpointEntry, ...]:
        """By the kubelet's checkpoint as of now. Raises WorldError."""
        return entries(self._checkpoint())

    def whole_gpus(self) -> frozenset[tuple[str, str]]:
        """(pod uid, UUID) of what other device plugins gave away; none before there is a kubelet. Raises WorldError."""
        return whole_gpus(self._checkpoint()) if (self.path / CHECKPOINT).exists() else frozenset()

    def given(self) -> tuple[CheckpointEntry, ...]:
        """As ``allocated``; nothing before the kubelet has allocated anything. Raises WorldError."""
        return self.allocated() if (self.path / CHECKPOINT).exists() else ()

    def edition(self) -> tuple[int, ...]:
        """Which checkpoint there is now, without reading it; empty while there is none."""
        try:
            found = os.stat(self.path / CHECKPOINT)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _checkpoint(self) -> str:
        try:
            return (self.path / CHECKPOINT).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise WorldError(f"the kubelet's checkpoint cannot be read: {error}") from error


def _socket(path: Path) -> tuple[int, int] | None:
    """Inode numbers are used again at once on some file systems, so the time of its making counts too."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


async def listen(folder: KubeletFolder, does: Mapping[str, Callable[..., Any]]) -> Any:
    """A running device plugin on our socket. Raises WorldError."""
    return await _serve(folder.path / OURS, does)


async def listen_private(folder: KubeletFolder, does: Mapping[str, Callable[..., Any]]) -> Any:
    """A running device plugin on the private socket, in a folder that only this user may enter. Raises WorldError."""
    path = folder.path / PRIVATE
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
    except OSError as error:
        raise WorldError(f"{path.parent} cannot be made: {error}") from error
    return await _serve(path, does)


async def _serve(path: Path, does: Mapping[str, Callable[..., Any]]) -> Any:
    """Under a name of its own first: a gRPC server that ends removes what lies under the name it was given, some time after
    its end was awaited. That must not be its successor's socket. Raises WorldError."""
    first = path.with_name(f".{path.name}.{next(_NUMBERS)}")
    server = await serve(first, API.handlers(PLUGIN, does), LIMITS)
    try:
        first.replace(path)
    except OSError as error:
        await server.stop(0)
        raise WorldError(f"cannot listen on {path}: {error}") from error
    return server


async def register(folder: KubeletFolder, pre_start: bool) -> None:
    """Tell the kubelet of our socket. Raises WorldError."""
    grpc, kinds = grpc_module(), messages()
    options = kinds.DevicePluginOptions(pre_start_required=pre_start, get_preferred_allocation_available=True)
    asked = kinds.RegisterRequest(version=VERSION, endpoint=OURS, resource_name=names.MEM, options=options)
    # Proxies of the environment are for the network; this never leaves the node.
    async with grpc.aio.insecure_channel(
        f"unix:{folder.path / SOCKET}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        try:
            async with asyncio.timeout(REGISTER_S):
                await API.caller(channel, REGISTRATION, "Register")(asked)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else "no answer"
            raise WorldError(f"the kubelet did not register us: {why}") from error
