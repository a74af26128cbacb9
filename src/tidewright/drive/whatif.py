"""Counterfactuals: the live engine forked, changed, and planned for by the same planner that runs.

Nothing here decides or predicts by rules of its own: a change is offered only after the fork has started the job with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..base.units import WHOLE_DEVICE
from ..engine import events as ev
from ..engine.book import Book
from ..engine.commands import CheckpointRanks, Command, Launch, PlanRequest, ResumeRanks, StopRanks, SuspendRanks
from ..engine.engine import Engine
from ..engine.requests.amend import amend
from ..engine.requests.hold import outlook
from ..model.cause import Cause, Code, given, reported
from ..model.job import JobSpec, Level, State
from ..model.node import Allocation, device_count
from ..plan.explain import Change, DeviceHolder, Explanation
from ..plan.plan import Plan, Planner
from ..plan.reasons import Blocked, Reason
from ..plan.sentences import CONSEQUENCE

_ROUNDS = 6
"""Planning rounds that a fork runs; each may free devices for the next."""
_UP = {"basic": "standard", "standard": "premium"}


def explain(engine: Engine, planner: Planner, job: int, now: int = 0) -> Explanation:
    """Why ``job`` waits and the smallest change that would start it now. Raises KeyError for a job not in the book.

    ``now``: the reader's time, if that is later than the book's.
    """
    book = engine.book
    now = max(now, book.now)
    state = book.state(job)
    history = tuple(book.jobs[job].history)
    waiting = state in (State.HELD, State.QUEUED, State.SUSPENDED)
    if not waiting:
        why = outlook(book, job, now) or _stopping(book, job) or Code.STATE_IS(state.name.lower())
        return Explanation(job=job, state=state.name, waiting=False, why=why, history=history)
    blocked, change = _binding(engine, planner, job, state, now)
    away = out_of_service(book, int(book.table.kinds[book.table.row[job]])) if blocked.reason in _SHORTAGES else ()
    if away:
        blocked = msgspec.structs.replace(blocked, why=Code.OUT_OF_SERVICE(given(blocked.why), away))
    holders = tuple(_holder(book, other) for other in blocked.holders if other in book.specs)
    return Explanation(
        job=job, state=state.name, waiting=True, reason=blocked.reason, why=blocked.limit(now),
        consequence=CONSEQUENCE[blocked.reason], need=blocked.need, free=blocked.free, holders=holders,
        ahead=0 if book.jobs[job].runtime_job else _ahead(book, job), change=change, history=history,
    )  # fmt: skip


def _stopping(book: Book, job: int) -> Cause | None:
    """What becomes of a job that is being stopped; None for any other."""
    ending = book.jobs[job].ending
    if book.state(job) is not State.STOPPING or ending is None:
        return None
    return Code.STOPS_AND_RETURNS(ending.why) if ending.state == State.QUEUED else Code.STOPS_FOR_GOOD(ending.why)


def _binding(engine: Engine, planner: Planner, job: int, state: State, now: int) -> tuple[Blocked, Change | None]:
    """The limit that binds, and what would lift it; a job held by its user or by others has no such change."""
    book = engine.book
    held = book.hold_reason(job, now)
    if state is State.HELD and held is not None:
        return Blocked(job, held[0], held[1]), None
    if job in book.reservations:
        occupants = _occupants(book, book.reservations[job])
        why = Code.RESERVATION_PENDING(device_count(book.reservations[job]))
        return Blocked(job, Reason.DEVICES_RESERVED, why, holders=occupants), None
    image = engine.snapshot()
    if starts(Engine.restore(image), planner, job):
        return Blocked(job, Reason.PLANNING, Code.NEXT_PLAN_STARTS()), None
    blocked = _as_planned(engine, planner, job)
    return blocked, _smallest_change(engine, planner, job, image)


def _as_planned(engine: Engine, planner: Planner, job: int) -> Blocked:
    """What the planner itself says of the job: in its last plan, or in one made now with the job in view."""
    book = engine.book
    if not book.board.nodes_with(int(book.table.kinds[book.table.row[job]]), 0):
        return Blocked(job, Reason.NODES_DOWN, _outage(book), need=book.specs[job].floor)
    said = book.blocked.get(job)
    if said is None:
        said = next((blocked for blocked in planner.plan(engine.view()).blocked if blocked.job == job), None)
    if said is None:
        return _unsaid(book, job)
    return said if said.holders else msgspec.structs.replace(said, holders=_in_the_way(book, job))


def _in_the_way(book: Book, job: int) -> tuple[int, ...]:
    """The largest holders of devices of nodes that the job may be on."""
    wanted, layout = book.request(job), book.board.layout
    mine = sum(1 << node for node in range(len(layout.nodes)) if wanted.reject_node(node, layout) is None)
    return _largest_holders(book, mine)


def _unsaid(book: Book, job: int) -> Blocked:
    """The limit of a job that the planner did not get to: who is ahead, or who has the devices."""
    spec, kinds = book.specs[job], int(book.table.kinds[book.table.row[job]])
    free, ahead = book.board.free_in(kinds), _ahead(book, job)
    holders = _in_the_way(book, job)
    short = Code.FREE_SHORT(spec.floor, free)
    if ahead:
        why, reason = Code.BEHIND_JOBS(ahead, short), Reason.BEHIND
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


_SHORTAGES = (
    Reason.NO_CAPACITY,
    Reason.FRAGMENTED,
    Reason.BEHIND,
    Reason.NODES_DOWN,
    Reason.TIER,
    Reason.PINNED_NODE_BUSY,
)
"""Limits that devices out of service may be the cause of."""


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


def _ahead(book: Book, job: int) -> int:
    """Waiting jobs submitted earlier."""
    table, n = book.table, book.table.n
    waiting = (table.state[:n] == State.QUEUED) | (table.state[:n] == State.SUSPENDED)
    return int((waiting & (table.id[:n] < job)).sum())


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


# -- changes ------------------------------------------------------------------------------------------------------------


def _smallest_change(engine: Engine, planner: Planner, job: int, image: bytes) -> Change | None:
    """The first of the candidate changes, mildest first, with which the fork starts the job."""
    spec = engine.book.specs[job]
    for change in _candidates(engine.book, job):
        fork = Engine.restore(image)
        amend(fork.book, job, amended(spec, change))
        if starts(fork, planner, job):
            return change
    return None


def amended(spec: JobSpec, change: Change) -> JobSpec:
    """The spec with a change made. Fewer devices for a job with one rank each means as many ranks."""
    fields: dict[str, object] = {}
    if change.devices:
        ranks = change.devices if spec.ranks == spec.devices else spec.ranks
        fields |= {"devices": change.devices, "min_devices": 0, "ranks": ranks}
    if change.device_types is not None:
        fields["device_types"] = change.device_types
    if change.gpu_memory >= 0:
        fields["gpu_memory"] = change.gpu_memory
    if change.tier:
        fields["tier"] = change.tier
    if change.placement:
        fields["placement"] = change.placement
    return msgspec.structs.replace(spec, **fields)


def _candidates(book: Book, job: int) -> Iterator[Change]:
    """Changes worth trying, mildest first: where it runs, on what, with how much, for which tier."""
    spec, layout = book.specs[job], book.board.layout
    if spec.placement != "any" and spec.floor > 1:
        yield Change(Code.SPREAD(), "--placement any", placement="any")
    for kind in layout.kinds if spec.device_types else ():
        if kind not in spec.device_types:
            types = (*spec.device_types, kind)
            yield Change(Code.ACCEPT_TYPE(kind), f"--type {','.join(types)}", device_types=types)
    for fewer in _fewer(book, job, spec):
        yield Change(Code.FEWER_DEVICES(fewer, spec.floor), f"-g {fewer}", devices=fewer)
    share = _largest_free_share(book, spec)
    if 0 < share < spec.gpu_memory:
        yield Change(
            Code.SMALLER_SHARE(share, spec.gpu_memory),
            f"--gpu-mem {share // 2**20}MiB",
            gpu_memory=share // 2**20 * 2**20,
        )
    tier: str = spec.tier
    while tier in _UP:
        tier = _UP[tier]
        yield Change(Code.HIGHER_TIER(tier, spec.tier), f"--sla {tier}", tier=tier)


def _fewer(book: Book, job: int, spec: JobSpec) -> list[int]:
    """Device counts below the one asked for, largest first: what is free together, what is free at all, and halves."""
    if spec.floor == 1 or spec.gpu_memory:
        return []
    kinds = int(book.table.kinds[book.table.row[job]])
    board = book.board
    biggest = max(board.layout.node_size, default=0)
    most = max((count for count in range(1, biggest + 1) if board.nodes_with(kinds, count)), default=0)
    counts = {most: True, board.free_in(kinds): True, 1: True}
    half = spec.floor // 2
    while half:
        counts[half] = True
        half //= 2
    divides = [count for count in counts if 0 < count < spec.floor and _even(spec, count)]
    return sorted(divides, reverse=True)


def _even(spec: JobSpec, devices: int) -> bool:
    return spec.ranks == spec.devices or spec.ranks % devices == 0 or devices % spec.ranks == 0


def _largest_free_share(book: Book, spec: JobSpec) -> int:
    """Bytes of the largest free share of any one device."""
    board, layout = book.board, book.board.layout
    if not spec.gpu_memory:
        return 0
    best = 0
    for (node, _), used in sorted(board.partial.items()):
        best = max(best, (WHOLE_DEVICE - used) * layout.nodes[node].device_memory // WHOLE_DEVICE)
    return best


# -- running a fork -----------------------------------------------------------------------------------------------------


def starts(fork: Engine, planner: Planner, job: int) -> bool:
    """Whether the planner, given a world that obeys at once, gives ``job`` its devices now."""
    fork.replan()
    commands = fork.step(fork.book.now, [ev.Tick()])
    for _ in range(_ROUNDS):
        events = _obey(fork, planner, commands)
        if _started(fork.book, job):
            return True
        if not events:
            return False
        commands = fork.step(fork.book.now, events)
    return _started(fork.book, job)


def _started(book: Book, job: int) -> bool:
    if job not in book.specs:
        return False
    return job in book.reservations or book.state(job) in (State.STARTING, State.RUNNING, State.RESUMING)


def _obey(fork: Engine, planner: Planner, commands: list[Command]) -> list[ev.Event]:
    """Answers of a world in which everything works at once."""
    events: list[ev.Event] = []
    for command in commands:
        if isinstance(command, PlanRequest):
            plan: Plan = planner.plan(fork.view())
            events.append(ev.PlanReady(plan))
        elif isinstance(command, Launch):
            events.append(ev.Started(command.job, command.attempt))
        elif isinstance(command, ResumeRanks):
            events.append(ev.Resumed(command.job, command.attempt))
        elif isinstance(command, SuspendRanks):
            ends = command.level in (Level.REQUEUE, Level.COOPERATIVE)
            done = ev.Exited(command.job, command.attempt, 75) if ends else ev.Suspended(command.job, command.attempt)
            events.append(done)
        elif isinstance(command, CheckpointRanks):
            events.append(ev.Checkpointed(command.job, command.attempt, command.serial))
        elif isinstance(command, StopRanks):
            events.append(ev.Exited(command.job, command.attempt, 143))
    return events
