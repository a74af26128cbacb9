"""A user moves a job to other nodes, or changes on how many devices it runs. No other job is preempted for either."""

from __future__ import annotations

from msgspec.structs import replace

from ...model.board import ALL_NODES
from ...model.cause import Cause, Code, reported
from ...model.job import Level, State
from ...model.node import Allocation, Part, bits, device_count
from ...placement.find import place, scatter
from ...plan.moves import Migrate, Resize, Resume
from .. import events as ev
from .. import images
from ..apply_plan import apply_move, illegal, rejected, unsuspendable
from ..book import Book
from ..termination import end_cooldown
from .admission import never_fits, too_crowded

_TRANSIT = (State.STARTING, State.SUSPENDING, State.RESUMING)


class Refusal(Exception):
    """Why a user's request is refused: error and kind of a Reply."""

    def __init__(self, why: Cause, kind: str = "conflict") -> None:
        super().__init__(why)
        self.why, self.kind = why, kind


def move(book: Book, event: ev.Move) -> list[int]:
    """Bring a job to other nodes. Returns the jobs with a new reservation; raises Refusal."""
    job = event.job
    row, state = book.table.row[job], book.state(job)
    _own_devices(book, job)
    _not_there_yet(book, job, state, event.nodes)
    where = _nodes_named(book, event.nodes)
    _movable(book, job, row, state)
    mine = book.allocations.get(job, ())
    if not event.nodes:
        where = ALL_NODES & ~sum(1 << part.node for part in mine)
    count = device_count(mine) or book.table.floor.item(row)
    allocation = _find(book, job, count, where)
    if allocation is None:
        raise Refusal(_no_room(book, job, count, event.nodes))
    why = Code.MOVED_BY_USER()
    wanted = Migrate(job, allocation, why) if state is State.RUNNING else Resume(job, allocation, why)
    reason = illegal(book, wanted)
    if reason is not None:
        raise Refusal(Code.NOT_MOVABLE_THERE(job, reason))
    reserved: list[int] = []
    apply_move(book, wanted, reserved)
    book.freed = True
    return reserved


def _own_devices(book: Book, job: int) -> None:
    """Whether the job has devices of its own. Raises Refusal."""
    if book.jobs[job].runtime_job:
        raise Refusal(Code.FOLLOWS_RUNTIME(job, book.jobs[job].runtime_job))


def _not_there_yet(book: Book, job: int, state: State, names: tuple[str, ...]) -> None:
    """Whether the job is not on just these nodes already, where a move would cost an image and change nothing."""
    here = sorted(images.names(book, book.allocations.get(job, ())))
    if state is State.RUNNING and sorted(dict.fromkeys(names)) == here:
        raise Refusal(Code.ALREADY_THERE(job, tuple(here)))


def _nodes_named(book: Book, names: tuple[str, ...]) -> int:
    """The set of nodes of these names."""
    unknown = [name for name in names if name not in book.nodes]
    if unknown:
        raise Refusal(Code.NO_SUCH_NODE(unknown[0]), "notfound")
    closed = {book.nodes[name]: name for name in names if not book.board.up >> book.nodes[name] & 1}
    if closed:
        index, name = next(iter(closed.items()))
        cordon = book.outages.cordoned.get(index)
        why = book.drained.get(index) or (cordon.why if cordon else book.node_down.get(index, ""))
        raise Refusal(Code.NODE_UNSCHEDULABLE(name, reported(why)))
    return sum(1 << index for index in dict.fromkeys(book.nodes[name] for name in names))


def _movable(book: Book, job: int, row: int, state: State) -> None:
    """Whether the job can leave where it is without losing work. Raises Refusal."""
    if state in _TRANSIT or state is State.STOPPING:
        raise Refusal(Code.NOT_YET(job, state.word))
    if state is State.HELD and book.jobs[job].user_hold is not None:
        raise Refusal(Code.HELD_STILL(job))
    suspended = state is State.SUSPENDED and job not in book.reservations
    if state is not State.RUNNING and not suspended:
        raise Refusal(Code.NOT_MOVABLE_NOW(job, state.word))
    if suspended and book.jobs[job].image_only:
        return
    end_cooldown(book, job)  # the cooldown after a failed suspension binds planners, not its user
    reason = None if suspended else unsuspendable(book, job, row)
    level = Level(book.table.level.item(row))
    if reason is None and level is not Level.FULL:
        code = Code.MEMORY_PINNED if level is Level.FREEZE else Code.WOULD_RESTART_ELSEWHERE
        reason = code(level.name.lower())
    if reason is not None:
        raise Refusal(Code.NOT_MOVABLE(job, reason))


def _no_room(book: Book, job: int, count: int, names: tuple[str, ...]) -> Cause:
    """Why no place was found: too small even when empty, or taken."""
    layout, mine = book.board.layout, {part.node for part in book.allocations.get(job, ())}
    if not names and len(layout.nodes) == len(mine):
        return Code.ON_EVERY_NODE(job)
    most = sum(layout.node_size[book.nodes[name]] for name in names)
    if names and most < count:
        return Code.NODES_TOO_SMALL(job, count, names, most)
    holders = [
        other
        for other, parts in book.allocations.items()
        if other != job
        and any(layout.nodes[part.node].name in names if names else part.node not in mine for part in parts)
    ]
    return Code.NO_ROOM(count, job, names, tuple(holders[:8]))


# -- scaling ------------------------------------------------------------------------------------------------------------


def scale(book: Book, event: ev.Scale) -> list[int]:
    """Have a job on so many devices from now on. Returns the jobs with a new reservation; raises Refusal."""
    job, state = event.job, book.state(event.job)
    _own_devices(book, job)
    _sizeable(book, job, event.devices)
    if state is State.STOPPING or state in _TRANSIT:
        raise Refusal(Code.NOT_YET(job, state.word))
    before = book.jobs[job].size_override
    _set_size_override(book, job, event.devices)
    try:
        return _resize(book, job) if state is State.RUNNING else _wait_anew(book, job)
    except Refusal:
        _set_size_override(book, job, before)
        raise


def _sizeable(book: Book, job: int, devices: int) -> None:
    """Whether the job could ever run on so many devices."""
    spec = book.specs[job]
    if not 0 <= devices <= spec.devices:
        nearest = spec.devices if devices > 0 else 1
        raise Refusal(Code.SCALE_OUT_OF_RANGE(job, spec.devices, devices, nearest), "usage")
    if devices and devices < spec.devices and spec.ranks < spec.devices:
        raise Refusal(Code.RANKS_NOT_SHARABLE(job, spec.devices), "usage")
    if not devices:
        return
    misfit = too_crowded(book, spec, devices) or never_fits(book, replace(spec, devices=devices, min_devices=0))
    if misfit is not None:
        raise Refusal(misfit, "usage")


def _set_size_override(book: Book, job: int, devices: int) -> None:
    """Write the size that the user asks for into the columns; 0: what was submitted."""
    row, spec = book.table.row[job], book.specs[job]
    book.jobs[job].size_override = devices
    share = (spec.gpu_memory, spec.compute_milli)
    book.tier_demand.add(spec.tier_rank, book.table.demand.item(row), *share, -1)
    book.tier_demand.add(spec.tier_rank, devices or spec.devices, *share)
    book.table.demand[row] = devices or spec.devices
    book.table.floor[row] = devices or spec.floor
    book.touched[job] = book.forced = True


def _wait_anew(book: Book, job: int) -> list[int]:
    """A job that has no devices: what is reserved for it may be of the wrong size. Raises Refusal when it could never start."""
    _restorable(book, job)
    _fits_where_frozen(book, job)
    if job in book.reservations:
        book.cancel_reservation(job)
    book.note_arrival(job)
    return []


def _restorable(book: Book, job: int) -> None:
    """Whether the nodes that can restore the job's image have as many devices as it now wants."""
    wanted, layout = book.request(job), book.board.layout
    most = wanted.most_devices(layout) if wanted.restore_kind >= 0 else wanted.floor
    if wanted.floor > most:
        kind = layout.kinds[wanted.restore_kind]
        raise Refusal(
            Code.FEW_RESTORE_NODES(job, kind, most, wanted.floor) if most else Code.NO_RESTORE_NODES(job, kind)
        )


def _resize(book: Book, job: int) -> list[int]:
    row, mine = book.table.row[job], book.allocations[job]
    wanted, have = book.jobs[job].size_override, device_count(mine)
    if rejected(book, job, mine) is None:  # it may run on as it is
        return []
    wanted = wanted or book.specs[job].floor
    end_cooldown(book, job)
    reason, level = unsuspendable(book, job, row), book.table.level.item(row)
    if reason is None and level == Level.REQUEUE:
        reason = Code.WOULD_START_OVER()
    if reason is not None:
        raise Refusal(Code.NOT_RESIZABLE(job, reason))
    allocation = _fewer(book, job, mine, wanted) if wanted < have else _more(book, job, mine, wanted)
    if allocation is None:
        raise Refusal(Code.NOT_ENOUGH_FREE(job, have, wanted))
    resize = Resize(job, allocation, Code.SCALED_BY_USER(wanted))
    reason = illegal(book, resize)
    if reason is not None:
        raise Refusal(Code.NOT_RESIZABLE_NOW(job, reason))
    reserved: list[int] = []
    apply_move(book, resize, reserved)
    book.freed = True
    return reserved


def _fewer(book: Book, job: int, mine: Allocation, wanted: int) -> Allocation:
    """Part of an allocation, on as few nodes as can be."""
    kept: list[Part] = []
    for part in sorted(mine, key=lambda part: (-part.mask.bit_count(), part.node)):
        take = min(wanted, part.mask.bit_count())
        if take:
            kept.append(Part(part.node, sum(1 << bit for bit in bits(part.mask)[:take]), part.milli))
            wanted -= take
    return book.request(job).with_resources(tuple(sorted(kept)), book.board.layout)


def _more(book: Book, job: int, mine: Allocation, wanted: int) -> Allocation | None:
    """More devices, on its own nodes if they have them."""
    own = sum(1 << part.node for part in mine)
    return _find(book, job, wanted, own) or _find(book, job, wanted, ALL_NODES)


def _find(book: Book, job: int, count: int, within: int) -> Allocation | None:
    """``count`` devices for the job on nodes of the set ``within``, those it gives up counted as free; None for no such ones."""
    board, mine, wanted = book.board, book.allocations.get(job), book.request(job, count)
    mark = board.mark()
    if mine is not None and not book.jobs[job].leaving:
        board.release(mine)
    found = place(board, wanted, within) or scatter(board, wanted, within)
    board.undo(mark)
    return found


def _fits_where_frozen(book: Book, job: int) -> None:
    """A frozen job runs again on its node or nowhere."""
    row, layout = book.table.row[job], book.board.layout
    node, fewest = book.table.pinned_node.item(row), book.table.floor.item(row)
    if node >= 0 and layout.node_size[node] < fewest:
        raise Refusal(Code.NODES_TOO_SMALL(job, fewest, (layout.nodes[node].name,), layout.node_size[node]))


def drop_size_override(book: Book, job: int, row: int) -> None:
    """A resize has failed: the job runs on as it is, and that size is what its user gets from then on."""
    have, spec = device_count(book.allocations[job]), book.specs[job]
    wanted = book.jobs[job].size_override
    if wanted and wanted != have:
        book.record(job, "SCALED", Code.NOT_SCALED(wanted, have))
        _set_size_override(book, job, 0 if spec.floor <= have <= spec.devices else have)
    elif not book.table.floor.item(row) <= have <= book.table.demand.item(row):
        _set_size_override(book, job, have)
