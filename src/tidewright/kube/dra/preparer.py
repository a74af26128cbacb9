"""The driver's answers to the kubelet: claims prepared for the pods that are to start, and unprepared. Knows no sockets.

A claim's variables belong together: a program counts the GPUs it sees, and each variable is there once. So every CDI device
of a claim carries all that the claim gives, and a container that names one request of it gets the claim. First it is written
down what is allocated, then made, then reported: whatever happens between, preparing again ends well, and so does unpreparing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ...base.errors import TideError, UsageError, WorldError
from ...devices.excess import Place
from ..client.api import ApiError, KubeClient
from ..isolation.gpu_processes import by_pod
from ..isolation.ladder import ALL_SMS, Grant, IsolationLadder, Tenant
from ..node.cdi import CdiFiles, Edits
from ..node.gpus import Gpu
from ..node.partitions import MigPlacement, Partitions
from ..objects import names
from ..objects.log import Log, one_line
from ..objects.metadata import Json
from .claims import AllocatedDevice, ClaimRecords, PreparedClaim, cooperates, given_by, proper, uses
from .protocol import GROUP, messages
from .slices import device_name

KIND, PREFIX = "tidewright.io/dra", "tidewright-dra-"


class ClaimPreparer:
    """``node``: also the pool's name. ``gpus``: all but instances made on demand, which are ``partitions``'s. ``pods``: those
    on this node, as far as they are known."""

    def __init__(
        self, api: KubeClient, node: str, gpus: Iterable[Gpu], partitions: Partitions | None, ladder: IsolationLadder,
        cdi_files: CdiFiles, records: ClaimRecords, log: Log, pods: Callable[[], Iterable[Json]],
    ) -> None:  # fmt: skip
        self.api, self.node, self.partitions, self.ladder, self.log = api, node, partitions, ladder, log
        self.pods = pods
        self.cdi_files, self.records = cdi_files, records
        self.gpus = {device_name(gpu): gpu for gpu in gpus}
        self.placements: dict[str, MigPlacement] = {}
        if partitions is not None:
            self.placements = {one.name: one for one in partitions.placements()}
        self.given = records.load()
        self._one, self._holding = asyncio.Lock(), asyncio.Lock()
        self._bugs: set[str] = set()

    def methods(self) -> dict[str, Callable[..., Any]]:
        """By their names in the API."""
        return {"NodePrepareResources": self._prepare_all, "NodeUnprepareResources": self._unprepare_all}

    def holdings(self) -> dict[Place, int]:
        """MiB by pod and shared GPU."""
        pods, found = tuple(self.pods()), dict[Place, int]()
        for given in self.given.values():
            here = {str(pod["metadata"].get("uid")) for pod in pods if uses(pod, given)}
            for uid in sorted(here | set(given.pods)):
                for gpu, mib in self._mib(given).items():
                    found[uid, gpu] = found.get((uid, gpu), 0) + mib
        return found

    async def hold_all(self) -> None:
        """Limit all pods anew. Counted only while no other task sets limits, or an older count would end up over a newer one."""
        async with self._holding:
            await asyncio.to_thread(self.ladder.hold, by_pod(self.holdings()))

    async def _prepare_all(self, request: Any, context: Any) -> Any:
        kinds = messages()[1]
        answers = await asyncio.gather(*(self._prepare_one(claim) for claim in request.claims))
        found = {claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        return kinds.NodePrepareResourcesResponse(claims=found)

    async def _unprepare_all(self, request: Any, context: Any) -> Any:
        kinds, answers = messages()[1], {}
        for claim in request.claims:
            error = await self._unprepare_one(claim)
            answers[claim.uid] = kinds.NodeUnprepareResourceResponse(error=error)
        return kinds.NodeUnprepareResourcesResponse(claims=answers)

    async def _prepare_one(self, claim: Any) -> Any:
        kind = messages()[1].NodePrepareResourceResponse
        try:
            given = await self._read(claim)
            async with self._one:
                return kind(devices=await self._prepare(given))
        except TideError as error:
            return kind(error=self._log_error("prepare", claim, error))
        except Exception as error:
            return kind(error=self._bug("prepare", claim, error))

    async def _unprepare_one(self, claim: Any) -> str:
        try:
            uid = proper(claim.uid)
            async with self._one:
                await self._unprepare(uid)
        except TideError as error:
            return self._log_error("unprepare", claim, error)
        except Exception as error:
            return self._bug("unprepare", claim, error)
        return ""

    def _log_error(self, what: str, claim: Any, error: TideError) -> str:
        text = one_line(error)
        self.log(f"{what} {claim.namespace}/{claim.name}: {text}")
        return text

    def _bug(self, what: str, claim: Any, error: Exception) -> str:
        """A mistake of ours is this claim's alone. It is logged once: the kubelet repeats its request."""
        place = traceback.format_tb(error.__traceback__)[-1]
        if place not in self._bugs:
            self._bugs.add(place)
            self.log("".join(traceback.format_exception(error)))
        text = f"{type(error).__name__}: {error}; a mistake in tidewright, the driver's log has where"
        self.log(f"{what} {claim.namespace}/{claim.name}: {text}")
        return text

    async def _read(self, claim: Any) -> PreparedClaim:
        """As the API server has it; as it was written down when the API server says nothing. Raises TideError."""
        known = self.given.get(proper(claim.uid))
        name, namespace = quote(claim.name, safe=""), quote(claim.namespace, safe="")
        try:
            found = await self.api.get(f"{GROUP}/namespaces/{namespace}/resourceclaims/{name}")
        except ApiError as error:
            if error.status == 404:
                raise UsageError(f"claim {claim.namespace}/{claim.name} is gone", "recreate the pod") from error
            if known is None:
                raise
            return known
        except WorldError:
            if known is None:
                raise
            return known
        return given_by(found, claim.uid, self.node)

    async def _prepare(self, given: PreparedClaim) -> list[Any]:
        """Raises TideError; what is done by then stays for the next try, or for unpreparing."""
        self._check(given)
        self.records.put(given)
        self.given[given.uid] = given
        gpus = [await self._gpu(result) for result in given.results]
        edits = _visible(gpus).plus(await asyncio.to_thread(self.ladder.edits, self._tenant(given, gpus)))
        await self._hold(given)
        cdi = [f"{given.uid}-{at}" for at in range(len(given.results))]
        await asyncio.to_thread(self.cdi_files.put, given.uid, dict.fromkeys(cdi, edits))
        kind = messages()[1].Device
        return [
            kind(
                # A subrequest is ``request/subrequest`` here, and containers and the kubelet name the request.
                request_names=[result.request.partition("/")[0]], pool_name=self.node, device_name=result.device,
                cdi_device_ids=[f"{KIND}={name}"], share_id=result.share or None,
            )
            for result, name in zip(given.results, cdi, strict=True)
        ]  # fmt: skip

    def _check(self, given: PreparedClaim) -> None:
        """Every device exists on this node, and exclusive ones have no other claim. Raises UsageError, WorldError."""
        alone = {
            result.device: other
            for other in self.given.values()
            for result in other.results
            if other.uid != given.uid and not result.mib
        }
        for result in given.results:
            gpu = self.gpus.get(result.device)
            if gpu is None and result.device not in self.placements:
                there = ", ".join([*self.gpus, *self.placements][:8]) or "none"
                raise UsageError(f"{self.node} has no device {result.device}, but {there}", "recreate the pod")
            shared = gpu is not None and not gpu.whole
            if shared and not result.mib:
                raise UsageError(
                    f"the claim does not say how much of {result.device} it has",
                    "let DRAConsumableCapacity be on in kube-scheduler, and recreate the claim",
                )
            if gpu is not None and result.mib > gpu.memory_mib:
                raise UsageError(f"{result.mib} MiB of {result.device}, which has {gpu.memory_mib}", "recreate it")
            if not shared and result.device in alone:
                other = alone[result.device]
                raise WorldError(f"{result.device} is still prepared for claim {other.namespace}/{other.name}")

    async def _gpu(self, result: AllocatedDevice) -> Gpu:
        if (gpu := self.gpus.get(result.device)) is not None:
            return gpu
        assert self.partitions is not None, "placements are known only with what makes them"
        return await asyncio.to_thread(self.partitions.make, self.placements[result.device])

    def _tenant(self, given: PreparedClaim, gpus: Iterable[Gpu]) -> Tenant:
        """Parts of one GPU count together; of several GPUs the least share of multiprocessors, as there is one variable."""
        mib: dict[str, int] = {}
        percent: dict[str, int] = {}
        by_uuid = {}
        for result, gpu in zip(given.results, gpus, strict=True):
            by_uuid[gpu.uuid] = gpu
            mib[gpu.uuid] = mib.get(gpu.uuid, 0) + (result.mib or gpu.memory_mib)
            percent[gpu.uuid] = min(ALL_SMS, percent.get(gpu.uuid, 0) + (result.percent or ALL_SMS))
        grants = tuple(Grant(gpu, mib[gpu.uuid]) for gpu in _ordered(by_uuid.values()))
        shares = [percent[grant.gpu.uuid] for grant in grants if not grant.gpu.whole]
        # A claim is not of one container: what a level keeps on the node for it has the name of the claim, below its first pod.
        uid, percent_in_all = given.pods[0] if given.pods else given.uid, min(shares, default=ALL_SMS)
        return Tenant(uid, given.uid, grants, percent_in_all, cooperates=cooperates(self.pods(), given))

    async def _hold(self, given: PreparedClaim) -> None:
        """Limit the pods it is reserved for. The one that is to start has its cgroup; others may have none yet or any more,
        and are limited at the next look. Raises WorldError when none can be."""
        failed: list[WorldError] = []
        async with self._holding:
            held = by_pod(self.holdings())
            for uid in given.pods:
                try:
                    await asyncio.to_thread(self.ladder.hold_one, uid, held.get(uid, {}))
                except WorldError as error:
                    failed.append(error)
        if failed and len(failed) == len(given.pods):
            raise failed[0]

    def _mib(self, given: PreparedClaim) -> dict[int, int]:
        """By shared GPU."""
        found: dict[int, int] = {}
        for result in given.results:
            gpu = self.gpus.get(result.device)
            if gpu is not None and not gpu.whole:
                found[gpu.index] = found.get(gpu.index, 0) + result.mib
        return found

    async def _unprepare(self, uid: str) -> None:
        """Raises WorldError; then it is still known, and tried again."""
        given = self.given.get(uid)
        for result in given.results if given is not None else ():
            if (placement := self.placements.get(result.device)) is not None and self.partitions is not None:
                await asyncio.to_thread(self.partitions.destroy, placement)
        try:
            await asyncio.to_thread(self.cdi_files.keep_only, [other for other in self.given if other != uid])
        except OSError as error:
            raise WorldError(f"the CDI file of claim {uid} cannot be removed: {error}") from error
        self.records.drop(uid)
        with suppress(KeyError):
            del self.given[uid]


def _ordered(gpus: Iterable[Gpu]) -> list[Gpu]:
    """As a container sees them, and as the device plugin has them: instances after all GPUs."""
    return sorted(gpus, key=lambda gpu: (gpu.whole, gpu.index, gpu.uuid))


def _visible(gpus: Iterable[Gpu]) -> Edits:
    listed = _ordered({gpu.uuid: gpu for gpu in gpus}.values())
    nodes = tuple(dict.fromkeys(node for gpu in listed for node in gpu.nodes))
    return Edits({names.VISIBLE: ",".join(gpu.uuid for gpu in listed)}, nodes)
