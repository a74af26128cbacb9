"""A device plugin's server in the kubelet's folder: on the socket that the kubelet knows, registered and kept registered; or
on a private socket, for the proxy that the kubelet knows in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ...base.backoff import pause_s
from ...base.errors import WorldError
from ..node.kubelet import KubeletFolder, listen, listen_private, register

if TYPE_CHECKING:
    from ..objects.log import Log

BACKOFF_S = (0.5, 30.0)
"""First pause after a failed registration and longest; doubled, and drawn from its upper half."""
UNHEARD_S = 5.0
"""A kubelet that registered us opens its stream at once; after this long without one it is registered again."""


class DevicePluginService(Protocol):
    """What is served. ``late``: whether PreStartContainer must be called. ``listening``: open ListAndWatch streams."""

    late: bool
    listening: int

    def methods(self) -> Mapping[str, Callable[..., Any]]:
        """By their names in the API."""

    def offers(self) -> str:
        """What the kubelet gets, in words."""

    def announce(self) -> None:
        """Send the devices again, to whom hears them."""


class Registration(Protocol):
    """How a device plugin is reached."""

    async def run(self) -> None:
        """Serve, and serve anew what was removed; does not return."""

    def renew(self) -> None:
        """Options changed: they are to be read again."""

    async def end(self, grace_s: float) -> None:
        """Close the socket; calls in progress get ``grace_s``."""


class KubeletRegistration:
    """Served on our socket and registered. The kubelet forgets its plugins when it starts and tells none of them, so its
    folder is looked at every ``poll_s`` seconds."""

    def __init__(self, folder: KubeletFolder, service: DevicePluginService, log: Log, poll_s: float) -> None:
        self.folder, self.service, self.log, self.poll_s = folder, service, log, poll_s
        self._server: Any = None
        self._saw: tuple[object, object] = (None, None)
        self._ours: object = None
        self._retry_s, self._tries, self._waiting = 0.0, 0, False

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            await self._look(asyncio.get_running_loop().time())
            await asyncio.sleep(self.poll_s)

    def renew(self) -> None:
        """Registered anew at the next look: the kubelet reads options only then."""
        self._saw = (None, None)

    async def end(self, grace_s: float) -> None:
        """The kubelet takes every device for unhealthy from here on."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
            if self.folder.ours() == self._ours:
                self.folder.remove_ours()

    async def _look(self, now_s: float) -> None:
        """One look at the kubelet's folder."""
        if self.service.listening:
            self._tries = 0
        kubelet = self.folder.kubelet()
        if kubelet is None:
            if not self._waiting:
                self.log(f"waits for the kubelet's socket in {self.folder.path}")
            self._waiting, self._tries, self._retry_s = True, 0, now_s
            return
        fresh = self._server is None or (kubelet, self.folder.ours()) != self._saw
        if fresh and kubelet != self._saw[0]:
            self._tries, self._retry_s = 0, now_s  # another kubelet: what the last one refused means nothing
        if now_s < self._retry_s or not (fresh or not self.service.listening):
            return
        self._waiting = False
        try:
            await self._begin(kubelet)
            # Not heard of by the next look but one: another plugin took the resource over, or the kubelet is ending.
            self._retry_s = now_s + self._pause(UNHEARD_S)
        except WorldError as error:
            self._saw = (kubelet, self.folder.ours())
            if not self._tries:
                self.log(str(error))
            self._retry_s = now_s + self._pause(BACKOFF_S[0])
        self._tries += 1

    def _pause(self, first_s: float) -> float:
        return pause_s(self._tries, (first_s, BACKOFF_S[1]))

    async def _begin(self, kubelet: object) -> None:
        """Listen anew and register. Raises WorldError."""
        await self.end(0)
        self._server = await listen(self.folder, self.service.methods())
        self._ours = self.folder.ours()
        self._saw = (kubelet, self._ours)
        await register(self.folder, self.service.late)
        self.log(f"registered with the kubelet: {self.service.offers()}")


class PrivateEndpoint:
    """Served on the private socket, made again when it was removed. The proxy connects by itself."""

    def __init__(self, folder: KubeletFolder, service: DevicePluginService, log: Log, poll_s: float) -> None:
        self.folder, self.service, self.log, self.poll_s = folder, service, log, poll_s
        self._server: Any = None
        self._saw: object = None
        self._logged = ""

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            if self._server is None or self.folder.private() != self._saw:
                await self._begin()
            await asyncio.sleep(self.poll_s)

    def renew(self) -> None:
        """The proxy reads options again whenever it gets the devices."""
        self.service.announce()

    async def end(self, grace_s: float) -> None:
        """The proxy keeps the last list of devices. Nothing of ours stays in the kubelet's folder."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
            if self.folder.private() == self._saw:
                self.folder.remove_private()

    async def _begin(self) -> None:
        await self.end(0)
        try:
            self._server = await listen_private(self.folder, self.service.methods())
            self._saw = self.folder.private()
            state = f"serves its proxy: {self.service.offers()}"
        except WorldError as error:
            state = str(error)
        if state != self._logged:
            self.log(state)
            self._logged = state
