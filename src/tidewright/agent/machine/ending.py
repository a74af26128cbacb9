"""Ends: on request, by themselves, for what they did, and because they live elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec.structs import replace

from ...model.failure import RankFailure
from ...model.job import Level
from .actions import (
    ActionFailed,
    DiscardImage,
    FindDeviceFault,
    KillRanks,
    ReadEnding,
    ReadLastLines,
    SaveRecord,
    StopTimeSlices,
    SweepRanks,
    TerminateRanks,
    TidyRank,
    UnwatchRanks,
    WatchRanks,
)
from .attempt import AttemptState
from .cuts import release
from .image_actions import DiscardRaw
from .outcomes import KILLED, SIGKILL_CODE, RankOutcome
from .scripts import Script

TRAPPED = 128 + 5
"""By SIGTRAP: how a rank ends in whose code a killed CRIU has left a trap: no fault of the program's (docs/why/criu.md)."""


def stop(state: AttemptState, *, images: bool) -> Script:
    """SIGTERM to whatever lives, and SIGKILL after the grace."""
    record = state.record
    if record.image is not None:
        if record.level != Level.FULL:
            yield DiscardImage(Level(record.level), record.image)
        elif images and record.last_image is not None and record.last_image.stored:
            yield DiscardRaw(
                record.serial
            )  # else it is the only copy, and the job's next attempt may come back from it
        record.image = None
    yield from unquiesce(state)
    yield TerminateRanks(state.living())
    if state.living():
        state.arm_kill(lambda: end_all(state))
    else:
        yield from settle(state)


def unquiesce(state: AttemptState) -> Generator[Any, Any, None]:
    """Ranks that were quiesced for a freeze run on."""
    if state.record.quiesced:
        state.record.quiesced = False
        yield from release(state, state.record.cut)


def end_all(state: AttemptState) -> Script:
    """Kill whatever lives, at once."""
    for rank in (yield SweepRanks(state.living())):
        state.log("error", f"rank {rank} survives SIGKILL")
    yield from settle(state)


def reap(state: AttemptState, rank: int, generation: int) -> Script:
    """A shim is dead: learn how its rank ended, and leave nothing of it alive."""
    if rank in state.outcomes or rank not in state.numbers or generation != state.record.generation:
        yield TidyRank(rank, generation)
        return
    alive, found = yield ReadEnding(rank)
    if alive:
        state.emit(WatchRanks((rank,)))
        return
    outcome = yield from _check_image(state, rank, found or RankOutcome(SIGKILL_CODE, lost=True))
    if outcome.lost or not (yield TidyRank(rank, generation)):
        yield SweepRanks((rank,))
        yield TidyRank(rank, generation)
    lines = (yield ReadLastLines(rank)) if state.failed_first(outcome) else ()
    if rank in state.outcomes or generation != state.record.generation:
        return
    state.outcomes[rank] = outcome
    if not state.suspended_to_image:
        state.note_failure(rank, outcome, lines)
        yield from settle(state)


def _check_image(state: AttemptState, rank: int, outcome: RankOutcome) -> Generator[Any, Any, RankOutcome]:
    """What CRIU or a fault of its device did to a rank is not its failure, whatever code it ended with."""
    if outcome.code == TRAPPED and state.may_be_trapped(rank):
        return RankOutcome(SIGKILL_CODE, lost=True)
    if outcome.outside and not state.record.ending:
        return replace(outcome, lost=True, cause="the init of its namespaces was killed")
    if outcome.code and not outcome.lost and not state.record.ending:
        why = yield FindDeviceFault(state.record.devices.get(rank, ()))
        return replace(outcome, lost=True, cause=why) if why else outcome
    return outcome


def settle(state: AttemptState) -> Generator[Any, Any, None]:
    """A rank has ended: report it, and conclude when it was the last."""
    if state.over or state.restoring or (state.suspended_to_image and state.record.ending != "stop"):
        return
    if state.living():
        if state.record.first_failure:
            state.update()
        return
    state.scripts.cancel(state.kill_timer)
    state.conclude()
    for rank in state.numbers:
        yield TidyRank(rank, state.record.generation)
    state.update()


def abort(state: AttemptState, why: str) -> Generator[Any, Any, None]:
    """Ranks that cannot have their devices back can only be ended: by the end of their shims the attempt is lost."""
    state.log("error", f"is ended: {why}")
    record, living = state.record, state.living()
    if state.over or not living:
        return
    record.error = why
    record.first_failure = record.first_failure or RankFailure(living[0], SIGKILL_CODE, why)
    state.emit(SaveRecord())
    yield StopTimeSlices()
    yield KillRanks(living)


def mark_lost(state: AttemptState, why: str) -> Script:
    """All processes are gone, and nothing is known of how they ended."""
    lost = RankOutcome(SIGKILL_CODE, lost=True, cause=why)
    state.record.image = None
    for rank in state.living():
        state.outcomes[rank] = lost
        state.note_failure(rank, lost)
    yield from settle(state)


def leave(state: AttemptState, drop: Callable[[], None]) -> None:
    """The attempt lives elsewhere: whatever is left of it here ends without a report; ``drop`` is called at the end."""
    state.end_by("stop")
    state.give_up_cuts()
    state.departing = True
    state.emit(SaveRecord())
    living = state.living()
    state.outcomes.update(dict.fromkeys(living, KILLED))
    state.emit(UnwatchRanks(living))
    state.queue(_leave(state, drop))


def _leave(state: AttemptState, drop: Callable[[], None]) -> Script:
    try:
        yield KillRanks(state.numbers)  # also those that were brought back since
    except ActionFailed as error:
        state.log("error", f"its ranks could not be ended: {error}")
    else:
        drop()
    if state.next is not None:
        state.next()
