"""Why a job is where it is: the limit that binds, in the words of the engine and of the planner that runs."""

from __future__ import annotations

import msgspec

from ..engine.book import Book
from ..engine.engine import Engine
from ..engine.requests import hold
from ..engine.requests.amend import WAITING
from ..model.cause import Cause, Code, given, reported
from ..model.job import State
from ..model.node import Allocation, device_count
from ..plan.advice import CONSEQUENCE
from ..plan.explain import DeviceHolder, Explanation
from ..plan.plan import Plan, Planner
from ..plan.reasons import Blocked, Reason
from .ahead import Ahead, ahead_of
from .trial import starts_in


def limit_of(engine: Engine, planner: Planner, job: int, now: int = 0) -> Explanation:
    """Why ``job`` waits, and who holds what it needs. Raises KeyError for a job not in the book.

    One plan at most is made, of the engine as it is; nothing is changed. ``now``: the reader's time, if that is later than the
    book's.
    """
    book = engine.book
    now = max(now, book.now)
    state = book.state(job)
    history = tuple(book.jobs[job].history)
    if state not in WAITING:
        why = hold.outlook(book, job, now) or _stopping(book, job) or Code.STATE_IS(state.word)
        return Explanation(job=job, state=state.word, waiting=False, why=why, history=history)
    queued = state is not State.HELD and not book.jobs[job].runtime_job
    ahead = ahead_of(engine.view(now), planner, job) if queued else Ahead()
    blocked = _binding(engine, planner, job, state, ahead, now)
    away = out_of_service(book, int(book.table.kinds[book.table.row[job]])) if blocked.reason.of_the_pool else ()
    if away:
        blocked = msgspec.structs.replace(blocked, why=Code.OUT_OF_SERVICE(given(blocked.why), away))
    holders = tuple(_holder(book, other) for other in blocked.holders if other in book.specs)
    return Explanation(
        job=job, state=state.word, waiting=True, reason=blocked.reason, why=blocked.limit(now),
        consequence=CONSEQUENCE[blocked.reason], need=blocked.need, free=blocked.free, holders=holders, ahead=ahead.count,
        order=ahead.reasons, first_ahead=ahead.first, history=history,
    )  # fmt: skip


def _stopping(book: Book, job: int) -> Cause | None:
    """What becomes of a job that is being stopped; None for any other."""
    ending = book.jobs[job].ending
    if book.state(job) is not State.STOPPING or ending is None:
        return None
    return Code.STOPS_AND_RETURNS(ending.why) if ending.state == State.QUEUED else Code.STOPS_FOR_GOOD(ending.why)


def _binding(engine: Engine, planner: Planner, job: int, state: State, ahead: Ahead, now: int) -> Blocked:
    """The limit that binds."""
    book = engine.book
    held = hold.limit(book, job, now)
    if state is State.HELD and held is not None:
        return Blocked(job, held[0], held[1])
    if job in book.reservations:
        occupants = _occupants(book, book.reservations[job])
        why = Code.RESERVATION_PENDING(device_count(book.reservations[job]))
        return Blocked(job, Reason.DEVICES_RESERVED, why, holders=occupants)
    if not book.board.nodes_with(int(book.table.kinds[book.table.row[job]]), 0):
        return Blocked(job, Reason.NODES_DOWN, _outage(book), need=book.specs[job].floor)
    plan = planner.plan(engine.view(now))
    if starts_in(plan, job):
        return Blocked(job, Reason.PLANNING, Code.NEXT_PLAN_STARTS())
    return _as_planned(book, plan, job, ahead)


def _as_planned(book: Book, plan: Plan, job: int, ahead: Ahead) -> Blocked:
    """What the planner itself says of the job: in its last plan, or in one made now."""
    said = book.blocked.get(job) or next((blocked for blocked in plan.blocked if blocked.job == job), None)
    if said is None:
        return _unsaid(book, job, ahead)
    return said if said.holders else msgspec.structs.replace(said, holders=_in_the_way(book, job))


def _in_the_way(book: Book, job: int) -> tuple[int, ...]:
    """The largest holders of devices of nodes that the job may be on."""
    wanted, layout = book.request(job), book.board.layout
    mine = sum(1 << node for node in range(len(layout.nodes)) if wanted.reject_node(node, layout) is None)
    return _largest_holders(book, mine)


def _unsaid(book: Book, job: int, ahead: Ahead) -> Blocked:
    """The limit of a job that the planner did not get to: who is ahead, or who has the devices."""
    spec, kinds = book.specs[job], int(book.table.kinds[book.table.row[job]])
    free = book.board.free_in(kinds)
    holders = _in_the_way(book, job)
    short = Code.FREE_SHORT(spec.floor, free)
    if ahead.count:
        served = Code.SERVED_FIRST(ahead.count, ahead.reasons, short)
        why, reason = served if ahead.reasons else Code.BEHIND_JOBS(ahead.count, short), Reason.BEHIND
    elif free >= spec.floor:
        why, reason = Code.KEPT_FOR_URGENT(short), Reason.RESERVED
    elif holders and all(book.specs[other].tier_rank >= spec.tier_rank for other in holders):
        why, reason = Code.TIER_HOLDS_REST(short), Reason.TIER
    else:
        why, reason = Code.NOT_PREEMPTED_YET(short), Reason.NO_CAPACITY
    return Blocked(job, reason, why, need=spec.floor, free=free, holders=holders)


def _outage(book: Book) -> Cause:
    """Which nodes are unschedulable, and why."""
    nodes = book.board.layout.nodes
    cordoned: dict[int, Cause | str] = {index: cordon.why for index, cordon in book.outages.cordoned.items()}
    known = tuple(
        Code.NODE_BECAUSE(nodes[index].name, reported(why))
        for index, why in sorted((cordoned | book.drained | book.node_down).items())
    )
    if not nodes:
        return Code.POOL_EMPTY()
    return Code.ALL_UNSCHEDULABLE(known) if known else Code.TYPES_DOWN()


def out_of_service(book: Book, kinds: int) -> tuple[Cause, ...]:
    """Devices and nodes of these kinds that take no new work by their own failure, and why."""
    layout, outages = book.board.layout, book.outages
    found = []
    for index, spec in enumerate(layout.nodes):
        if not kinds >> layout.node_kind[index] & 1 or index in book.node_down:
            continue
        if index in outages.cordoned:
            found.append(Code.NODE_BECAUSE(spec.name, outages.cordoned[index].why))
        found += [Code.DEVICE_BECAUSE(spec.name, fault.device, fault.why) for fault in outages.of(index)]
    return tuple(found)


def _holder(book: Book, job: int) -> DeviceHolder:
    spec = book.specs[job]
    return DeviceHolder(
        job, spec.name, spec.tier, device_count(book.allocations.get(job, book.reservations.get(job, ())))
    )


def _occupants(book: Book, wanted: Allocation) -> tuple[int, ...]:
    """Jobs that occupy devices of an allocation."""
    masks = {part.node: part.mask for part in wanted}
    return tuple(
        job for job, parts in book.allocations.items() if any(part.mask & masks.get(part.node, 0) for part in parts)
    )


def _largest_holders(book: Book, nodes: int, most: int = 8) -> tuple[int, ...]:
    """Jobs with devices on a set of nodes, those that hold most first."""
    held = {
        job: device_count(parts)
        for job, parts in book.allocations.items()
        if any(nodes >> part.node & 1 for part in parts)
    }
    return tuple(sorted(held, key=lambda job: (-held[job], job))[:most])
