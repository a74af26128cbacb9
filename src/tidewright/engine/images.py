"""Full images in the book: which there are, what work is in them, where they lie, and rolling back to them.

Two are kept of each job, so that a damaged one costs an interval and not the job.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..base.units import WHOLE_DEVICE
from ..model.cause import Cause, Code
from ..model.job import Level
from ..model.job_record import EVERYWHERE, Image, Saving
from ..model.node import Allocation
from . import pauses
from .book import Book
from .commands import DropImages, Launch
from .ledger import run_time_us

KEPT = 2


def order(book: Book, job: int, row: int) -> int:
    """Give the next image its number and note what will be in it at least."""
    record = book.jobs[job]
    record.last_image += 1
    record.saving = Saving(record.last_image, book.now, book.table.ideal.item(row), run_time_us(book, job))
    return record.last_image


def record(book: Book, job: int, row: int, save_us: int, size_bytes: int) -> None:
    """The image in the making is whole: keep it, and drop the oldest."""
    known, table = book.jobs[job], book.table
    saving, known.saving = known.saving, None
    assert saving is not None
    nodes = names(book, book.allocations[job])
    copies = (EVERYWHERE,) if book.settings.shared_images else ()
    kind = book.board.layout.kinds[table.restore_kind.item(row)] if table.restore_kind.item(row) >= 0 else ""
    image = Image(
        saving.serial, known.attempt, saving.at, saving.ideal_us, nodes, kind, save_us, size_bytes, copies,
        run_time_us=saving.run_time_us,
    )  # fmt: skip
    kept = (*known.images, image)
    book.keep_images(job, kept[-KEPT:])
    known.rollback_count = known.rollback_free_us = known.checkpoint_failures = 0
    if kept[:-KEPT]:
        _drop(book, job, kept[:-KEPT])


def names(book: Book, allocation: Allocation) -> tuple[str, ...]:
    """The nodes of an allocation, by name."""
    nodes = book.board.layout.nodes
    return tuple(nodes[part.node].name for part in allocation)


def copied(book: Book, job: int, serial: int, node: str) -> None:
    """The whole image is now there too."""
    images = book.jobs[job].images
    if any(image.serial == serial for image in images) and (node == EVERYWHERE or alive(book, node)):
        more = (
            replace(image, copies=(*image.copies, node))
            if image.serial == serial and node not in image.copies
            else image
            for image in images
        )
        book.keep_images(job, tuple(more))


def alive(book: Book, node: str) -> bool:
    """Whether a node is known and not dead (silent and drained ones live)."""
    index = book.nodes.get(node)
    return index is not None and index not in book.dead


def node_lost(book: Book, node: str, kept: frozenset[tuple[int, int]] = frozenset()) -> None:
    """What lay on a node is gone, but for images (job, serial) in ``kept``."""
    for job in list(book.with_images):
        record = book.jobs[job]
        if any(node in image.places for image in record.images):
            left = [image if (job, image.serial) in kept else _without(image, node) for image in record.images]
            book.keep_images(job, tuple(image for image in left if image.whole))
            torn = tuple(image for image in left if not image.whole)
            if torn:
                _drop(book, job, torn)


def _without(image: Image, node: str) -> Image:
    copies = tuple(other for other in image.copies if other != node)
    if node not in image.nodes:
        return replace(image, copies=copies)
    return replace(image, copies=copies, nodes=tuple(other for other in image.nodes if other != node), torn=True)


def spoil(book: Book, job: int) -> None:
    """The image that was to be used is damaged: it is none any more."""
    serial, images = book.jobs[job].source, book.jobs[job].images
    bad = tuple(image for image in images if image.serial == serial)
    if bad:
        book.keep_images(job, tuple(image for image in images if image.serial != serial))
        book.record(job, "IMAGE", Code.IMAGE_UNUSABLE(serial))
        _drop(book, job, bad)


def forget(book: Book, job: int, attempt: int) -> None:
    """No image of the job is needed any more."""
    images, record = book.drop_images(job), book.jobs[job]
    record.restore_from, record.saving = 0, None
    if images:
        places = tuple(dict.fromkeys(place for image in images for place in image.places))
        book.out.append(DropImages(job, attempt, (), places))


def _drop(book: Book, job: int, gone: tuple[Image, ...]) -> None:
    record = book.jobs[job]
    places = tuple(dict.fromkeys(place for image in gone for place in image.places))
    if places and record.images:  # when none is kept, the restart of the job drops them all
        serials = tuple(image.serial for image in record.images)
        book.out.append(DropImages(job, record.attempt, serials, places))


def roll_back(book: Book, job: int, row: int) -> Cause:
    """Set the job's work back to its latest image, or to nothing; returns the cause for the job's history."""
    record = book.jobs[job]
    image = record.image
    had = book.table.ideal.item(row)
    left = image.ideal_us if image is not None else 0
    lose(book, job, row, had - left)
    book.table.ideal[row] = left
    if image is None:
        record.restore_from = record.run_time_used_us = 0
        book.table.restore_kind[row] = -1
        return Code.NO_IMAGE_LEFT(had) if had else Code.FROM_BEGINNING()
    record.restore_from = image.serial
    # What has to be run again is not charged to the time limit.
    used = record.run_time_used_us
    before = image.run_time_us if image.run_time_us >= 0 else max(0, used - (had - left))
    record.run_time_used_us = min(used, before)
    book.table.restore_kind[row] = book.board.layout.kind_index(image.kind)
    return Code.ROLLED_BACK(had - left, image.serial)


def lose(book: Book, job: int, row: int, work_us: int) -> None:
    """So much full-speed run time will have to be delivered again."""
    if work_us:
        book.jobs[job].lost_us += work_us
        book.ledger.lost_total += work_us * book.specs[job].devices * WHOLE_DEVICE


def level_at(book: Book, job: int, allocation: Allocation) -> int:
    """How the job can be made to yield on these devices: as its user asks, as its nodes can, as its program allows."""
    spec, cap = book.specs[job], book.jobs[job].level_cap
    if spec.runtime:  # it has no devices to release
        return int(Level.NONE)
    full = _bound_to(book, allocation) >= 0
    if full and book.services.is_image(spec.service, job):
        return int(Level.FULL)
    level = book.usual_level(spec)
    if full and spec.preempt in ("auto", "full"):
        level = int(Level.FULL)
    elif full and spec.preempt == "freeze":
        level = int(Level.FREEZE)  # a gang is stopped at a cut first, so it can stay frozen
    if cap is not None:
        level = min(level, cap.level)
    if level == Level.FREEZE and why_unfrozen(book, allocation) is not None:
        return int(Level.NONE)
    return level


def launch_level(book: Book, job: int, allocation: Allocation) -> int:
    """The level that a launch is prepared for: a replica that may become an image is preempted by less."""
    record = book.services.of_replica(book.specs[job].service)
    if record is not None and record.spec.from_image and takes_images(book, allocation):
        return int(Level.FULL)
    return book.true_level(job)


def launch_source(book: Book, job: int, allocation: Allocation) -> tuple[int, int]:
    """The job and the number of the image that a launch on these devices starts from; (0, 0): from the beginning."""
    own = book.jobs[job].restore_from
    if own:
        return job, own
    record = book.services.of_replica(book.specs[job].service)
    if record is None or not record.image_job or record.replicas.get(job) != record.version:
        return 0, 0
    source = book.jobs.get(record.image_job)
    if source is None or source.image is None or not source.image_only:
        return 0, 0
    bound = _bound_to(book, allocation)
    fits = bound >= 0 and book.board.layout.kinds[bound] == source.image.kind
    return (record.image_job, source.image.serial) if fits else (0, 0)


def launch(book: Book, job: int) -> Launch:
    """The command that starts a job on the devices that it occupies, from its image, from that of its service, or anew."""
    allocation = book.allocations[job]
    source, serial = launch_source(book, job, allocation)
    return Launch(job, book.jobs[job].attempt, allocation, serial, 0 if source == job else source)


def takes_images(book: Book, allocation: Allocation) -> bool:
    """Whether full images can be taken on all these devices."""
    return _bound_to(book, allocation) >= 0


def _bound_to(book: Book, allocation: Allocation) -> int:
    """Index of the kind that images taken on these devices are bound to; -1 where not every node takes them."""
    layout = book.board.layout
    kinds = [layout.node_kind[part.node] for part in allocation if layout.nodes[part.node].full]
    alike = len(kinds) == len(allocation) and kinds.count(kinds[0]) == len(kinds)
    return kinds[0] if alike else -1


def why_unfrozen(book: Book, allocation: Allocation) -> Cause | None:
    """Why freezing what runs on these devices would be of no use, or None."""
    nodes = book.board.layout.nodes
    for part in allocation:
        kind = nodes[part.node].kind
        if kind not in book.settings.freeze_kinds:
            return Code.KEEPS_MEMORY(kind)
    return Code.SPANS_NODES() if len(allocation) > 1 else None


def lower_to_freeze(book: Book, job: int) -> None:
    """The job is suspended by being frozen this once; ``settle_level`` raises its level again when it runs."""
    row = book.table.row[job]
    book.table.level[row], book.table.restore_kind[row] = int(Level.FREEZE), -1


def settle_level(book: Book, job: int, row: int) -> None:
    """Bring the level column in line with where the job is now, and note what its images will be bound to."""
    allocation, record = book.allocations[job], book.jobs[job]
    level, table = level_at(book, job, allocation), book.table
    if record.suspend_cooldown is not None:
        record.suspend_cooldown = replace(record.suspend_cooldown, level=level)
    else:
        table.level[row] = level
    table.restore_kind[row] = _bound_to(book, allocation) if level == Level.FULL else -1
    pauses.expect(book, job, row)
