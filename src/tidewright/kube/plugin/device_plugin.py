"""The device plugin's answers to the kubelet. Knows no sockets: methods take a request and give an answer.

Two ways to know whose container it is (docs/why/kube.md). Late: Allocate promises a CDI device, and PreStartContainer, when
the kubelet's checkpoint names pod and container, writes what is behind it. Match: Allocate finds a slot by size (see matcher).
A container never gets an environment that makes it fail later: what cannot be known is an error, with an event on the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ...base.errors import TideError, UsageError, WorldError
from ..allocation import units
from ..allocation.container_lookup import ContainerAllocation, Key, claim_of, gpus_of, guess, only, owner
from ..allocation.pod_usage import written
from ..allocation.slots import MOST_NAMED, NoSlot
from ..isolation.ladder import Grant, IsolationLadder, tenant_of
from ..node.cdi import CdiFiles, Edits, name_of, qualified
from ..node.cgroups import BUSY, UNKNOWN
from ..node.gpu_units import NodeGpus
from ..node.kubelet import KubeletFolder
from ..node.node_api import NodeApi
from ..node.node_pods import NodePods
from ..node.proto import grpc_module
from ..node.v1beta1 import HEALTHY, UNHEALTHY, messages
from ..objects import names
from ..objects.log import one_line
from ..objects.metadata import Json, annotations_of, phase, title
from ..objects.pod_request import ContainerRequest, check_marks, read_gpu_assignment, read_pod_request
from .assigned_marker import AssignedMarker
from .gpu_admission import GpuAdmission, PodGone
from .slot_matcher import SlotMatcher

REASON = "GPUShareFailed"
EVENTS_S = 0.5
"""So long a refusal waits for its events; the caller has a deadline."""


class DevicePlugin:
    """``late``: by CDI, else by matching. ``woken``: called when the kubelet begins or ends to listen."""

    def __init__(
        self, node_gpus: NodeGpus, folder: KubeletFolder, cdi_files: CdiFiles, pods: NodePods, node_api: NodeApi,
        ladder: IsolationLadder, admission: GpuAdmission, *, late: bool = True, woken: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.node_gpus, self.folder, self.cdi_files = node_gpus, folder, cdi_files
        self.pods, self.node_api = pods, node_api
        self.ladder, self.admission = ladder, admission
        self.marker = AssignedMarker(pods, node_api, self._level, lambda: admission.allocated, folder)
        self.late, self.cgpu_off, self._woken = late, False, woken
        self.faults: dict[int, str] = {}
        self.listening = 0
        """Open ListAndWatch streams: more than none means that the kubelet has our devices."""
        self._changed = asyncio.Event()
        self._done: set[Key] = set()
        self._one = asyncio.Lock()
        self.matcher = SlotMatcher(
            folder, pods, node_api, node_gpus.capacity(), node_gpus.indices(), self.marker.mark,
            self._lives, lambda: self.faults,
        )  # fmt: skip

    def _lives(self, uid: str) -> bool | None:
        """Whether a pod has processes; None where no cgroups can be seen."""
        state = self.admission.cgroups.state(uid)
        return None if state == UNKNOWN else state == BUSY

    def methods(self) -> dict[str, Callable[..., Any]]:
        """By their names in the API."""
        return {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list_and_watch,
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }

    def set_faults(self, faults: Mapping[int, str]) -> bool:
        """GPUs that must not be used, and why; whether that is news."""
        if dict(faults) == self.faults:
            return False
        self.faults = dict(faults)
        self.announce()
        return True

    def announce(self) -> None:
        """Send the devices again on every open stream."""
        self._changed.set()
        self._changed = asyncio.Event()

    def offers(self) -> str:
        """For people."""
        return f"{sum(self.node_gpus.units.values())} units of {names.MEM}"

    async def _options(self, request: Any, context: Any) -> Any:
        return messages().DevicePluginOptions(pre_start_required=self.late, get_preferred_allocation_available=True)

    async def _list_and_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.listening += 1
        self._woken()
        try:
            while True:
                changed = self._changed
                yield self._devices()
                await changed.wait()
        finally:
            self.listening -= 1
            self._woken()

    def _devices(self) -> Any:
        kinds = messages()
        devices = [
            kinds.Device(ID=one, health=UNHEALTHY if units.gpu_of(one) in self.faults else HEALTHY)
            for one in units.ids(self.node_gpus.units)
        ]
        return kinds.ListAndWatchResponse(devices=devices)

    async def _preferred(self, request: Any, context: Any) -> Any:
        """Ids of the GPU that was chosen, so that what the kubelet reports agrees with it. Only a wish: a wrong one costs
        nothing but that."""
        kinds, answer = messages(), messages().PreferredAllocationResponse()
        for asked in request.container_requests:
            size, must = asked.allocation_size, asked.must_include_deviceIDs
            if self.late:
                shares: Mapping[int, int] = _shares(guess(self.pods.known(), size, await self._handed()))
            else:
                shares = await self.matcher.likely(size, must)
            chosen = units.prefer(asked.available_deviceIDs, must, size, shares)
            answer.container_responses.append(kinds.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return answer

    async def _allocate(self, request: Any, context: Any) -> Any:
        kinds, answer = messages(), messages().AllocateResponse()
        async with self._one:
            for asked in request.container_requests:
                ids = list(asked.devices_ids)
                if self.late:
                    promised = [kinds.CDIDevice(name=qualified(name_of(ids)))]
                    one = kinds.ContainerAllocateResponse(envs=await self._hints(len(ids)), cdi_devices=promised)
                else:
                    edits, chosen = await self._matched(ids, context)
                    mounts = [
                        kinds.Mount(container_path=one.inside, host_path=one.host, read_only=not one.writable)
                        for one in edits.mounts
                    ]
                    notes = {names.UNITS: written(chosen)}
                    one = kinds.ContainerAllocateResponse(envs=edits.env, mounts=mounts, annotations=notes)
                answer.container_responses.append(one)
        return answer

    async def _pre_start(self, request: Any, context: Any) -> Any:
        pod: Json | None = None
        deadline_s = self.admission.deadline_s(context.time_remaining())
        try:
            if self.late:
                entries = await asyncio.to_thread(self.folder.allocated)
                entry = owner(entries, request.devices_ids, self.pods.ended())
                if entry is None:
                    raise WorldError("the kubelet's checkpoint names no container with these devices; it tries again")
                pod = await self.pods.by_uid(entry.uid)
                claim = claim_of(pod, entry.container)
                check_marks(pod)
                edits = await self._outfit(claim, len(entry.ids))
                await self.admission.admit(claim.assignment, deadline_s)
                await asyncio.to_thread(self.ladder.hold_one, entry.uid, self._mib(claim.assignment.units))
                self.cdi_files.put(name_of(entry.ids), {name_of(entry.ids): edits})
                # As it is by now: others were allocated meanwhile.
                entries = await asyncio.to_thread(self.folder.allocated)
                self.cdi_files.keep_only(name_of(one.ids) for one in entries)
                await self._mark(claim)
        except TideError as error:
            await self._refuse(context, error, () if pod is None or isinstance(error, PodGone) else (pod,))
        return messages().PreStartContainerResponse()

    async def _mark(self, claim: ContainerAllocation) -> None:
        """Once per pod."""
        key = (claim.assignment.uid, claim.part.name)
        if key not in self._done and annotations_of(claim.pod).get(names.ASSIGNED) != "true":
            await self.marker.mark(claim.assignment)
        self._remember(key)

    def _level(self, units: Mapping[int, int]) -> str:
        known = {gpu: count for gpu, count in units.items() if gpu in self.node_gpus.gpus}
        return self.ladder.level(self._grants(known))

    def _remember(self, key: Key) -> None:
        here = {str((pod.get("metadata") or {}).get("uid", "")) for pod in self.pods.known()}
        self._done = {old for old in self._done if old[0] in here} | {key}

    async def _hints(self, size: int) -> dict[str, str]:
        """The legacy variables, where there is only one pod it can be. CDI's replace them; which GPU to open is not among
        them, so a runtime without CDI opens none rather than a wrong one."""
        claim = only(self.pods.known(), size, await self._handed())
        if claim is None:
            return {}
        try:
            env = self._named(claim, size).env
        except TideError:
            return {}
        return {key: value for key, value in env.items() if key != names.VISIBLE}

    async def _matched(self, ids: Collection[str], context: Any) -> tuple[Edits, Mapping[int, int]]:
        """And units by GPU. The driver's limits come after: the kubelet allocates before it makes the pod's cgroup."""
        pods: tuple[Json, ...] = ()
        try:
            claim = await self.matcher.choose(len(ids), ids, context.time_remaining())
            pods = (claim.pod,)
            return await self._outfit(claim, len(ids)), gpus_of(claim)
        except TideError as error:
            pods = error.pods[:MOST_NAMED] if isinstance(error, NoSlot) else pods
            await self._refuse(context, error, pods or _suspects(self.pods.known(), len(ids)))
            raise

    async def _handed(self) -> set[Key]:
        """Containers that have their devices, by the kubelet's checkpoint, which outlives us."""
        try:
            return {(entry.uid, entry.container) for entry in await asyncio.to_thread(self.folder.allocated)}
        except WorldError:
            return set()

    async def _outfit(self, claim: ContainerAllocation, size: int) -> Edits:
        """All that a container gets. Raises UsageError when its GPU cannot be, WorldError when it cannot be isolated yet."""
        named, tenant = self._named(claim, size), tenant_of(claim.pod, claim.part.name, self._grants(gpus_of(claim)))
        return named.plus(await asyncio.to_thread(self.ladder.edits, tenant))

    def _grants(self, units: Mapping[int, int]) -> tuple[Grant, ...]:
        return tuple(Grant(self.node_gpus.gpus[gpu], mib) for gpu, mib in sorted(self._mib(units).items()))

    def _mib(self, units: Mapping[int, int]) -> dict[int, int]:
        """Of units by GPU."""
        return {gpu: count * self.node_gpus.split.unit_mib for gpu, count in units.items()}

    def _named(self, claim: ContainerAllocation, size: int) -> Edits:
        """Which GPUs it sees: variables and device files. Raises UsageError when its GPU cannot be."""
        held, chosen = claim.assignment, sorted(gpus_of(claim))
        if held.node != self.node_gpus.node:
            raise UsageError(f"pod {title(claim.pod)} was assumed for node {held.node}", "recreate it")
        if strange := [gpu for gpu in chosen if gpu not in self.node_gpus.gpus]:
            there = ", ".join(map(str, sorted(self.node_gpus.gpus)))
            raise UsageError(
                f"GPU {strange[0]} was chosen for pod {title(claim.pod)}, and this node has {there}", "recreate it"
            )
        gpus = [self.node_gpus.gpus[gpu] for gpu in chosen]
        env = {
            names.VISIBLE: ",".join(gpu.uuid for gpu in gpus),
            names.IDX: str(chosen[0]),
            names.POD: str(read_pod_request(claim.pod).total),
            names.CONTAINER: str(size),
            names.DEV: str(self.node_gpus.units[chosen[0]]),
        }
        if self.cgpu_off:
            env[names.CGPU_OFF] = "true"
        return Edits(env, tuple(dict.fromkeys(node for gpu in gpus for node in gpu.nodes)))

    async def _refuse(self, context: Any, error: TideError, pods: Iterable[Json]) -> None:
        """Ends the call with an error that says what to do."""
        text = one_line(error)
        self.node_api.log(text)
        with suppress(TimeoutError):
            async with asyncio.timeout(EVENTS_S):
                await asyncio.gather(*(self.node_api.event(pod, REASON, text) for pod in pods))
        await context.abort(grpc_module().StatusCode.FAILED_PRECONDITION, text)


def _shares(claim: ContainerAllocation | None) -> dict[int, int]:
    """Units by GPU, empty when unknown."""
    try:
        return gpus_of(claim) if claim is not None else {}
    except UsageError:
        return {}


def _suspects(pods: Iterable[Json], size: int) -> list[Json]:
    """Pods that a failed request may have been for: pending here, with a container of this size, and no GPU chosen."""
    return [pod for pod in pods if phase(pod) == "Pending" and _asks(pod, size)]


def _asks(pod: Json, size: int) -> bool:
    try:
        parts: tuple[ContainerRequest, ...] = read_pod_request(pod).parts
        return read_gpu_assignment(pod) is None and any(part.units == size for part in parts)
    except UsageError:
        return False
