"""Going on with what an earlier agent was doing, by the record that it left."""

from __future__ import annotations

from collections.abc import Callable

from ...model.job import Level
from .actions import AdoptRendezvous, StartTimeSlices, WatchRanks
from .attempt import RECOVERY, AttemptState
from .ending import leave, mark_lost, stop
from .imaging import clear, finish, recover, store
from .launching import launch
from .outcomes import KILLED
from .suspending import arm_hold, resume, suspend
from .table import ON_ADOPTION


def adopt(state: AttemptState, node: str, drop: Callable[[], None], *, images: bool, boot: str) -> None:
    """``drop`` is called when nothing of an attempt that lives elsewhere is left; ``boot`` is this boot of the node."""
    record = state.record
    if record.ending == "stop" and record.phase != "stopping":
        leave(state, drop)
        return
    state.emit(AdoptRendezvous())
    stands = record.phase == "suspended" or (record.phase == "suspending" and state.suspended_to_image)
    if record.boot not in ("", boot) and not stands:
        state.queue(mark_lost(state, "its node has rebooted"))
        return
    if images:
        _adopt_images(state)
    interrupted = record.phase == "resuming" and record.level == Level.FULL and not state.restored
    if record.phase != "starting" and state.living() and not state.suspended_to_image and not interrupted:
        state.emit(WatchRanks(state.living()))
    _go_on(state, node, images)


def _go_on(state: AttemptState, node: str, images: bool) -> None:
    record = state.record
    match ON_ADOPTION.get(record.phase):
        case "launch":
            state.queue(launch(state, images=images))
        case "suspend":
            state.begin_cut(record.cut, image=bool(record.serial))
            state.held_for = record.cut  # an earlier agent may have granted it
            state.queue(suspend(state, node, images=images, adopted=True))
        case "resume":
            state.queue(resume(state, images=images))
        case "stop":
            state.queue(stop(state, images=images))
        case _ if record.hold_until:
            arm_hold(state)


def _adopt_images(state: AttemptState) -> None:
    """What is left to do about images, before anything else is done."""
    record = state.record
    state.forget_unmade()
    dumping = record.phase == "suspending" and record.level == Level.FULL and not state.suspended_to_image
    if record.checkpointing or dumping:
        state.begin_cut(RECOVERY)
        state.queue(recover(state))
    elif record.phase in ("running", "stopping") and not state.suspended_to_image:
        state.emit(StartTimeSlices())
    if record.phase == "suspended" and record.level == Level.FULL:  # without an image where a comeback failed
        state.outcomes.update(dict.fromkeys(state.numbers, KILLED))
    elif record.phase == "stopping" and state.suspended_to_image:
        state.queue(finish(state))
    if record.last_image is not None and not record.last_image.stored and not record.last_image.lost:
        state.start(store(state, record.last_image.serial, adopted=True))
    elif record.last_image is not None:
        clear(state, record.last_image.serial)
