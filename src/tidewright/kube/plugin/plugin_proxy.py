"""``tide kube plugin-proxy``: keeps the kubelet's connection while the device plugin behind it ends and comes back.

A kubelet takes all devices for unhealthy the moment their plugin's stream ends, and fails every pod that it admits then, for
good. So the stream ends here, in a process with nothing in it that crashes or is updated: it passes calls on, keeps the last
list of devices, and loads no client of the API server and no driver. The plugin's own stream is open exactly while the
kubelet's is: what the heartbeat says of the kubelet stays true.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..node.cdi import name_of, qualified
from ..node.kubelet import FOLDER, PRIVATE, KubeletFolder
from ..node.proto import grpc_module
from ..node.tasks import run_until_stopped
from ..node.v1beta1 import HEALTHY, messages
from ..objects import names
from .plugin_client import PluginClient
from .registration import KubeletRegistration

if TYPE_CHECKING:
    from ..objects.log import Log

AGAIN_S = 0.1
"""Pause after the plugin's stream ended before it is asked again."""
LOG = "kubectl -n kube-system logs -l app.kubernetes.io/component=plugin -c plugin"


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """``allocate_s``: how long Allocate waits for a plugin that matches. The kubelet stands still meanwhile: it admits no other
    pod, and notices no container that ended, so it starts the plugin's again only between two admissions.
    ``start_s``: PreStartContainer; the kubelet itself waits 30 s. ``linger_s``: from the plugin's hearing that we end until the
    kubelet does: the extender must hear of it, and the kubelet admit what was bound before.
    """

    folder: Path = FOLDER
    allocate_s: float = 10.0
    start_s: float = 27.0
    linger_s: float = 5.0
    poll_s: float = 1.0


class PluginProxy:
    """Runs until ``stop`` is called. ``late``, ``listening``: as of a Plugin."""

    def __init__(self, settings: ProxySettings, log: Log) -> None:
        self.settings, self.log = settings, log
        self.folder = KubeletFolder(settings.folder)
        self.folder.check()
        self.registration = KubeletRegistration(self.folder, self, log, settings.poll_s)
        self.late, self.listening = True, 0
        self._options: Any = None
        self._devices: Any = None
        self._changed, self._known = asyncio.Event(), asyncio.Event()
        self._connected, self._disconnected = asyncio.Event(), asyncio.Event()
        self._stop = asyncio.Event()
        self._logged, self._left = "", False

    def stop(self) -> None:
        """Tell the plugin, wait a moment, then leave the kubelet."""
        self._stop.set()

    async def run(self) -> None:
        """Raises UsageError without grpcio and protobuf."""
        async with PluginClient(self.folder.path / PRIVATE) as self._plugin:
            try:
                await run_until_stopped(self._stop, self._follow_plugin(), self._keep_registered())
            finally:
                await self._farewell()

    async def _keep_registered(self) -> None:
        """From when the plugin was heard first: what to register is not known before."""
        await self._known.wait()
        await self.registration.run()

    async def _farewell(self) -> None:
        """The plugin's stream has ended by now, so its heartbeat says that the node is not registered any more."""
        try:
            if self.listening:
                self.log(f"leaves the kubelet in {self.settings.linger_s:g} s")
                await asyncio.sleep(self.settings.linger_s)
        finally:
            self._left = True
            self.announce()
            await self.registration.end(1)

    async def _follow_plugin(self) -> None:
        """Its options always, its devices while the kubelet hears us."""
        errors = grpc_module().aio.AioRpcError
        if not self.folder.private():
            self._log_change(f"waits for the device plugin's socket {self.folder.path / PRIVATE}")
        while True:
            with suppress(errors):
                await self._read_options()
                await self._connected.wait()
                await run_until_stopped(self._disconnected, self._relay())
            if self.listening:
                self._log_change("the device plugin is away; the kubelet keeps its devices")
            await asyncio.sleep(AGAIN_S)

    async def _relay(self) -> None:
        """The plugin's devices until its stream ends. Raises AioRpcError when it does not end in order."""
        stream = self._plugin.stream("ListAndWatch", messages().Empty())
        try:
            async for answer in stream:
                if answer != self._devices:
                    self._devices = answer
                    self.announce()
                await self._read_options()
                self._log_change(f"connected to the device plugin: {self.offers()}")
        finally:
            stream.cancel()  # cancelled between two answers it would stay open, and the plugin believe that the kubelet listens

    async def _read_options(self) -> None:
        """Registers anew when they differ from those registered with the kubelet. Raises AioRpcError."""
        options = await self._plugin.wait("GetDevicePluginOptions", messages().Empty())
        if options == self._options:
            return
        self._options, self.late = options, options.pre_start_required
        if self._known.is_set():
            self.log("the device plugin's options changed: registers again")
            self.registration.renew()
        self._known.set()

    def _log_change(self, line: str) -> None:
        """Once while it lasts."""
        if line != self._logged:
            self.log(line)
            self._logged = line

    def announce(self) -> None:
        """Send the devices again on every open stream."""
        self._changed.set()
        self._changed = asyncio.Event()

    def offers(self) -> str:
        """For people."""
        devices = () if self._devices is None else self._devices.devices
        healthy = sum(device.health == HEALTHY for device in devices)
        return f"{len(devices)} units of {names.MEM}, {healthy} healthy" if devices else names.MEM

    def methods(self) -> dict[str, Callable[..., Any]]:
        """By their names in the API."""
        return {
            "GetDevicePluginOptions": self._get_options,
            "ListAndWatch": self._list_and_watch,
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }

    async def _get_options(self, request: Any, context: Any) -> Any:
        return self._options

    async def _list_and_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.listening += 1
        self._connected.set()
        self._disconnected.clear()
        try:
            while not self._left:
                changed = self._changed
                if self._devices is not None:
                    yield self._devices
                await changed.wait()
        finally:
            self.listening -= 1
            if not self.listening:
                self._connected.clear()
                self._disconnected.set()

    async def _preferred(self, request: Any, context: Any) -> Any:
        """Only a wish: without an answer the kubelet chooses by itself."""
        with suppress(grpc_module().aio.AioRpcError):
            answer = await self._plugin.ask_at_once("GetPreferredAllocation", request)
            if answer is not None:
                return answer
        return messages().PreferredAllocationResponse()

    async def _allocate(self, request: Any, context: Any) -> Any:
        """Late, what to answer depends on the ids alone."""
        if not self.late:
            return await self._waited("Allocate", request, context, self.settings.allocate_s, "recreate the pod")
        try:
            answer = await self._plugin.ask_at_once("Allocate", request)
        except grpc_module().aio.AioRpcError as error:
            await context.abort(error.code(), error.details())
        return late_answer(request) if answer is None else answer

    async def _pre_start(self, request: Any, context: Any) -> Any:
        remedy = "the kubelet tries the container again by itself"
        return await self._waited("PreStartContainer", request, context, self.settings.start_s, remedy)

    async def _waited(self, method: str, request: Any, context: Any, limit_s: float, remedy: str) -> Any:
        """The plugin's answer or refusal, however often it ends meanwhile; an error with ``remedy`` when it gives none."""
        grpc = grpc_module()
        try:
            return await self._plugin.wait(method, request, limit_s)
        except TimeoutError as error:
            last = f" (last error: {error})" if str(error) else ""
            text = f"the device plugin of this node gave no answer for {limit_s:g} s{last}; see {LOG}; {remedy}"
            self.log(f"{method}: {text}")
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())


def late_answer(request: Any) -> Any:
    """What a plugin that binds late answers to Allocate, without the legacy variables."""
    kinds = messages()
    found = [[kinds.CDIDevice(name=qualified(name_of(one.devices_ids)))] for one in request.container_requests]
    return kinds.AllocateResponse(
        container_responses=[kinds.ContainerAllocateResponse(cdi_devices=devices) for devices in found]
    )
