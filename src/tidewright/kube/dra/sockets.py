"""The two sockets of a DRA driver: one where the kubelet's plugin watcher finds it, one where the kubelet asks it.

Source: kubernetes pkg/kubelet/pluginmanager. The watcher looks through its folder when the kubelet starts and then follows
what appears there; so no new registration is needed as long as the socket exists.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UsageError, WorldError
from ..node.kubelet import LONGEST_PATH
from ..node.proto import serve
from ..objects.log import Log
from .protocol import DRA, DRIVER, PLUGIN, REGISTERING, REGISTRATION, TYPE, VERSION, messages

PLUGINS, REGISTRY = Path("/var/lib/kubelet/plugins"), Path("/var/lib/kubelet/plugins_registry")


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The kubelet's folders, under the names that the kubelet has for them."""

    plugins: Path = PLUGINS
    registry: Path = REGISTRY

    @property
    def home(self) -> Path:
        """Ours alone."""
        return self.plugins / DRIVER

    @property
    def asked(self) -> Path:
        """The socket of the driver itself."""
        return self.home / "dra.sock"

    @property
    def found(self) -> Path:
        """The socket that the plugin watcher finds."""
        return self.registry / f"{DRIVER}-reg.sock"

    def check(self) -> None:
        """Raises UsageError when sockets could not be made here."""
        for path in (self.asked, self.found):
            if len(os.fsencode(path)) > LONGEST_PATH:
                raise UsageError(f"{path} is too long for a socket's path", f"at most {LONGEST_PATH} bytes")


class DriverSockets:
    """``does``: the driver's methods. ``registered``: whether the kubelet said so last."""

    def __init__(self, places: SocketPaths, does: dict[str, Callable[..., Any]], log: Log) -> None:
        self.places, self.does, self.log = places, does, log
        self.registered = False
        self._servers: list[Any] = []
        self._failure = ""

    async def tend(self) -> None:
        """One look: what is not there is made. What cannot be made is noted once, and tried at the next look."""
        if self._servers and all(map(_there, (self.places.asked, self.places.found))):
            return
        try:
            await self._begin()
            self._failure = ""
        except WorldError as error:
            if self._failure != str(error):
                self._failure = str(error)
                self.log(str(error))

    async def end(self, grace_s: float = 1.0) -> None:
        """Ends what is under way within that time."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(grace_s)

    async def _begin(self) -> None:
        """First the driver, then where it is found: who finds it calls it at once."""
        await self.end(0)
        try:
            self.places.home.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise WorldError(f"{self.places.home} cannot be made: {error}") from error
        says = {"GetInfo": self._info, "NotifyRegistrationStatus": self._status}
        try:
            self._servers.append(await serve(self.places.asked, DRA.handlers(PLUGIN, self.does)))
            self._servers.append(await serve(self.places.found, REGISTERING.handlers(REGISTRATION, says)))
        except WorldError:
            await self.end(0)
            raise
        self.log(f"listens on {self.places.found}")

    async def _info(self, request: Any, context: Any) -> Any:
        kind = messages()[0].PluginInfo
        return kind(type=TYPE, name=DRIVER, endpoint=str(self.places.asked), supported_versions=[VERSION])

    async def _status(self, request: Any, context: Any) -> Any:
        self.registered = bool(request.plugin_registered)
        why = "" if self.registered else f"NOT registered: {request.error or 'no reason given'}"
        self.log(f"the kubelet says: {why or 'registered'}")
        return messages()[0].RegistrationStatusResponse()


def _there(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
