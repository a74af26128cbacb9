"""The book and the archive as messages of the API. Reads, never writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import cast

from msgspec.structs import asdict, replace

from ...base.signals import signal_name
from ...base.units import WHOLE_DEVICE
from ...drive.record import hide_environment
from ...engine.book import Book
from ...engine.calibration import EARLIER, INSIDE, LATER, StartCalibration
from ...engine.commands import Ended
from ...engine.ledger import held_milli_us, promised_us
from ...engine.periodic import interval_us
from ...engine.rates import declared, in_force
from ...engine.requests.hold import limit, outlook
from ...model.array_record import array_key
from ...model.cause import Cause, Code, reported
from ...model.job import TIER_TARGET, ArrayMember, JobSpec, Level, State, share_of
from ...model.job_record import Image, JobRecord
from ...model.node import Allocation, NodeSpec, bits, device_count
from ...model.rate import progress_us
from ...plan.reasons import Reason
from ...plan.render import render
from ...wire import agent as wire
from ...wire import api
from ..journal.archive import GPU_SECOND, fraction_of
from ..reconcile.pending_commands import level_of
from .cause_views import cause_view, cause_view_or_none

UNPLANNED = Code.WAITS_FOR_DEVICES()
"""Why a queued job waits that the last plan left out: jobs before it got the devices."""
TERMINATED = 143
"""128 + SIGTERM: the exit code of a cancelled job whose own was 0 or unknown."""


_STATES = tuple(cast(api.StateName, state.word) for state in State)
_LEVELS = tuple(level.name.lower() for level in Level)


def state_name(state: int) -> api.StateName:
    """The API's word for a state."""
    return _STATES[state]


def exit_code(ended: Ended) -> int:
    """What ``tide wait`` returns: 0 only for a job that completed."""
    return exit_code_of(ended.state, ended.code)


def exit_code_of(state: int, code: int) -> int:
    """The same, of the final state and the code that the job's ranks ended with."""
    if state == State.COMPLETED:
        return 0
    if state == State.TIMEOUT:
        return api.TIME_LIMIT_EXIT
    if state == State.CANCELLED:
        return code if code > 1 else TERMINATED
    return code or 1


def _history(lines: Iterable[tuple[int, str, Cause]]) -> tuple[api.StoryLine, ...]:
    views = ((at, what, cause_view(why)) for at, what, why in lines)
    return tuple(api.StoryLine(at, what.lower(), cause.text, cause) for at, what, cause in views)


def live_job(book: Book, job: int, now: int, full: bool = False) -> api.JobView:
    """A job in the book."""
    table, row, record = book.table, book.table.row[job], book.jobs[job]
    spec, allocation, history = record.spec, record.allocation or (), record.history
    reason, why = _why(book, job, history, now)
    cause, member = cause_view_or_none(why), spec.array
    cap = record.level_cap.why if record.level_cap else None
    submit: int = table.submit.item(row)
    wall = max(1, now - submit)
    running = table.rate.item(row) and now - table.accrued.item(row)
    ideal = table.ideal.item(row) + progress_us(running, table.rate.item(row))
    delivered = table.attained.item(row) + running * table.held_milli.item(row)
    return api.JobView(
        id=job, name=spec.name, state=state_name(record.state), why=cause.text if cause else "", cause=cause,
        reason=reason, team=spec.team, user=spec.user, tier=spec.tier, kind=spec.kind, submit=submit,
        array=member.job if member else 0, array_index=member.index if member else -1,
        array_limit=array_limit(book, member) if member else 0,
        start=table.first_start.item(row), since=table.since.item(row), devices=spec.devices,
        min_devices=spec.min_devices, ranks=spec.ranks, held=device_count(allocation),
        held_until=record.user_hold or 0, where=_where(book, allocation, spec.best_effort),
        level=_LEVELS[level_of(book, job)], level_why=render(cap), level_cause=cause_view_or_none(cap),
        wanted=record.size_override, images=_images(record.images) if full else (), next_image=record.checkpoint_at,
        between_images_us=interval_us(book, job, row) if record.checkpoint_at else 0,
        save_us=table.save_us.item(row), restore_us=table.restore_us.item(row),
        predicted_us=table.predicted.item(row), predicted_low_us=table.predicted_low.item(row),
        predicted_high_us=table.predicted_high.item(row),
        ranks_per_device=_ranks_per_device(spec.ranks, allocation), lost_us=record.lost_us,
        attempt=record.attempt, preemptions=table.preemptions.item(row), fraction=min(1.0, ideal / wall),
        target=_promised_so_far(record, submit, now), ideal_us=ideal, delivered_gpu_s=delivered / GPU_SECOND,
        held_gpu_s=held_milli_us(record, now) / GPU_SECOND,
        command=shlex.join(spec.command), spec=hide_environment(spec) if full else None, story=_history(history) if full else (),
    )  # fmt: skip


def array_limit(book: Book, member: ArrayMember) -> int:
    """How many members of an array may run at once now; 0: all."""
    record = book.arrays.get(array_key(member))
    return record.limit if record is not None else member.limit


def _promised(spec: JobSpec) -> float:
    """The share of full speed that its tier promises; a client of a runtime is promised no devices."""
    return 0.0 if spec.runtime else TIER_TARGET[spec.tier_rank]


def _promised_so_far(record: JobRecord, submit: int, now: int) -> float:
    """The share of full speed that it has been promised since its submission, by all the tiers that it has had."""
    if not record.tier_since:
        return _promised(record.spec)
    return promised_us(record, submit, now) / max(1, now - submit)


def _ranks_per_device(ranks: int, allocation: Allocation) -> float:
    devices = device_count(allocation)
    return ranks / devices if devices else 0.0


def _images(images: tuple[Image, ...]) -> tuple[api.ImageView, ...]:
    return tuple(
        api.ImageView(
            serial=image.serial, taken=image.taken, attempt=image.attempt, size_bytes=image.size_bytes,
            where=image.places, copies=image.copies, save_us=image.save_us,
        )
        for image in images
    )  # fmt: skip


def ended_job(ended: Ended, full: bool = False) -> api.JobView:
    """A job from the archive."""
    spec, member = ended.spec, ended.spec.array
    return api.JobView(
        id=ended.job, name=spec.name, state=state_name(ended.state), why=render(ended.why), cause=cause_view(ended.why),
        team=spec.team, user=spec.user, tier=spec.tier, kind=spec.kind, submit=ended.submit, start=ended.first_start,
        end=ended.end, since=ended.end, array=member.job if member else 0, array_index=member.index if member else -1,
        devices=spec.devices, min_devices=spec.min_devices, ranks=spec.ranks, attempt=ended.attempts,
        preemptions=ended.preemptions, exit_code=exit_code(ended), fraction=fraction_of(ended),
        target=ended.promised_us / max(1, ended.end - ended.submit) if ended.promised_us else _promised(spec),
        ideal_us=ended.ideal_us,
        delivered_gpu_s=ended.attained_milli_us / GPU_SECOND, held_gpu_s=ended.held_milli_us / GPU_SECOND,
        command=shlex.join(spec.command), spec=hide_environment(spec) if full else None,
        story=_history(ended.history) if full else (), lost_us=ended.lost_us, failure=_failure(ended, full),
    )  # fmt: skip


def _failure(ended: Ended, full: bool) -> api.FailureView | None:
    """The rank that a job's failure is put down to."""
    first = ended.failure
    if first is None:
        return None
    return api.FailureView(
        rank=first.rank, exit_code=first.code, signal=signal_name(first.code - 128), why=first.why, node=first.node,
        lines=first.lines if full else (),
    )  # fmt: skip


def almost_ended(ended: Ended, full: bool = False) -> api.JobView:
    """A job whose end is not durable yet: its exit code must not be reported."""
    return replace(ended_job(ended, full), state="stopping", end=-1, exit_code=api.NO_EXIT_CODE, failure=None)


def _why(book: Book, job: int, history: list[tuple[int, str, Cause]], now: int) -> tuple[str, Cause | None]:
    """(binding limit, why) for a waiting job, else ("", the last thing that happened)."""
    state = book.state(job)
    held = limit(book, job, now) if state is State.HELD else None
    if held is not None:
        return held[0].value, held[1]
    last = history[-1][2] if history else None
    if state not in (State.QUEUED, State.SUSPENDED):
        return "", outlook(book, job, now) or last
    if job in book.reservations:
        return Reason.DEVICES_RESERVED.value, last
    blocked = book.blocked.get(job)
    if blocked is not None:
        return blocked.reason.value, blocked.limit(now)
    return "", UNPLANNED if state is State.QUEUED else last


def _where(book: Book, allocation: Allocation, best_effort: bool) -> tuple[api.DeviceHeld, ...]:
    layout = book.board.layout
    return tuple(
        api.DeviceHeld(layout.nodes[part.node].name, tuple(bits(part.mask)), part.milli, best_effort)
        for part in allocation
    )


def nodes(book: Book) -> tuple[api.NodeView, ...]:
    """Every node, by name."""
    on: dict[int, dict[int, list[int]]] = {}
    for job, allocation in book.allocations.items():
        for part in allocation:
            for device in bits(part.mask):
                on.setdefault(part.node, {}).setdefault(device, []).append(job)
    away = _suspended_on(book)
    return tuple(
        _node(book, index, on.get(index, {}), tuple(away.get(name, ()))) for name, index in sorted(book.nodes.items())
    )


def _suspended_on(book: Book) -> dict[str, list[int]]:
    """Node to the jobs without devices whose memory, or whose only image, is there."""
    found: dict[str, list[int]] = {}
    names = [node.name for node in book.board.layout.nodes]
    for job, record in sorted(book.jobs.items()):
        if record.allocation is not None:
            continue
        pinned = book.table.pinned_node.item(book.table.row[job])
        if record.suspended_as == "process" and pinned >= 0:
            found.setdefault(names[pinned], []).append(job)
        elif record.image is not None:
            for name in record.image.places:
                if not record.image.survives(name):
                    found.setdefault(name, []).append(job)
    return found


def _node(book: Book, index: int, on: dict[int, list[int]], suspended: tuple[int, ...]) -> api.NodeView:
    spec = book.board.layout.nodes[index]
    down = book.node_down.get(index, "")
    cordon = book.outages.cordoned.get(index)
    why: Cause | None = None
    if index in book.drained:
        state, why = "draining", reported(book.drained[index])
    elif down:
        state, why = "down" if index in book.dead else "silent", reported(down)
    elif cordon is not None:
        state, why = "cordoned", cordon.why
    else:
        state = "up"
    drain = book.outages.drains.get(index)
    free = book.board.free[index].bit_count() if book.board.up >> index & 1 else 0
    asked = book.phys.host.get(index, (0, 0))
    return api.NodeView(
        name=spec.name, state=state, suspended=suspended, since=drain.since if drain else 0, moves=bool(drain and drain.moves),
        kind=spec.kind, devices=spec.devices, free=free,
        jobs=tuple(dict.fromkeys(job for device in sorted(on) for job in on[device])), device_memory=spec.device_memory,
        memory=spec.memory, cpus=spec.cpus, uuids=spec.uuids, note=spec.note, why=render(why),
        cause=cause_view_or_none(why), full=spec.full,
        faults={fault.device: render(fault.why) for fault in reversed(book.outages.of(index))},
        cpus_milli_asked=asked[0], memory_asked=asked[1],
        level=level(book, spec), busy=tuple(tuple(on.get(device, ())) for device in range(spec.devices)),
        shares=tuple(_share(book.specs[job], job, device, spec) for device in sorted(on) for job in on[device]
                     if book.specs[job].shares),
    )  # fmt: skip


def _share(spec: JobSpec, job: int, device: int, node: NodeSpec) -> api.ShareView:
    asked = share_of(spec, node.device_memory)
    return api.ShareView(device=device, job=job, share_class=spec.share_class, milli=asked.milli, memory=asked.memory)


def level(book: Book, spec: NodeSpec) -> str:
    """The highest level that a node supports: what it has no CRIU for is frozen, where that frees the devices."""
    if spec.full:
        return "full"
    return "freeze" if spec.kind in book.settings.freeze_kinds else "cooperative"


def with_inventory(node: api.NodeView, inventory: wire.Inventory | None) -> api.NodeView:
    """A node with the facts of its agent's inventory, when that is connected."""
    if inventory is None:
        return node
    address = f"{inventory.peer.address}:{inventory.peer.port}" if inventory.peer else ""
    return replace(
        node, full_why=inventory.full, criu=inventory.criu, address=address, images=len(inventory.images),
        unlimited=inventory.unlimited,
    )  # fmt: skip


def held_devices(book: Book) -> int:
    """Devices in use, shares rounded up."""
    return -(-book.phys.held_milli() // WHOLE_DEVICE)


ENOUGH_STARTS = 10
"""Starts that had been forecast from which on it is said how often that held."""


def calibration_view(found: StartCalibration) -> api.CalibrationView | None:
    """How often forecasts have held of late; None before there are enough of them."""
    if len(found.recent) < ENOUGH_STARTS:
        return None
    return api.CalibrationView(
        starts=len(found.recent), earlier=found.recently(EARLIER), inside=found.recently(INSIDE), later=found.recently(LATER),
        median_error_us=found.median_error_us(),
    )  # fmt: skip


def rates(book: Book) -> tuple[api.RateRow, ...]:
    """What is in force, by workload."""
    learnt, joined, known = book.learnt_rates, in_force(book), declared(book)
    mine, steps = set(learnt.throughputs), {(one.workload, one.kind): one.times for one in learnt.steps}
    rows = [
        api.RateRow(
            workload=row.workload, kind=row.kind, devices=row.devices, nodes=row.nodes, per_s=row.per_s, learnt=row in mine,
            declared_per_s=known.per_s(row.workload, row.kind, row.devices, row.nodes) if row in mine else 0.0,
        )
        for row in joined.throughputs
    ]  # fmt: skip
    for workload, model in joined.goodput.items():
        for kind, times in model.steps.items():
            rows.append(
                api.RateRow(
                    workload=workload, kind=kind, step_s=asdict(times), learnt=steps.get((workload, kind)) == times
                )
            )
    return tuple(sorted(rows, key=lambda row: (row.workload, row.kind, row.devices, row.nodes)))
