"""Full images of ranks on GPUs: device memory goes to the host first, then the process is saved as any other.

Order of a save: the ranks stand still with NCCL torn down (the caller sees to that), lock, checkpoint, dump. Of a
restore: the process comes back without devices, restore onto the devices it gets, unlock. The dump must run
without CRIU's own CUDA plugin (an empty ``CRIU_LIBS_DIR``): it would resume the process before its devices are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...base.errors import WorldError
from ...base.units import counted, format_bytes
from ...model.job import Level
from ..criu.blockers import obstacles
from ..criu.driver import CriuDriver, DumpReport
from ..freeze import host_available, host_reserve
from ..processes import members
from ..protocol import Driver, Gang, GangImage, RankHandle, RestorePlacement
from ..verdict import DriverVerdict
from .checkpoint import CudaApi, CudaCheckpoint, DeviceStateLost, open_api, pairing

DEVICE_FILES = "the device /dev/nvidia"
"""How ``obstacles`` names a mapping or descriptor of nvidia0, nvidiactl, nvidia-uvm."""


class Dumper(Driver, Protocol):
    """A driver of full images of processes without devices: ``CriuDriver``."""

    def dump(self, handles: Sequence[RankHandle], directory: Path, *, leave_running: bool) -> DumpReport: ...

    def resume(self, handles: Sequence[RankHandle]) -> None: ...

    def finish(self, handles: Sequence[RankHandle]) -> None: ...

    def restore_spec(self, image: Path) -> dict[str, Any]: ...

    def check(self, image: Path) -> None: ...


class DeviceSeat(Struct, frozen=True, kw_only=True):
    """Where a rank was saved and where it comes back, devices by UUID."""

    node: tuple[str, ...]
    """All devices of the node that it was saved on."""
    had: tuple[str, ...]
    gets: tuple[str, ...]
    """Its own devices then and now, in the same order."""


class GpuDriver:
    """``inner`` saves the processes, ``devices`` tells the UUIDs of this node's devices.

    ``able`` tells whether ``inner`` could save a gang once its devices are released (as a rule ``beside_devices`` for
    CRIU, and for others what they say of CPU slots). ``in_use`` tells how many bytes of device memory processes hold:
    as much host memory must be free. ``living`` finds the processes that ``inner.restore`` has brought back, where they
    are others than those saved.
    """

    name = "cuda"
    level = Level.FULL

    def __init__(
        self,
        inner: Dumper,
        devices: Callable[[], Sequence[str]],
        *,
        api: Callable[[], CudaApi] = open_api,
        able: Callable[[Gang], DriverVerdict] | None = None,
        in_use: Callable[[Sequence[int]], int] = lambda pids: 0,
        available: Callable[[], int] = host_available,
        living: Callable[[GangImage], Sequence[RankHandle]] = lambda image: image.ranks,
    ) -> None:
        self._inner, self._devices = inner, devices
        self._open, self._in_use, self._available = api, in_use, available
        self._able = able or (beside_devices if isinstance(inner, CriuDriver) else None)
        self._living = living
        self._opened: CudaCheckpoint | None = None

    def cuda(self) -> CudaCheckpoint:
        """The driver, opened at the first use: an agent on a node without GPUs never loads it. Raises WorldError."""
        if self._opened is None:
            self._opened = CudaCheckpoint(self._open())
        return self._opened

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        """Refused without a driver that can, without what saves the process, and when the host is short of memory."""
        if kind == "cpu":
            return self._inner.can(gang, kind)
        verdict = self._able(gang) if self._able is not None else self._inner.can(gang, "cpu")
        if not verdict.ok:
            return verdict
        try:
            verdict = self.cuda().can()
            return verdict if not verdict.ok else self._has_room(gang)
        except WorldError as error:
            return DriverVerdict(False, str(error))

    def _has_room(self, gang: Gang) -> DriverVerdict:
        need, free = self._in_use(pids_of(gang.ranks)), self._available() - host_reserve()
        if need <= free:
            return DriverVerdict(True)
        has = format_bytes(max(0, free))
        return DriverVerdict(
            False, f"{format_bytes(need)} of device memory do not fit into the host's free memory ({has})"
        )

    def holds(self, handle: RankHandle) -> int:
        """Bytes of device memory that a rank has in use now. Raises WorldError when the devices cannot be asked."""
        return self._in_use(pids_of([handle]))

    def dump(
        self,
        handles: Sequence[RankHandle],
        directory: Path,
        *,
        leave_running: bool,
        time_shared: Collection[int] = (),
    ) -> DumpReport:
        """As ``inner.dump``. The ranks of ``time_shared`` have no devices afterwards: not all of them would fit.

        Raises WorldError with all ranks running as before (see CudaCheckpoint.suspend), DeviceStateLost also when they
        do but cannot have their devices back.
        """
        self.cuda().suspend(pids_of(handles))
        try:
            report = self._inner.dump(handles, directory, leave_running=leave_running)
        except (WorldError, OSError):
            self._resume_devices(handles, time_shared)
            raise
        if leave_running:
            self._resume_devices(handles, time_shared)
        return report

    def _resume_devices(self, handles: Iterable[RankHandle], time_shared: Collection[int]) -> None:
        pids = pids_of(handle for handle in handles if handle.rank not in time_shared)
        try:
            self.cuda().resume(pids)
        except DeviceStateLost:
            raise
        except WorldError as error:
            raise DeviceStateLost(str(error), tuple(pids)) from error

    def resume(self, handles: Sequence[RankHandle], time_shared: Collection[int] = ()) -> None:
        """Undo a dump that was killed: ranks run, and have their devices unless ``time_shared``. No effect when they do."""
        self._inner.resume(handles)
        self.cuda().resume(pids_of(handle for handle in handles if handle.rank not in time_shared))

    def finish(self, handles: Sequence[RankHandle]) -> None:
        """End the dumped processes; they hold no device any more."""
        self._inner.finish(handles)

    def restore_spec(self, image: Path) -> dict[str, Any]:
        """What the shim needs to bring a process back; ``restore_devices`` then gives it its devices."""
        return self._inner.restore_spec(image)

    def check(self, image: Path) -> None:
        """As ``inner.check``: what is checked does not depend on devices."""
        self._inner.check(image)

    def restore_devices(
        self, handles: Iterable[RankHandle], seats: Mapping[int, DeviceSeat], time_shared: Collection[int] = ()
    ) -> None:
        """Give restored processes their devices, before the cut is released.

        The ranks of ``time_shared`` are assigned theirs but not resumed on them yet. Raises WorldError with no process
        resumed.
        """
        now, pairs = tuple(self._devices()), dict[int, dict[str, str]]()
        every, later = list[int](), list[int]()
        for handle in handles:
            pids = pids_of([handle])
            (later if handle.rank in time_shared else every).extend(pids)
            if seat := seats.get(handle.rank):
                if len(seat.had) != len(seat.gets):
                    raise WorldError(
                        f"rank {handle.rank} had {counted(len(seat.had), 'device')} and cannot be restored on {len(seat.gets)}"
                    )
                wanted = dict(zip(seat.had, seat.gets, strict=True))
                pairs.update(dict.fromkeys(pids, pairing(wanted, seat.node, now)))
        self.cuda().move(later, pairs)
        self.cuda().resume(every, pairs)

    def save(self, gang: Gang) -> GangImage:
        """Devices first. All ranks are saved, or all run on."""
        pids = pids_of(gang.ranks)
        self.cuda().suspend(pids)
        try:
            image = self._inner.save(gang)
        except (WorldError, OSError):
            self.cuda().resume(pids)
            raise
        assert image is not None, "a dumper keeps an image"
        return replace(image, driver=self.name)

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        """Onto the devices it had. When they are refused it stays without them, and a later try may succeed."""
        self._inner.restore(replace(image, driver=self._inner.name), placement)
        self.cuda().resume(pids_of(self._living(image)))

    def discard(self, image: GangImage) -> None:
        self._inner.discard(replace(image, driver=self._inner.name))


def beside_devices(gang: Gang) -> DriverVerdict:
    """Whether CRIU could save the ranks if they had no NVIDIA device open; the driver closes these."""
    for handle in gang.ranks:
        if not handle.init:
            return DriverVerdict(False, f"rank {handle.rank} was started without namespaces of its own")
        mine = [pid for pid in members(handle) if pid != handle.init]
        if why := [each for each in obstacles(mine, handle.pid, handle.init) if DEVICE_FILES not in each]:
            return DriverVerdict(False, f"rank {handle.rank}: {why[0]}")
    return DriverVerdict(True)


def pids_of(handles: Iterable[RankHandle]) -> list[int]:
    """Host pids of everything that belongs to these ranks; who of them uses CUDA, the driver knows."""
    return [pid for handle in handles for pid in members(handle)]


def seat_of(facts: Mapping[str, Any], gets: Sequence[str]) -> DeviceSeat:
    """From what ``facts_of`` noted beside an image. Raises WorldError for a note that is none."""
    try:
        return msgspec.convert({**facts, "gets": gets}, DeviceSeat, strict=False)
    except msgspec.ValidationError as error:
        raise WorldError(f"the record of the devices of an image is damaged: {error}") from error


def facts_of(node: Sequence[str], had: Sequence[str]) -> dict[str, Any]:
    """What must travel with the image of a rank on GPUs, as JSON values: the node's devices, and its own."""
    return {"node": list(node), "had": list(had)}
