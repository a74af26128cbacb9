"""Host memory of frozen jobs: their processes stay, so it stays in use on their node while devices and CPUs are released.

It is counted on both boards as a part without devices (``JobRecord.frozen_memory``), from the moment the job is on its way to be
frozen until its devices are occupied for it again or its processes are gone. What is reserved for the resumption has no memory
of its own, since it would be counted twice; the allocation that comes of it has.
"""

from __future__ import annotations

from ..model.board import Board
from ..model.job_record import JobRecord
from ..model.node import Allocation, Part, PartResources, without_memory


def keep(board: Board, record: JobRecord) -> None:
    """The job is being frozen: its memory stays committed. Its allocation has just been released on the board of what is."""
    memory = [(part.node, part.resources.memory) for part in record.allocation or () if part.resources is not None]
    held = tuple(Part(node, 0, 1000, PartResources(memory=size)) for node, size in memory if size)
    if held and record.frozen_memory is None:
        board.acquire(held)
        record.frozen_memory = held


def settle(board: Board, phys: Board, record: JobRecord, frozen: bool) -> None:
    """The job has just released its devices, and is frozen or gone."""
    if record.frozen_memory is None:
        return
    if frozen:
        phys.acquire(record.frozen_memory)
    else:
        board.release(record.frozen_memory)
        record.frozen_memory = None


def drop(board: Board, phys: Board, record: JobRecord) -> None:
    """No process of the job is left, or its memory is counted otherwise from now on."""
    if record.frozen_memory is None:
        return
    board.release(record.frozen_memory)
    if record.allocation is None:
        phys.release(record.frozen_memory)
    record.frozen_memory = None


def without(record: JobRecord, allocation: Allocation) -> Allocation:
    """What is to be reserved of an allocation: memory that the job has kept is not."""
    return allocation if record.frozen_memory is None else without_memory(allocation)
