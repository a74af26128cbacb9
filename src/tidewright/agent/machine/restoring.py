"""Bringing ranks back from full images."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...wire.agent import ImageReport
from .actions import (
    ActionFailed,
    CommitRecord,
    FailRendezvous,
    KillRanks,
    SaveRecord,
    StartTimeSlices,
    StopTimeSlices,
    UnwatchRanks,
    WriteEndpoints,
)
from .attempt import ENDS, AttemptState
from .image_actions import (
    DiscardRaw,
    EnterGeneration,
    HasRaw,
    MakeGeneration,
    ReadyImages,
    RestoreDevices,
    RestoreRanks,
)
from .outcomes import KILLED

Why = Generator[Any, Any, str]
"""Ends in why not, or empty."""


def restore(state: AttemptState) -> Why:
    """Bring all ranks here back from images of ``record.serial``; they are still quiesced then.

    A raw image that turns out damaged gives way to the store's copy, or that of another node.
    """
    record = state.record
    if state.restored:  # by an earlier agent
        state.emit(StartTimeSlices())
        return ""
    state.restoring = True
    try:
        why = yield from _restore_any(state)
    finally:
        state.restoring = False
    if not why:
        record.whole = record.generation
        state.emit(SaveRecord())
    return why


def _restore_any(state: AttemptState) -> Why:
    raw = yield HasRaw(state.record.serial, state.args.image_job)
    why = yield from _restore(state)
    taken = state.record.last_image
    if raw and taken is not None and taken.lost:
        state.record.last_image = None
        state.log("error", f"{why}; trying another copy")
        again = yield from _restore(state)
        why = (yield from _lost(state, f"{why}; {again}")) if again else ""
    if why:
        state.outcomes.update(dict.fromkeys(state.numbers, KILLED))  # those of a new generation were not even started
        state.emit(FailRendezvous(why))
    return why


def _restore(state: AttemptState) -> Why:
    serial = state.record.serial
    yield from _remove_previous_try(state)
    try:
        state.record.needs = yield ReadyImages(serial, state.args.image_job)
        yield from _renew(state)
        yield WriteEndpoints(state.record.rendezvous_generation)
    except ActionFailed as error:
        return (yield from _lost(state, str(error))) if error.kind == "damaged image" else str(error)
    if state.record.ending:
        return ENDS
    state.outcomes.update((yield RestoreRanks(serial)))
    failed = [state.outcomes[rank] for rank in state.numbers if rank in state.outcomes]
    if not failed:
        return (yield from _restore_devices(state))
    yield from _remove_previous_try(state)
    worst = next((each for each in failed if each.image), failed[0])
    if worst.image:
        return (yield from _lost(state, worst.error))
    return worst.error or "a rank ended while it was restored"


def _renew(state: AttemptState) -> Generator[Any, Any, None]:
    """The next generation of the ranks. Its directories count from the moment the record names it."""
    record, args = state.record, state.args
    made = yield MakeGeneration(record.serial, record.generation + 1)
    record.generation += 1
    record.devices = {seat.rank: seat.devices for seat in args.ranks}
    record.cpus = made.cpus
    record.share_limits = made.share_limits or record.share_limits
    record.peers = args.peers
    yield CommitRecord()
    state.emit(EnterGeneration())
    state.outcomes.clear()
    state.ended_in_dump.clear()


def _restore_devices(state: AttemptState) -> Why:
    try:
        yield RestoreDevices()
    except ActionFailed as error:
        yield from _remove_previous_try(state)
        return str(error)
    state.emit(StartTimeSlices())
    return ""


def _remove_previous_try(state: AttemptState) -> Generator[Any, Any, None]:
    """Nothing of an earlier try to bring the ranks back may live on."""
    yield StopTimeSlices()
    yield KillRanks(state.numbers)
    state.emit(UnwatchRanks(state.numbers))
    state.outcomes.update(dict.fromkeys(state.numbers, KILLED))


def _lost(state: AttemptState, why: str) -> Why:
    """The image is damaged: it is not tried again, and never taken for a whole one."""
    serial = state.record.serial
    state.record.last_image = ImageReport(serial=serial, lost=why)
    yield DiscardRaw(serial, state.args.image_job)
    return why
