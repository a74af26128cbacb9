"""Saving the ranks of an attempt and bringing them back, with whatever they have on devices. Blocks; for threads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import WorldError
from ..checkpoint.criu import CriuDriver, DumpReport
from ..checkpoint.gpu import GpuDriver, facts_of, seat_of
from ..checkpoint.processes import members
from ..checkpoint.space import anonymous_bytes
from ..model.node import NodeSpec
from .attempt import Attempt
from .boxes import gather, pack
from .turns import Lost, Turns


class Saves:
    """``driver`` takes the images on ``node``; ``turns`` is for a node of GPUs, None on others."""

    def __init__(self, node: NodeSpec, driver: CriuDriver | GpuDriver, turns: Turns | None) -> None:
        self._uuids, self.driver, self._turns = node.uuids, driver, turns

    def take_turns(self, attempt: Attempt, lost: Lost) -> None:
        """Let ranks that share a device by swapping take turns from now on. Does not block."""
        if self._turns is not None:
            self._turns.start(attempt, lost)

    def rest(self, attempt: Attempt) -> None:
        """No turns until the next ``take_turns``."""
        if self._turns is not None:
            self._turns.stop(attempt)

    def measure(self, attempt: Attempt) -> dict[int, int]:
        """How much of their devices the ranks need, bytes, while they have it: the most that was seen."""
        found: dict[int, int] = {}
        if isinstance(self.driver, GpuDriver):
            for handle in attempt.handles():
                with contextlib.suppress(WorldError):  # then what was seen last holds
                    now, before = self.driver.holds(handle), attempt.memo.needs.get(handle.rank, 0)
                    found[handle.rank] = max(now, before)
        return found

    def dump(self, attempt: Attempt, directory: Path, *, leave_running: bool) -> DumpReport:
        """Images of the ranks, which stand still; turns rest afterwards. Raises as the driver's ``dump`` does."""
        self.rest(attempt)
        handles = attempt.handles()
        if isinstance(self.driver, GpuDriver):
            shared = self._by_turns(attempt)
            return self.driver.dump(handles, directory, leave_running=leave_running, by_turns=shared)
        return self.driver.dump(handles, directory, leave_running=leave_running)

    def undo(self, attempt: Attempt) -> None:
        """Whatever a dump has come to: processes run, and have their devices. Raises WorldError."""
        if isinstance(self.driver, GpuDriver):
            self.driver.let_run(attempt.handles(), self._by_turns(attempt))
        else:
            self.driver.let_run(attempt.handles())

    def need(self, attempt: Attempt) -> int:
        """Bytes that images of the ranks take on the disk at least, devices' memory included."""
        return anonymous_bytes(pid for handle in attempt.handles() for pid in members(handle)) + sum(
            attempt.memo.needs.values()
        )

    def facts(self, attempt: Attempt, rank: int, left: str) -> dict[str, Any]:
        """What must travel with a rank's image besides what CRIU knows; ``left``, where they met, with the first rank's,
        which is on the node where they meet."""
        box = attempt.boxes()[rank]
        return {
            "box": {name: pack(content) for name, content in gather(box)},
            **({"meeting": left} if rank == 0 else {}),
            **facts_of(self._uuids, self._of(attempt, rank)),
            "need": attempt.memo.needs.get(rank, 0),
        }

    def awaken(self, attempt: Attempt, facts: Mapping[int, Mapping[str, Any]]) -> None:
        """Processes have come back without devices: give them those they are to have. Raises WorldError; none has any."""
        if isinstance(self.driver, GpuDriver):
            seats = {rank: seat_of(each, self._of(attempt, rank)) for rank, each in facts.items()}
            self.driver.awaken(attempt.handles(), seats, self._by_turns(attempt))

    def _by_turns(self, attempt: Attempt) -> frozenset[int]:
        return self._turns.by_turns(attempt) if self._turns is not None else frozenset()

    def _of(self, attempt: Attempt, rank: int) -> list[str]:
        devices = attempt.memo.devices.get(rank, ())
        return [self._uuids[device] for device in devices if device < len(self._uuids)]
