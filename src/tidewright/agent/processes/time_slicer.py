"""Ranks that share a GPU: whether its memory holds them all, and if not, which thread swaps them.

One thread per such device gives time slices (``checkpoint.cuda.swap``). It runs while a gang is being quiesced, as no rank
gets there without its device, and while ranks end; it is stopped from the quiesced state until they are released.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

from ...base.errors import WorldError
from ...base.units import SECOND, format_duration
from ...checkpoint.cuda.checkpoint import CudaCheckpoint, DeviceStateLost
from ...checkpoint.cuda.driver import GpuDriver, pids_of
from ...checkpoint.cuda.swap import LOOK_S, DeviceSharer, SwapTimeSlicer, share_mode
from ...checkpoint.processes import alive
from ...checkpoint.protocol import RankHandle
from ...devices.protocol import Backend
from .attempt import Attempt
from .rank_files import read_inside

log = logging.getLogger(__name__)

LIFE_US = SECOND // 10
"""How often it is looked whether ranks have ended; until then a time slice may go to a dead rank."""
REACH_LIMIT = 2**16
"""Bytes of ``reach.json`` that are read."""
RETRY_S = 1.0
PATIENCE_US = 60 * SECOND
"""How long swaps may fail (the host has no memory, say) before the ranks are given up: they stand still meanwhile."""

Lost = Callable[[str], None]
"""Called, in another thread, with the reason why the ranks of a device cannot run on."""


def now_us() -> int:
    """Microseconds that only grow."""
    return time.monotonic_ns() // 1000


def held(backend: Backend, pids: Collection[int]) -> int:
    """Bytes of device memory that these processes hold. Raises WorldError when the devices cannot be asked.

    Where the driver does not tell what a process holds, it is taken to be all that is in use on its device.
    """
    total = 0
    for load in backend.usage():
        mine = set(pids) & set(load.processes)
        total += load.memory_used if mine - set(load.held) else sum(load.held[pid] for pid in mine)
    return total


class TimeSlicer:
    """For the GPUs of a node, of ``memory`` bytes each."""

    def __init__(self, memory: int, driver: GpuDriver | None) -> None:
        self._memory, self._driver = memory, driver
        self._queues: dict[tuple[Path, int], DeviceQueue] = {}

    def share_modes(self, attempt: Attempt) -> dict[int, str]:
        """How each rank that shares its device does so: ``lock`` or ``swap``. What was never measured takes no room."""
        on: dict[int, list[int]] = defaultdict(list)
        for rank, devices in attempt.record.devices.items():
            for device in devices:
                on[device].append(rank)
        found: dict[int, str] = {}
        for ranks in on.values():
            if len(ranks) > 1:
                how = share_mode([attempt.record.needs.get(rank, 0) for rank in ranks], self._memory)
                found.update({rank: how for rank in ranks if found.get(rank) != "swap"})
        return found

    def time_sliced(self, attempt: Attempt) -> frozenset[int]:
        """The ranks here whose share mode is ``swap``, and which so may be without their devices."""
        return frozenset(rank.number for rank in attempt.living() if read_share_mode(rank.directory / "box") == "swap")

    def start(self, attempt: Attempt, lost: Lost) -> None:
        """Start time slicing of the ranks that share by swapping. Harmless where it runs."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in sorted(self.time_sliced(attempt)):
            groups[attempt.record.devices.get(rank, ())].append(rank)
        handles = {handle.rank: handle for handle in attempt.handles()}
        rank_dirs = attempt.rank_dirs()
        for ranks in groups.values():
            key = (rank_dirs[ranks[0]], ranks[0])
            if self._driver is not None and not (key in self._queues and self._queues[key].running):
                seats = {rank: (handles[rank], rank_dirs[rank], attempt.record.needs.get(rank, 0)) for rank in ranks}
                self._queues[key] = DeviceQueue(self._driver.cuda, seats, self._memory, lost)

    def stop(self, attempt: Attempt) -> None:
        """Stop time slicing until ``start``; blocks for as long as a swap takes."""
        rank_dirs = set(attempt.rank_dirs().values())
        self._end([key for key in self._queues if key[0] in rank_dirs])

    def close(self) -> None:
        """Stop all time slicing: the next agent starts it again."""
        self._end(list(self._queues))

    def _end(self, keys: list[tuple[Path, int]]) -> None:
        for queue in [self._queues.pop(key) for key in keys]:
            queue.stop()


class DeviceQueue:
    """The ranks of one device: handle, rank directory and need in bytes of each."""

    def __init__(
        self,
        cuda: Callable[[], CudaCheckpoint],
        seats: dict[int, tuple[RankHandle, Path, int]],
        memory: int,
        lost: Lost,
    ) -> None:
        self._cuda, self._seats, self._memory, self._lost = cuda, seats, memory, lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="time-slices", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Returns when nothing is being swapped any more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        well = now_us()
        while not self._over.is_set():
            began = now_us()
            try:
                self._give_slices()
                return
            except DeviceStateLost as error:
                self._lost(str(error))
                return
            except WorldError as error:
                log.warning("time slices of a device: %s", error)
                well = now_us() if now_us() - began > PATIENCE_US // 10 else well
                if now_us() - well > PATIENCE_US:
                    self._lost(f"no swap has succeeded for {format_duration(PATIENCE_US)}: {error}")
                    return
            self._over.wait(RETRY_S)

    def _give_slices(self) -> None:
        """Give time slices until all ranks have ended, or ``stop``. All are swapped out first."""
        self._forget_dead()
        sharers = [
            DeviceSharer(rank, tuple(pids_of([at])), rank_dir, need)
            for rank, (at, rank_dir, need) in self._seats.items()
        ]
        cuda, looked = self._cuda(), now_us()
        cuda.suspend(pid for sharer in sharers for pid in sharer.pids)
        time_slicer = SwapTimeSlicer(cuda, sharers, self._memory, now_us)
        time_slicer.begin(saved=True)
        while self._seats and not self._over.wait(LOOK_S):
            if now_us() - looked >= LIFE_US:
                looked = now_us()
                for rank in self._forget_dead():
                    time_slicer.end(rank)
            time_slicer.step()

    def _forget_dead(self) -> list[int]:
        dead = [rank for rank, (at, _, _) in self._seats.items() if not alive(at.pid, at.start)]
        for rank in dead:
            del self._seats[rank]
        return dead


def read_share_mode(rank_dir: Path) -> str:
    """The share mode of a rank; empty for one that has none, or whose file cannot be read."""
    try:
        words = json.loads(read_inside(rank_dir, "reach.json", REACH_LIMIT))
    except (OSError, ValueError):
        return ""
    return str(words.get("turns", "")) if isinstance(words, dict) else ""
