"""Full images: taking them, of ranks that run on or go away, and what follows in the store, concurrently with the attempt.

Order matters for a kill at any moment. The image counts from the moment the record names it; only then are processes ended.
Until then they live, stopped, and the next agent begins again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec.structs import replace

from ...checkpoint.protocol import GangImage
from ...model.job import Level
from ...wire.agent import CheckpointArgs, FetchArgs, ImageReport, JobReport
from .actions import ActionFailed, CheckLevel, CommitRecord, PublishReport, SaveRecord, StartTimeSlices
from .attempt import RECOVERY, AttemptState
from .cuts import quiesce, refuse, release
from .ending import abort
from .image_actions import (
    DiscardRaw,
    DropImage,
    Dumped,
    DumpRanks,
    FetchImages,
    FinishDump,
    MeasureRanks,
    PruneImages,
    PushImage,
    RemoveRaw,
    StoreImage,
    UndoDump,
)
from .outcomes import KILLED
from .scripts import Script, Scripts

CLEAR_S = 2.0
"""How long ranks run again before the raw images that they came from are removed: that keeps a core from ranks which have just
been released."""


def take_image(
    state: AttemptState, node: str, serial: int, *, leave_running: bool
) -> Generator[Any, Any, tuple[ImageReport, GangImage]]:
    """Quiesce, dump. Raises ActionFailed with the ranks running on."""
    ended = [rank for rank in state.numbers if rank in state.outcomes]
    if ended:
        raise ActionFailed(f"rank {ended[0]} has ended already; the job is about to")
    state.record.needs.update((yield MeasureRanks()))
    hold_us, left = yield from quiesce(state, node, serial, hurry=not leave_running, pack=True)
    began = state.scripts.now.mono_us
    try:
        dumped: Dumped = yield DumpRanks(serial, leave_running, left)
    except ActionFailed as error:
        yield from _throw_away(state, serial, error)
        raise
    taken = ImageReport(
        serial=serial, ranks=state.numbers, size_bytes=dumped.size_bytes, hold_us=hold_us, save_us=state.since(began)
    )
    return taken, dumped.image


def count(state: AttemptState, taken: ImageReport, image: GangImage) -> Generator[Any, Any, None]:
    """From now on the image stands for the ranks. Raises ActionFailed, with the ranks running on."""
    record = state.record
    before, record.last_image, record.image = record.last_image, taken, image
    record.whole = 0
    try:
        yield CommitRecord(f"the record of image {taken.serial}")
    except ActionFailed as error:
        record.last_image, record.image = before, None
        yield from _throw_away(state, taken.serial, error)
        raise


def checkpoint(state: AttemptState, node: str, args: CheckpointArgs) -> Script:
    """An image of ranks that run on."""
    serial = args.serial
    try:
        yield from _checkpoint(state, node, args)
    finally:
        state.end_cut(serial)


def _checkpoint(state: AttemptState, node: str, args: CheckpointArgs) -> Script:
    record, serial = state.record, args.serial
    against = f"it is {record.phase}" if record.phase != "running" else ""
    if why := against or (yield CheckLevel(Level.FULL)):
        state.report_image(error=why, taken=ImageReport(serial=serial))
        yield from refuse(state, node, serial, args.peers, why)
        return
    record.checkpointing, record.peers, record.previous = True, args.peers or record.peers, args.previous
    yield from _image(state, node, serial)


def _image(state: AttemptState, node: str, serial: int) -> Script:
    began = state.scripts.now.mono_us
    try:
        yield CommitRecord(f"the record of image {serial}")
        taken, _ = yield from take_image(state, node, serial, leave_running=True)
    except ActionFailed as error:
        state.ended_cuts.append(serial)
        state.report_image(error=str(error), taken=ImageReport(serial=serial))
        yield from _run_on(state, serial)
        return
    # Before _run_on, which saves the record: no moment may know neither the order nor the image.
    state.record.last_image = replace(taken, save_us=state.since(began))
    yield from _run_on(state, serial)
    state.report_image()
    state.start(store(state, serial))


def _run_on(state: AttemptState, cut: int | None = None) -> Generator[Any, Any, None]:
    """After an image, or a failed try, of ranks that stay: release them."""
    yield from _release(state, cut)
    state.record.checkpointing = False
    state.emit(SaveRecord())


def _release(state: AttemptState, cut: int | None) -> Generator[Any, Any, None]:
    """Quiesced ranks run on; they need their time slices for it."""
    state.emit(StartTimeSlices())
    yield from release(state, cut)


def _throw_away(state: AttemptState, serial: int, error: ActionFailed) -> Generator[Any, Any, None]:
    """After a dump that failed: the ranks go on. The end of one is reported as at any other time."""
    yield DiscardRaw(serial)
    state.ended_in_dump.update(error.ranks)
    try:
        if error.kind == "device state lost":
            raise error
        yield UndoDump()
    except ActionFailed as worse:
        yield from abort(state, str(worse))
    else:
        yield from _release(state, serial)


def recover(state: AttemptState) -> Script:
    """An earlier agent stopped in the middle of a dump: processes go on, and all ranks are released, as the next cut can only
    be made of ranks that run. No cut holds them before, or they would be released from it."""
    try:
        yield from _recover(state)
    finally:
        state.end_cut(RECOVERY)


def _recover(state: AttemptState) -> Generator[Any, Any, None]:
    try:
        yield UndoDump()
    except ActionFailed as error:
        if state.record.phase == "running" or error.kind == "device state lost":
            yield from abort(state, str(error))
        return
    yield from _run_on(state)


def finish(state: AttemptState) -> Script:
    """The image that the record names stands for the ranks: whatever an earlier agent has left of them is ended."""
    yield FinishDump()
    state.outcomes.update(dict.fromkeys(state.living(), KILLED))


# -- storage ------------------------------------------------------------------------------------------------------------


def store(state: AttemptState, serial: int, *, adopted: bool = False) -> Script:
    """Into the store and to the remote one; a failure is reported, and the raw image kept. ``adopted``: an earlier agent began it
    and may have reported it as stored, so that the controller counts the image."""
    began = state.scripts.now.mono_us
    taken = state.record.last_image or ImageReport(serial=serial)
    try:
        new = yield StoreImage(serial, taken.ranks)
        if state.over and not adopted and serial != state.record.serial:  # no controller hears of it
            yield DropImage(serial)
            return
        taken = replace(taken, stored=True, new_bytes=new, store_us=state.since(began))
        _keep(state, taken)
        if (yield PushImage(serial, taken.ranks)):
            taken = replace(taken, remote=True)
            _keep(state, taken)
    except ActionFailed as error:
        if error.kind != "unneeded" and not state.over:
            state.log("error", f"image {serial} is not stored: {error}")
            state.report_image(error=f"image {serial} is not stored: {error}", taken=taken)
        return
    yield PruneImages(serial, state.record.previous)
    clear(state, serial)


def _keep(state: AttemptState, taken: ImageReport) -> None:
    if state.record.last_image is None or state.record.last_image.serial <= taken.serial:
        state.record.last_image = taken
    state.report_image(taken=taken)


def clear(state: AttemptState, serial: int) -> None:
    """Drop the raw image of a job that runs again, once the store has it."""
    taken, record = state.record.last_image, state.record
    if taken is not None and taken.serial == serial and taken.stored and record.phase == "running":
        state.scripts.after(CLEAR_S, lambda: _remove(state, serial))


def _remove(state: AttemptState, serial: int) -> None:
    record = state.record
    needed = record.serial == serial and record.phase in ("suspended", "resuming")  # they come from it once more
    if not needed and not state.departing:
        state.emit(RemoveRaw(state.args.job, serial))


def fetch(scripts: Scripts, args: FetchArgs, report: JobReport) -> Script:
    """Copies of images of a job that runs elsewhere."""
    taken, error = ImageReport(serial=args.serial, ranks=args.ranks), ""
    try:
        new = yield FetchImages(args)
        taken = replace(taken, stored=True, new_bytes=new)
    except ActionFailed as failure:
        error = str(failure)
    scripts.emit((args.job, args.attempt), PublishReport(replace(report, error=error, image=taken)))
