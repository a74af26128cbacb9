"""Saving the ranks of an attempt and bringing them back, with whatever they have on devices. Blocks; for threads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from ...checkpoint.criu.driver import CriuDriver, DumpReport
from ...checkpoint.cuda.driver import GpuDriver, facts_of, seat_of
from ...checkpoint.files.space import anonymous_bytes
from ...checkpoint.processes import members
from ...model.node import NodeSpec
from ..processes.attempt import Attempt
from ..processes.rank_dir import gather, pack
from ..processes.time_slicer import Lost, TimeSlicer


class CheckpointIO:
    """``driver`` takes the images on ``node``; ``time_slicer`` is for a node of GPUs, None on others."""

    def __init__(self, node: NodeSpec, driver: CriuDriver | GpuDriver, time_slicer: TimeSlicer | None) -> None:
        self._uuids, self.driver, self._time_slicer = node.uuids, driver, time_slicer

    def start_time_slices(self, attempt: Attempt, lost: Lost) -> None:
        """Start time slicing of ranks that share a device by swapping. Does not block."""
        if self._time_slicer is not None:
            self._time_slicer.start(attempt, lost)

    def stop_time_slices(self, attempt: Attempt) -> None:
        """No time slice begins until the next ``start_time_slices``."""
        if self._time_slicer is not None:
            self._time_slicer.stop(attempt)

    def measure(self, attempt: Attempt) -> dict[int, int]:
        """How much of their devices the ranks need, bytes, while they have it: the most that was seen."""
        found: dict[int, int] = {}
        if isinstance(self.driver, GpuDriver):
            for handle in attempt.handles():
                with contextlib.suppress(WorldError):  # then what was seen last holds
                    now, before = self.driver.holds(handle), attempt.record.needs.get(handle.rank, 0)
                    found[handle.rank] = max(now, before)
        return found

    def dump(self, attempt: Attempt, directory: Path, *, leave_running: bool) -> DumpReport:
        """Images of the ranks, which are quiesced; time slicing is stopped afterwards. Raises as the driver's ``dump`` does."""
        self.stop_time_slices(attempt)
        handles = attempt.handles()
        if isinstance(self.driver, GpuDriver):
            shared = self._time_sliced(attempt)
            return self.driver.dump(handles, directory, leave_running=leave_running, time_shared=shared)
        return self.driver.dump(handles, directory, leave_running=leave_running)

    def undo(self, attempt: Attempt) -> None:
        """Whatever a dump has come to: processes run, and have their devices. Raises WorldError."""
        if isinstance(self.driver, GpuDriver):
            self.driver.resume(attempt.handles(), self._time_sliced(attempt))
        else:
            self.driver.resume(attempt.handles())

    def need(self, attempt: Attempt) -> int:
        """Bytes that images of the ranks take on the disk at least, devices' memory included."""
        return anonymous_bytes(pid for handle in attempt.handles() for pid in members(handle)) + sum(
            attempt.record.needs.values()
        )

    def facts(self, attempt: Attempt, rank: int, left: str) -> dict[str, Any]:
        """What must travel with a rank's image besides what CRIU knows; ``left``, the keys of the
        rendezvous, with the first rank's, whose node hosts it."""
        rank_dir = attempt.rank_dirs()[rank]
        return {
            "box": {name: pack(content) for name, content in gather(rank_dir)},
            **({"meeting": left} if rank == 0 else {}),
            **facts_of(self._uuids, self._of(attempt, rank)),
            "need": attempt.record.needs.get(rank, 0),
        }

    def restore_devices(self, attempt: Attempt, facts: Mapping[int, Mapping[str, Any]]) -> None:
        """Processes have come back without devices: give them those they are to have. Raises WorldError; none has any."""
        if isinstance(self.driver, GpuDriver):
            seats = {rank: seat_of(each, self._of(attempt, rank)) for rank, each in facts.items()}
            self.driver.restore_devices(attempt.handles(), seats, self._time_sliced(attempt))

    def _time_sliced(self, attempt: Attempt) -> frozenset[int]:
        return self._time_slicer.time_sliced(attempt) if self._time_slicer is not None else frozenset()

    def _of(self, attempt: Attempt, rank: int) -> list[str]:
        devices = attempt.record.devices.get(rank, ())
        return [self._uuids[device] for device in devices if device < len(self._uuids)]
