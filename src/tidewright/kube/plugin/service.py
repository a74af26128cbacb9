"""``tide kube device-plugin``: a plugin that is served, registered, kept registered, and heard of by the extender."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import TideError, UsageError, WorldError
from ...devices.excess import Rules
from ..allocation.units import UnitSize, check_message
from ..client import timestamps
from ..client.api import KubeClient
from ..client.credentials import Cluster
from ..client.timestamps import CDI_FROM, release
from ..isolation.gpu_processes import by_pod
from ..isolation.isolation_levels import IsolationSettings, ladder
from ..isolation.memory_guard import LEVEL_REASON, PodMemoryGuard, level
from ..node.cdi import CdiFiles
from ..node.cgroups import Cgroups
from ..node.gpu_units import NodeGpus
from ..node.gpus import Gpus, news
from ..node.kubelet import FOLDER, KubeletFolder
from ..node.node_api import NodeApi
from ..node.node_pods import NodePods
from ..node.proto import grpc_module
from ..node.tasks import run_until_stopped
from ..node.v1beta1 import messages
from ..objects import names, usage
from ..objects.gpu_inventory import publish
from ..objects.heartbeat import EVERY_S, PluginHeartbeat, written
from ..objects.log import Log
from ..objects.metadata import Json, labels_of
from .allocation_file import NAME as ALLOCATIONS
from .allocation_file import AllocationFile
from .device_plugin import DevicePlugin
from .gpu_admission import GpuAdmission
from .registration import KubeletRegistration, PrivateEndpoint, Registration

BINDINGS = ("auto", "late", "match")
FAREWELL_S = 3.0
RETELL_S = (0.5, 30.0)
"""First and longest pause before a heartbeat that could not be written is tried again; doubled."""
RECONNECT_S = 2.0
"""So long a proxy may take to find a plugin that was started anew before the node counts as not registered."""
PATIENCE_S = 3.0
"""So long the API server may take to show the node before the plugin registers without it."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """``node``: its name in the API. ``behind_proxy``: a proxy registers with the kubelet, not we. ``poll_s``: how often the
    kubelet's folder is looked at. ``settle_s``: how long CDI files are kept after the last PreStartContainer
    when the plugin ends, for the runtime to read; the kubelet retries a container whose file is missing. ``end_s``: how long
    calls in progress may take when the plugin ends."""

    node: str
    split: UnitSize = field(default_factory=UnitSize)
    binding: str = "auto"
    behind_proxy: bool = False
    folder: Path = FOLDER
    cdi: Path = Path("/var/run/cdi")
    rules: Rules = field(default_factory=Rules)
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    beat_s: float = EVERY_S
    health_s: float = 5.0
    watch_s: float = 10.0
    poll_s: float = 1.0
    settle_s: float = 2.0
    end_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.node:
            raise UsageError("the node's name is not known", "set NODE_NAME (in a DaemonSet from spec.nodeName)")
        if self.binding not in BINDINGS:
            raise UsageError(f"binding {self.binding!r} does not exist", f"choose one of {', '.join(BINDINGS)}")


class PluginService:
    """Runs until ``stop`` is called. ``gpus``: already open, so that a node without any says so at the start."""

    def __init__(self, cluster: Cluster, settings: PluginSettings, gpus: Gpus, log: Log) -> None:
        grpc_module()
        messages()
        self.settings, self.gpus, self.log = settings, gpus, log
        self.folder = KubeletFolder(settings.folder)
        self.folder.check()
        found = {gpu.index: gpu for gpu in gpus.found()}
        units = check_message({at: gpu.memory_mib for at, gpu in found.items()}, settings.split)
        self.api = KubeClient(cluster)
        node_api = NodeApi(self.api, settings.node, log)
        pods = NodePods(self.api, settings.node)
        self.ladder = ladder(gpus, settings.isolation, log)
        self.ladder.select()
        node_gpus = NodeGpus(settings.node, found, units, settings.split)
        file = AllocationFile(settings.cdi / ALLOCATIONS, settings.split.unit_mib)
        cgroups, cdi_files = Cgroups(settings.isolation.cgroups), CdiFiles(settings.cdi)
        self._sweep(file, cdi_files)
        self.admission = GpuAdmission(found, units, pods, self.folder, file, cgroups, log)
        self.plugin = DevicePlugin(
            node_gpus, self.folder, cdi_files, pods, node_api, self.ladder, self.admission, woken=self._wake
        )
        self.memory_guard = PodMemoryGuard(
            gpus, node_gpus, pods, node_api, log, settings.rules, self.folder.whole_gpus, self._orphans
        )
        served = PrivateEndpoint if settings.behind_proxy else KubeletRegistration
        self.registration: Registration = served(self.folder, self.plugin, log, settings.poll_s)
        self._stop, self._due = asyncio.Event(), asyncio.Event()
        self._known, self._binds, self._level = False, "", ""
        self._seen_cgroups = False

    def _sweep(self, *folders: AllocationFile | CdiFiles) -> None:
        for one in folders:
            try:
                one.sweep()
            except WorldError as error:
                self.log(str(error))

    def stop(self) -> None:
        """Say that the node is not served any more, then end."""
        self._stop.set()

    async def run(self) -> None:
        """Raises UsageError for what will never work; all else is tried again."""
        async with self.api:
            await self._know_node()
            await self._look_at_health()
            loops = (
                self.registration.run, self._keep_told, self._keep_healthy, self._keep_guarded, self._keep_marked,
                self._keep_matched,
            )  # fmt: skip
            try:
                await run_until_stopped(self._stop, *(loop() for loop in loops), self.plugin.pods.reflector.run())
            finally:
                await self._farewell()

    def _wake(self) -> None:
        self._due.set()

    async def _know_node(self) -> None:
        """How containers are bound, by what the node says of itself. A node that cannot be read counts as a new one until it
        can: the kubelet must not wait for the API server, or every pod it admits meanwhile fails for good."""
        node: Json = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                node = await self.plugin.node_api.read_node()
            self._known = True
        except (TideError, TimeoutError) as error:
            if self._binds:
                return
            self.log(f"node {self.settings.node} cannot be read: {error or 'no answer'}")
        late, why = late_binding(node)
        if self.settings.binding != "auto":
            late, why = self.settings.binding == "late", "as set by --binding"
        self.plugin.late, self.plugin.cgpu_off = late, labels_of(node).get(names.CGPU_LABEL) == "true"
        binds = "CDI, late" if late else "size"
        if binds != self._binds:
            self.log(f"binds containers by {binds} ({why})")
            self._binds = binds
            self.registration.renew()  # the kubelet must hear which calls to make

    async def _keep_told(self) -> None:
        """The node's table and the heartbeat, at once when the kubelet begins or ends to listen."""
        if self.settings.behind_proxy:
            await self._found_by_proxy()
        low_s, high_s = RETELL_S
        pause_s = low_s
        while True:
            self._due.clear()
            if not self._known:
                await self._know_node()
            accepted = await self._tell_node(self.plugin.listening > 0)
            self._check_cgroups()
            # A heartbeat that did not arrive leaves the last one, which may say the contrary.
            pause_s = low_s if accepted else min(2 * pause_s, high_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.beat_s if accepted else min(pause_s, self.settings.beat_s)):
                    await self._due.wait()

    def _check_cgroups(self) -> None:
        """Once the kubelet runs, as it makes them at its start. With late binding the admission reports it when it matters."""
        if self._seen_cgroups or self.plugin.late or not self.plugin.listening:
            return
        self._seen_cgroups = True
        if not self.admission.cgroups.visible():
            effect = "a deleted pod counts as exited at once, so its GPU may be given away while its processes run"
            self.log(f"no cgroups of pods below {self.settings.isolation.cgroups}: {effect}")

    async def _found_by_proxy(self) -> None:
        """Before the first heartbeat: the kubelet, which a proxy keeps for us, need not have missed anything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECONNECT_S):
                while not self.plugin.listening:
                    self._due.clear()
                    await self._due.wait()

    async def _tell_node(self, registered: bool) -> bool:
        """Whether the heartbeat arrived."""
        plugin, node_api = self.plugin, self.plugin.node_api
        heartbeat = PluginHeartbeat(registered, timestamps.now(), self.settings.beat_s, boot_id(), plugin.late)
        inventory = publish(plugin.node_gpus.cards(plugin.faults, self.memory_guard.foreign))
        notes: dict[str, str | None] = {
            names.TABLE: inventory,
            names.PLUGIN: written(heartbeat),
            names.LEVEL: self.level(),
        }
        notes[names.USE] = None if self.memory_guard.used is None else usage.written(self.memory_guard.used)
        accepted = await node_api.node_notes(notes)
        await node_api.count(len(plugin.node_gpus.gpus))
        await node_api.unhealthy(plugin.faults)
        return accepted

    async def _keep_healthy(self) -> None:
        while True:
            await asyncio.sleep(self.settings.health_s)
            await self._look_at_health()

    def level(self) -> str:
        """What keeps pods to their shares on this node now."""
        return level(self.ladder, self.memory_guard)

    async def _keep_guarded(self) -> None:
        """Limits are set again at each look: by then a restarted driver or daemon may have forgotten them. Before it is known
        which pods are here, nothing is taken from anybody and nothing counted as foreign."""
        await self._say_level()
        await self.plugin.pods.reflector.synced.wait()
        while True:
            changed = await asyncio.to_thread(self.ladder.select)
            await self.admission.refresh(follow=not self.plugin.late)
            await asyncio.to_thread(self.ladder.hold, by_pod(self.memory_guard.holdings()))
            if await self.memory_guard.look() or changed:
                self._wake()
            await self._say_level()
            await asyncio.sleep(self.settings.watch_s)

    def _orphans(self) -> dict[str, Mapping[int, int]]:
        return {uid: one.units for uid, one in self.admission.orphans.items()}

    async def _keep_marked(self) -> None:
        await self.plugin.marker.run(lambda: self.plugin.late)

    async def _keep_matched(self) -> None:
        await self.plugin.matcher.run(lambda: not self.plugin.late)

    async def _say_level(self) -> None:
        if self.level() != self._level:
            self._level = self.level()
            text = f"isolation: {self._level}{self.ladder.why_no_more()}"
            self.log(text)
            await self.plugin.node_api.node_event(LEVEL_REASON, text)

    async def _look_at_health(self) -> None:
        faults, before = await asyncio.to_thread(self.gpus.faults), self.plugin.faults
        for line in news(before, faults):
            self.log(line)
        if self.plugin.set_faults(faults):
            self._wake()

    async def _farewell(self) -> None:
        """First the extender hears of it, then the kubelet. The CDI files are removed: the kubelet calls PreStartContainer
        before each start of a container, which writes its file again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._tell_node(registered=False)
        await self.registration.end(self.settings.end_s)
        await asyncio.sleep(self.admission.unsettled_s(self.settings.settle_s))
        try:
            self.log(f"removed {self.plugin.cdi_files.keep_only(())} CDI files")
        except OSError as error:
            self.log(f"CDI files stay: {error}")
        await self.admission.refresh(follow=not self.plugin.late)
        if count := len(self.admission.allocated):
            self.log(f"{self.admission.file.path} stays: {count} pods have GPUs")


def boot_id() -> str:
    """The kernel's, which a node shows as ``bootID``; empty where it cannot be read."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def late_binding(node: Json) -> tuple[bool, str]:
    """Whether a node's runtime resolves CDI names given by a device plugin, and why.

    Sources: CDI_FROM for the kubelet; containerd resolves them by default since 2.0, CRI-O since 1.24.
    """
    info = ((node.get("status") or {}).get("nodeInfo")) or {}
    kubelet, runtime = str(info.get("kubeletVersion", "")), str(info.get("containerRuntimeVersion", ""))
    name, _, version = runtime.partition("://")
    needed = {"containerd": (2, 0), "cri-o": (1, 24)}.get(name)
    if not runtime or not kubelet:
        return True, "the node does not say what it runs"
    if needed is None or release(version) < needed or release(kubelet) < CDI_FROM:
        return False, f"kubelet {kubelet} with {runtime} does not resolve CDI names"
    return True, f"kubelet {kubelet} with {runtime}"
