"""A kubelet small enough to start in every test: the device manager's half of the device plugin API, over real sockets.

Source: kubernetes pkg/kubelet/cm/devicemanager, and every RPC recorded from a v1.36 kubelet: options while it registers a
plugin, then ListAndWatch; for each init container and each container one GetPreferredAllocation (unless the init
containers' devices are enough) and one Allocate; the checkpoint; PreStartContainer before every start. Starting wipes the
sockets in the folder and leaves folders in it alone. When a plugin's stream ends, its devices are unhealthy and its endpoint
is asked nothing more; a pod admitted then fails. Misbehaves on request: ``refuse``, ``crash``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..kube.node.kubelet import CHECKPOINT, SOCKET
from ..kube.node.proto import grpc_module
from ..kube.node.v1beta1 import API, HEALTHY, PLUGIN, REGISTRATION, VERSION, messages
from ..kube.objects import names

MESSAGE_LIMIT = 4 << 20
PRE_START_S = 30.0
"""KubeletPreStartContainerRPCTimeoutInSecs; the other calls have no limit."""


@dataclass(slots=True)
class Made:
    """What a container was allocated."""

    uid: str
    container: str
    ids: list[str]
    env: dict[str, str]
    cdi: list[str]
    mounts: list[str]
    """Of the node."""
    answer: bytes = b""
    """All that the plugin said."""


@dataclass
class FakeKubelet:
    """``calls``: (RPC, what of its request) in order, as in the recordings. ``health``: by device id, as last streamed."""

    folder: Path
    cgroups: Path | None = None
    """Where it makes cgroups of pods, as its cgroupfs driver under version 1; None: nowhere."""
    refuse: str = ""
    """Registrations are refused with this text."""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    health: dict[str, str] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    others: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """(pod uid, container, device ids) that another plugin gave."""
    registrations: int = 0
    options: Any = None
    _admitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _server: Any = None
    _channel: Any = None
    _watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Every socket in the folder goes, then its own appears."""
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        if self.cgroups is not None:
            (self.cgroups / "kubepods").mkdir(parents=True, exist_ok=True)
        self._server = grpc_module().aio.server()
        self._server.add_generic_rpc_handlers((API.handlers(REGISTRATION, {"Register": self._register}),))
        self._server.add_insecure_port(f"unix:{self.folder / SOCKET}")
        await self._server.start()

    async def crash(self) -> None:
        """Gone, with its connections; its files stay, and what was allocated is remembered by the checkpoint alone."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        if self._channel is not None:
            await self._channel.close()
        if self._server is not None:
            await self._server.stop(0)
        self._watching = self._channel = self._server = None
        self.health = {}

    async def _register(self, request: Any, context: Any) -> Any:
        grpc = grpc_module()
        if self.refuse or request.version != VERSION or request.resource_name != names.MEM:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse or "requested API version is not supported")
        if self._watching is not None:
            self._watching.cancel()
        limits = [("grpc.max_receive_message_length", MESSAGE_LIMIT)]
        self._channel = grpc.aio.insecure_channel(f"unix:{self.folder / request.endpoint}", options=limits)
        self.options = await self._ask("GetDevicePluginOptions", messages().Empty())
        self.registrations += 1
        self.calls.append(("Registered", None))
        self._watching = asyncio.create_task(self._watch(self._channel))
        return messages().Empty()

    async def _watch(self, channel: Any) -> None:
        self.calls.append(("ListAndWatch", None))
        try:
            stream: Any = API.caller(channel, PLUGIN, "ListAndWatch")(messages().Empty())
            async for answer in stream:
                self.health = {device.ID: device.health for device in answer.devices}
                self.calls.append(("ListAndWatch.send", len(answer.devices)))
            why = "EOF"
        except grpc_module().aio.AioRpcError as error:
            why = error.details()
        self.calls.append(("ListAndWatch.closed", why))
        self.health = {}

    async def _ask(self, method: str, request: Any, limit_s: float | None = None) -> Any:
        self.calls.append((method, request))
        return await API.caller(self._channel, PLUGIN, method)(request, timeout=limit_s)

    async def admit(self, pod: dict[str, Any]) -> None:
        """Allocate for every container of a pod, for one pod after the other. Raises AioRpcError: the kubelet fails the pod with
        its text, and what the pod has is free again."""
        async with self._admitting:
            try:
                await self._admit(pod)
            except BaseException:
                self.forget(pod["metadata"]["uid"])
                raise

    async def _admit(self, pod: dict[str, Any]) -> None:
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        reusable: list[str] = []
        self._runs(uid, "pause")
        for kind in ("initContainers", "containers"):
            for container in spec.get(kind) or ():
                size = int(((container.get("resources") or {}).get("limits") or {}).get(names.MEM, 0))
                if not size:
                    continue
                ids = await self._choose(reusable, size)
                one = messages().ContainerAllocateRequest(devices_ids=ids)
                answer = await self._ask("Allocate", messages().AllocateRequest(container_requests=[one]))
                found = answer.container_responses[0]
                cdi, mounts = [each.name for each in found.cdi_devices], [each.host_path for each in found.mounts]
                sent = found.SerializeToString()
                self.made.append(Made(uid, container["name"], ids, dict(found.envs), cdi, mounts, sent))
                self.save()
                # Init containers leave theirs to those after them; sidecars and containers keep their own.
                passes_on = kind == "initContainers" and container.get("restartPolicy") != "Always"
                reusable = [*dict.fromkeys([*reusable, *ids])] if passes_on else [
                    each for each in reusable if each not in ids
                ]  # fmt: skip

    async def _choose(self, reusable: list[str], size: int) -> list[str]:
        must = sorted(reusable)[:size]
        if len(must) == size:
            return must
        taken = {each for made in self.made for each in made.ids}
        free = [each for each, health in self.health.items() if health == HEALTHY and each not in taken]
        if len(free) + len(must) < size:
            raise RuntimeError(f"{len(free)} of {size} devices are free and healthy")
        wish = messages().ContainerPreferredAllocationRequest(
            available_deviceIDs=must + free, must_include_deviceIDs=must, allocation_size=size
        )
        asked = messages().PreferredAllocationRequest(container_requests=[wish])
        answer = await self._ask("GetPreferredAllocation", asked)
        wished = [each for found in answer.container_responses[:1] for each in found.deviceIDs]
        preferred = [each for each in wished if each in {*must, *free}]
        return list(dict.fromkeys([*must, *preferred, *free]))[:size]

    async def start_container(self, uid: str, container: str) -> Made:
        """Before each start. Raises AioRpcError: the kubelet tries the container again."""
        made = next(each for each in self.made if (each.uid, each.container) == (uid, container))
        if self.options.pre_start_required:
            if not self.health:
                raise RuntimeError("endpoint has been stopped")
            asked = messages().PreStartContainerRequest(devices_ids=made.ids)
            await self._ask("PreStartContainer", asked, PRE_START_S)
        self._runs(uid, container)
        return made

    def forget(self, uid: str) -> None:
        """The pod's devices are free again, while its containers live on: it was deleted with no grace. The checkpoint names it
        until something is allocated again."""
        self.made = [made for made in self.made if made.uid != uid]

    def end(self, uid: str) -> None:
        """The pod's devices are free again, nothing of it runs, and something was allocated since."""
        self.forget(uid)
        self.save()
        if self.cgroups is not None:
            shutil.rmtree(self.cgroup(uid), ignore_errors=True)

    def cgroup(self, uid: str) -> Path:
        """Of a pod."""
        assert self.cgroups is not None, "there are none"
        return self.cgroups / "kubepods" / f"pod{uid}"

    def _runs(self, uid: str, container: str) -> None:
        """A process, until the pod ends."""
        if self.cgroups is not None:
            folder = self.cgroup(uid) / container
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").write_text("41\n")

    def save(self) -> None:
        """The checkpoint, as 1.20 and later write it."""
        listed = [(made.uid, made.container, made.ids, made.answer) for made in self.made]
        # Under another name first, as the kubelet writes it: never half of it, and another file each time.
        part = self.folder / f".{CHECKPOINT}"
        part.write_text(checkpoint(listed, [(*other, b"") for other in self.others]))
        part.replace(self.folder / CHECKPOINT)


Saved = tuple[str, str, list[str], bytes]
"""Pod uid, container, device ids, and the plugin's answer."""


def checkpoint(entries: Iterable[Saved], others: Iterable[Saved] = ()) -> str:
    """``kubelet_internal_checkpoint``; ``others``: of NVIDIA's device plugin."""
    found = [
        {
            "PodUID": uid, "ContainerName": name, "ResourceName": resource, "DeviceIDs": {"-1": ids},
            "AllocResp": base64.b64encode(answer).decode(),
        }
        for resource, some in ((names.MEM, entries), ("nvidia.com/gpu", others))
        for uid, name, ids, answer in some
    ]  # fmt: skip
    return json.dumps({"Data": {"PodDeviceEntries": found, "RegisteredDevices": {}}, "Checksum": 0})


@asynccontextmanager
async def kubelet_in(folder: Path) -> AsyncIterator[FakeKubelet]:
    """One that is not started yet, and ended in any case."""
    kubelet = FakeKubelet(folder)
    try:
        yield kubelet
    finally:
        await kubelet.crash()
