"""Suspension by every level, and the way back from those below FULL."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...base.units import SECOND
from ...checkpoint.protocol import GANG_FREEZE_BOUND_US
from ...model.job import Level
from .actions import (
    ActionFailed,
    CheckLevel,
    CommitRecord,
    FindControlPages,
    ResumeByDriver,
    SaveRecord,
    SuspendByDriver,
    WatchRanks,
)
from .attempt import AttemptState
from .cuts import quiesce, refuse, release
from .ending import end_all, unquiesce
from .imaging import clear, count, finish, store, take_image
from .launching import write_endpoints
from .restoring import restore
from .scripts import Script


def suspend(state: AttemptState, node: str, *, images: bool, adopted: bool = False) -> Script:
    """By ``record.level``. An attempt that is to end meanwhile is left alone. ``adopted``: an earlier agent began it."""
    cut = state.record.cut
    try:
        if state.record.phase == "suspending":
            yield from _suspend_by_level(state, node, images=images, adopted=adopted)
    finally:
        state.end_cut(cut)


def _suspend_by_level(state: AttemptState, node: str, *, images: bool, adopted: bool) -> Script:
    record, began = state.record, state.scripts.now.mono_us
    refusal = yield from _refusal(state, adopted)
    if refusal:
        lower = {"max_level": int(Level.FREEZE), "max_level_why": refusal} if record.level == Level.FULL else {}
        state.update_unless_over(phase="running", error=refusal, **lower)
        if record.cut:
            yield from refuse(state, node, record.cut, record.peers, refusal)
    elif record.level == Level.FULL and images:
        yield from _suspend_to_image(state, node, began)
    else:
        yield from _suspend(state, node, Level(record.level), began)


def _refusal(state: AttemptState, adopted: bool) -> Generator[Any, Any, str]:
    """Why a suspension cannot be; empty for one that an earlier agent had begun to carry out: ranks that it froze would stay
    so. Asked for in the queue, like everything else: a rank whose image is being taken looks like one in a debugger."""
    begun = state.record.image is not None or state.record.ending or (adopted and state.record.level != Level.FULL)
    return "" if begun else (yield CheckLevel(state.record.level))


def _suspend(state: AttemptState, node: str, level: Level, began: int) -> Script:
    record = state.record
    if level in (Level.COOPERATIVE, Level.REQUEUE):
        state.end_by("cooperative")
        record.why = "asked to save its state and to release its devices"
        state.emit(SaveRecord())
    try:
        yield from _quiesce(state, node, level)
        image = yield SuspendByDriver(level)
    except ActionFailed as error:
        state.ended_cuts.append(record.cut)
        yield from unquiesce(state)
        state.update_unless_over(phase="running", error=str(error))
        return
    if image is None:
        state.arm_kill(lambda: end_all(state))
        return
    record.image = image
    if record.bounded and not record.quiesced and state.args.world_size > 1:
        record.hold_until = state.scripts.now.boot_s + GANG_FREEZE_BOUND_US / SECOND
        arm_hold(state)
    state.update_unless_over(phase="suspended", took_us=state.since(began))


def _quiesce(state: AttemptState, node: str, level: Level) -> Generator[Any, Any, None]:
    """Before a freeze: a gang that has no connections cannot time out, however long it is frozen."""
    record = state.record
    if level != Level.FREEZE or not (yield FindControlPages()):
        return
    try:
        yield from quiesce(state, node, record.cut)
    except ActionFailed as error:
        if not record.bounded:
            raise
        state.log("info", f"is frozen as it is: {error}")
        return
    record.quiesced = True
    try:
        yield CommitRecord()
    except ActionFailed as error:  # the next agent would not know that it must release them
        yield from unquiesce(state)
        raise ActionFailed(f"cannot record that its ranks are quiesced: {error}") from error


def arm_hold(state: AttemptState) -> None:
    """Thaw the ranks at ``record.hold_until``."""
    state.scripts.after(state.record.hold_until - state.scripts.now.boot_s, lambda: _hold_over(state))


def _hold_over(state: AttemptState) -> None:
    record = state.record
    if record.phase == "suspended" and 0 < record.hold_until <= state.scripts.now.boot_s + 0.01:
        state.log("warning", "thawed at the end of its bounded hold")
        state.update(phase="resuming", verb="resume", why="its bounded hold is over")
        state.queue(resume(state, images=False))


def _suspend_to_image(state: AttemptState, node: str, began: int) -> Script:
    """Into an image, and away. The image counts from the moment the record names it; only then are processes ended."""
    record = state.record
    if record.image is None:
        try:
            taken = yield from take_image(state, node, record.serial, leave_running=False)
            yield from count(state, *taken)
        except ActionFailed as error:
            state.ended_cuts.append(record.cut)
            state.update_unless_over(phase="running", error=str(error), no_room=error.no_room)
            return
    yield from finish(state)
    state.update_unless_over(phase="suspended", took_us=state.since(began))
    state.start(store(state, record.serial))


def resume(state: AttemptState, *, images: bool) -> Script:
    """Let a suspended attempt run."""
    record, began = state.record, state.scripts.now.mono_us
    if record.phase != "resuming":
        return
    if record.level == Level.FULL and images:
        yield from _resume_from_image(state, began)
        return
    if record.image is None:
        return
    yield from write_endpoints(state)
    try:
        yield ResumeByDriver(Level(record.level), record.image)
    except ActionFailed as error:
        state.update_unless_over(phase="suspended", error=str(error))
        return
    record.image, record.hold_until = None, 0.0
    yield from unquiesce(state)
    state.update_unless_over(phase="running", took_us=state.since(began))


def _resume_from_image(state: AttemptState, began: int) -> Script:
    if why := (yield from restore(state)):
        state.update_unless_over(phase="suspended", error=why)
        return
    state.record.image = None
    yield from release(state)
    state.update_unless_over(phase="running", took_us=state.since(began), error="", whole=0)
    state.emit(WatchRanks(state.living()))
    clear(state, state.record.serial)
