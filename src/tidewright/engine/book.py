"""The book: all that is true now, and the operations that keep its parts consistent with each other.

Two boards: ``board`` is what is *committed* (held by jobs that may stay, or reserved), ``phys`` what is *occupied*.
A job on its way out occupies but is no longer committed, so its devices can be reserved before they are released.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Any

from ..base.units import HOUR
from ..estimate.history import RunTimeHistory
from ..estimate.pauses import PauseHistory
from ..estimate.tolerance import Tolerances
from ..model.array_record import ArrayRecord
from ..model.board import Board, Layout, extend, relaid
from ..model.cause import Cause, Code
from ..model.job import JobSpec, Level, State
from ..model.job_record import ATTEMPT_GROUPS, FieldGroup, JobRecord, fresh
from ..model.node import Allocation, NodeSpec, lone_node, milli_devices
from ..model.table import JobTable
from ..model.view import View
from ..plan.plan import Wake
from ..plan.reasons import Blocked, Reason
from ..plan.render import render
from ..plan.request import Request, request_of, row_request
from . import frozen_memory, rates
from .calibration import StartCalibration
from .commands import Command, Reply
from .image_catalog import ImageCatalog
from .ledger import PoolLedger, accrue, arm_limit, start_service, stop_service
from .nodes.outages import Outages
from .services.records import ServiceBook
from .settings import EngineSettings
from .tier_demand import TierDemand
from .wall_time import Offsets

_LEVELS = {
    "freeze": Level.FREEZE, "cooperative": Level.COOPERATIVE, "requeue": Level.REQUEUE, "none": Level.NONE,
}  # fmt: skip
_OF_AN_ATTEMPT = fresh(*ATTEMPT_GROUPS)
_OF_DEVICES = fresh(FieldGroup.DEVICES, FieldGroup.HELD_IN_PLACE)
SUSPENDED, RUNNING, QUEUED, HELD = int(State.SUSPENDED), int(State.RUNNING), int(State.QUEUED), int(State.HELD)


class Book(ImageCatalog):
    """Everything the engine knows. Written only inside ``Engine.step``."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self.settings = settings
        self.now = self.revision = self.steps = self.timer_seq = self.wake_due = 0
        self.wall_offsets: Offsets = ()
        self.next_job = 1
        self.table = JobTable()
        self.jobs: dict[int, JobRecord] = {}
        """Jobs that have not ended."""
        self.specs: dict[int, JobSpec] = {}
        self.allocations: dict[int, Allocation] = {}
        self.reservations: dict[int, Allocation] = {}
        self.avoided: dict[int, int] = {}
        """Job to the set of nodes (an int) that refused to launch it. These four and ``image_nodes`` are what planners see of the
        records; they are copied while a view is alive (``own``)."""
        self.board, self.phys, self.services = Board(Layout.of(())), Board(Layout.of(())), ServiceBook()
        self.nodes: dict[str, int] = {}
        self.incarnations: dict[str, str] = {}
        self.node_down: dict[int, Cause | str] = {}
        """Nodes that are unschedulable, and why (down, silent, drained)."""
        self.drained: dict[int, Cause | str] = {}
        self.outages, self.ledger = Outages(), PoolLedger()
        self.arrays: dict[str, ArrayRecord] = {}
        self.outcomes, self.array_outcomes = dict[int, int](), dict[int, int]()
        self.answers: dict[str, Reply] = {}
        self.teams: dict[str, int] = {}
        self.timers: list[tuple[int, int, str, int, int]] = []
        self.counts = [0] * len(State)
        self.elastic_jobs, self.tier_demand = 0, TierDemand()
        self.runtimes: dict[int, bool] = {}
        """Jobs that are device runtimes; follows from the specs."""
        self.wake, self.first_arrival = Wake(), 0
        """The least id of the jobs that have arrived since the last planning round was asked for; 0 where that is not known."""
        self.arrived = self.freed = self.forced = self.planning = self.refused = False
        self.blocked: dict[int, Blocked] = {}
        self.policy_state: tuple[str, bytes] = ("", b"")
        self.tolerances, self.learnt_rates = Tolerances(), rates.NOTHING_LEARNT
        self.run_times, self.pauses, self.start_calibration = RunTimeHistory(), PauseHistory(), StartCalibration()
        self.reservation_order: dict[int, dict[int, bool]] = {}
        """Node to the jobs with devices reserved on it, oldest reservation first."""
        self.touched: dict[int, bool] = {}
        self.out: list[Command] = []
        self.withdrawn: dict[int, int] = {}
        """Job to the length of ``out`` when it restarted in this step: its orders before that are of the attempt that is over."""

    def view(self, now: int = 0) -> View:
        """Everything a planner may know, frozen; as it stands at ``now``, if that is later. Costs microseconds."""
        return View(
            max(now, self.now), self.revision, self.table, self.board, self.specs, self.allocations, self.reservations,
            self.image_nodes, self.avoided, rates.estimator(self), self.policy_state, self.run_times.sigma, self.tolerances,
            self.services.reclaims(), self.settings.freeze_kinds, self.settings.explained,
        )  # fmt: skip

    def own(self) -> None:
        """Copy what a living view shares, so that it does not see what is written next."""
        if self.table.own():
            self.board = self.board.copy()
            self.specs, self.allocations = self.specs.copy(), self.allocations.copy()
            self.reservations, self.avoided = self.reservations.copy(), self.avoided.copy()
            self.image_nodes = self.image_nodes.copy()

    # -- state ------------------------------------------------------------------------------------------------------

    def state(self, job: int) -> State:
        """Current state of a job in the book."""
        return State(self.jobs[job].state)

    def note_arrival(self, job: int) -> None:
        """A job waits that the last planning round did not see waiting."""
        self.first_arrival = min(self.first_arrival, job) if self.arrived else job
        self.arrived = True

    def renew(self, job: int) -> None:
        """Reset all facts of the attempt that is over; the caller sets the level."""
        self.jobs[job].reset(_OF_AN_ATTEMPT)

    def record(self, job: int, label: str, why: Cause) -> None:
        """Add a line to the job's history."""
        limit = self.settings.history_length
        if not limit:
            return
        history = self.jobs[job].history
        history.append((self.now, label, why))
        if len(history) > limit:
            del history[limit // 4]

    def format_history(self, job: int) -> str:
        """The job's history, one line each, times in seconds."""
        lines = self.jobs[job].history
        return "\n".join(f"  {at / 1e6:>14.3f}s {label.lower():<11} {render(why)}" for at, label, why in lines)

    def usual_level(self, spec: JobSpec) -> int:
        """How a job can be made to yield where not every node takes full images (model.job.Level)."""
        if spec.runtime:
            return int(Level.NONE)
        gang = spec.ranks > 1
        strongest = self.settings.gang_level if gang else self.settings.auto_level
        if spec.preempt in ("auto", "full") or (spec.preempt == "freeze" and gang):
            return strongest
        return int(_LEVELS[spec.preempt])

    def true_level(self, job: int) -> int:
        """The level of a job whether or not it is in a suspension cooldown."""
        cooldown = self.jobs[job].suspend_cooldown
        return cooldown.level if cooldown is not None else int(self.table.level.item(self.table.row[job]))

    def request(self, job: int, count: int = 0) -> Request:
        """What the job may have now, ``count``: devices to look for (0: its floor). Nodes that refused to launch it are not ruled
        out: planners avoid them for a while, its user may name them."""
        layout, held = self.board.layout, self.allocations.get(job, ())
        return row_request(layout, self.specs[job], self.table, self.table.row[job], held, count)

    # -- devices ----------------------------------------------------------------------------------------------------

    def reserve(self, job: int, allocation: Allocation) -> None:
        """Reserve devices for a job."""
        allocation = frozen_memory.without(self.jobs[job], allocation)
        self.board.acquire(allocation)
        self.reservations[job] = self.jobs[job].reservation = allocation
        self.table.reserved[self.table.row[job]] = True
        for part in allocation:
            self.reservation_order.setdefault(part.node, {})[job] = True

    def cancel_reservation(self, job: int) -> None:
        """Cancel a reservation; its devices are free for others."""
        self.board.release(self._end_reservation(job))
        self.freed = True

    def _end_reservation(self, job: int) -> Allocation:
        allocation = self.reservations.pop(job)
        self.jobs[job].reservation = None
        self.table.reserved[self.table.row[job]] = False
        for part in allocation:
            waiting = self.reservation_order[part.node]
            del waiting[job]
            if not waiting:
                del self.reservation_order[part.node]
        return allocation

    def occupy(self, job: int) -> Allocation:
        """Turn a reservation into an allocation: the devices must be physically free."""
        allocation = self._with_memory(job, self._end_reservation(job))
        self.phys.acquire(allocation)
        record = self.jobs[job]
        self.allocations[job] = record.allocation = allocation
        self.table.lone_node[self.table.row[job]] = lone_node(allocation)
        self.ledger.open(record, milli_devices(allocation), self.now)
        return allocation

    def _with_memory(self, job: int, reserved: Allocation) -> Allocation:
        """The allocation that comes of a reservation: with the host memory that a frozen job has kept."""
        record = self.jobs[job]
        if record.frozen_memory is None:
            return reserved
        frozen_memory.drop(self.board, self.phys, record)
        allocation = request_of(self.board.layout, record.spec).with_resources(reserved, self.board.layout)
        self.board.release(reserved)
        self.board.acquire(allocation)
        return allocation

    def mark_leaving(self, job: int, frozen: bool = False) -> None:
        """The job will release its devices: they may be reserved for others. ``frozen``: its memory stays where it is."""
        record = self.jobs[job]
        if record.allocation is not None and not record.leaving:
            self.board.release(record.allocation)
            record.leaving = True
            if frozen:
                frozen_memory.keep(self.board, record)

    def vacate(self, job: int) -> list[int]:
        """The job has released its devices; planners are woken for those that were committed to it. Returns the nodes where some
        became physically free."""
        record = self.jobs[job]
        if (allocation := record.allocation) is None:
            return []
        self.freed = self.freed or not record.leaving
        self.forced = self.forced or job in self.wake.on_end
        frozen = bool(record.spec.memory) and record.suspended_as == "process" and self._pinned(job)
        self.mark_leaving(job, frozen)
        del self.allocations[job]
        self.phys.release(allocation)
        self.ledger.close(record, milli_devices(allocation), self.now)
        if record.frozen_memory is not None:
            frozen_memory.settle(self.board, self.phys, record, frozen)
        record.reset(_OF_DEVICES)
        row = self.table.row[job]
        self.table.held[row] = 0
        self.table.held_milli[row] = 0
        self.table.lone_node[row] = 0
        return [part.node for part in allocation]

    def _pinned(self, job: int) -> bool:
        return bool(self.table.pinned_node.item(self.table.row[job]) >= 0)

    def retract_leave(self, job: int) -> list[int]:
        """A leaving job stays after all: commit its devices to it again, cancelling the reservations made on them.

        Returns the jobs whose reservation was cancelled.
        """
        allocation = self.allocations[job]
        frozen_memory.drop(self.board, self.phys, self.jobs[job])
        cancelled: list[int] = []
        if not self._fits_whatever_up(allocation):
            nodes = {part.node: True for part in allocation}
            cancelled = [
                other for other, parts in self.reservations.items() if any(part.node in nodes for part in parts)
            ]
            for other in cancelled:
                self.cancel_reservation(other)
        self.board.acquire(allocation)
        self.jobs[job].leaving = False
        return cancelled

    def _fits_whatever_up(self, allocation: Allocation) -> bool:
        """Whether devices are uncommitted, also those that take no new work."""
        board = self.board
        for node, mask, milli, resources in allocation:
            if resources is not None and not board.part_fits(node, mask, milli, resources):
                return False
            used = board.partial.get((node, mask), 0)
            if milli < 1000 and used:
                if used + milli > 1000:
                    return False
            elif board.untouched[node] & mask != mask:
                return False
        return True

    def begin_service(self, job: int) -> None:
        """The job makes progress from now on."""
        row = self.table.row[job]
        start_service(self.table, row, self.allocations[job], self.now, rates.begin(self, job, row))
        if self.table.first_start.item(row) < 0:
            self.table.first_start[row] = self.now
        arm_limit(self, job)

    def accrue(self, row: int) -> None:
        """Bring a job's service up to date."""
        accrue(self.table, row, self.now)

    def end_service(self, job: int) -> None:
        """The job makes no progress from now on."""
        row, record = self.table.row[job], self.jobs[job]
        since = self.table.run_since.item(row)
        if since >= 0 and not record.spec.service:  # replicas have no limit, and may start from the image of another
            record.run_time_used_us += self.now - since
        if since >= 0 and record.rollback_count:
            _halve_rollbacks(record, self.now - since)
        stop_service(self.table, row, self.now)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def add_nodes(self, nodes: list[NodeSpec]) -> None:
        """Nodes seen for the first time, in one go: a layout is rebuilt in time linear in its size."""
        old = self.board.layout
        layout = Layout.of((*old.nodes, *nodes))
        self.board, self.phys = extend(self.board, layout), extend(self.phys, layout)
        for node in nodes:
            self.nodes[node.name] = len(self.nodes)
        self._count_up()
        if layout.kinds != old.kinds:
            self.refresh_kinds(old.kinds)

    def replace_node(self, index: int, node: NodeSpec) -> None:
        """A node is described anew; what is held of its devices is among those it has now."""
        kinds, nodes = self.board.layout.kinds, list(self.board.layout.nodes)
        nodes[index] = node
        layout = Layout.of(tuple(nodes))
        committed = [parts for job, parts in self.allocations.items() if not self.jobs[job].leaving]
        frozen = {job: one.frozen_memory for job, one in self.jobs.items() if one.frozen_memory is not None}
        away = [parts for job, parts in frozen.items() if job not in self.allocations]
        self.board = relaid(self.board, layout, [*committed, *self.reservations.values(), *frozen.values()])
        self.phys = relaid(self.phys, layout, [*self.allocations.values(), *away])
        self.refresh_kinds(kinds)

    def refresh_kinds(self, before: tuple[str, ...]) -> None:
        """Device kinds were renumbered or added: recompute which kinds each job may use."""
        layout, table = self.board.layout, self.table
        for job, spec in self.specs.items():
            row = table.row[job]
            table.kinds[row] = rates.kinds_of(self, spec)
            rates.set_reference(self, job)
            kind_index = table.restore_kind.item(row)
            if kind_index >= 0:
                table.restore_kind[row] = layout.kind_index(before[kind_index])

    def set_node_up(self, index: int) -> None:
        """Let the node take work unless something says no."""
        up = index not in self.node_down and index not in self.drained and index not in self.outages.cordoned
        self.board.set_up(index, up)
        self._count_up()
        self.forced = True

    def _count_up(self) -> None:
        self.world_failures.nodes(self.now, len(self.nodes) - len(self.node_down))

    # -- timers -----------------------------------------------------------------------------------------------------

    def set_timer(self, at: int, kind: str, job: int = -1, token: int = 0) -> None:
        """Ask to be stepped at ``at``. Timers are never removed; a stale ``token`` makes them harmless."""
        self.timer_seq += 1
        heapq.heappush(self.timers, (at, self.timer_seq, kind, job, token))

    # -- leaving the book -------------------------------------------------------------------------------------------

    def forget(self, job: int, state: int) -> None:
        """Drop every trace of an ended job except its outcome."""
        spec = self.specs.pop(job)
        devices = self.jobs[job].size_override or spec.devices
        self.tier_demand.add(spec.tier_rank, devices, spec.gpu_memory, spec.compute_milli, -1)
        if spec.elastic:
            self.elastic_jobs -= 1
        self.table.remove(job)
        self.counts[state] -= 1
        self.outcomes[job] = state
        forget_oldest(self.outcomes, self.settings.remembered_outcomes)
        for store in (
            self.jobs, self.runtimes, self.image_nodes, self.with_images, self.blocked, self.touched, self.avoided,
        ):  # fmt: skip
            store.pop(job, None)

    def hold_reason(self, job: int, now: int = 0) -> tuple[Reason, Cause] | None:
        """Why a job that is HELD is held. ``now``: the reader's time, if that is later than the book's."""
        record = self.jobs[job]
        if record.awaited is not None:
            return Reason.DEPENDENCY, record.awaited
        if record.user_hold is not None:
            return self.services.held_because(record.spec.service, job, record.held_by)
        if record.waiting_array is not None:
            return Reason.ARRAY_LIMIT, Code.ARRAY_FULL(record.waiting_array)
        runtime = self.jobs.get(record.runtime_job) if record.runtime_job else None
        if runtime is not None and runtime.state != RUNNING:
            return Reason.RUNTIME, Code.WAITS_FOR_RUNTIME(record.spec.runtime, record.runtime_job)
        if record.backoff_until:
            return Reason.BACKOFF, Code.BACKOFF(max(0, record.backoff_until - max(now, self.now)))
        return None


def _halve_rollbacks(record: JobRecord, ran_us: int) -> None:
    """A job ran so long without a failure of the world's: each hour halves what is remembered of those before."""
    hours, record.rollback_free_us = divmod(record.rollback_free_us + ran_us, HOUR)
    record.rollback_count >>= hours
    if not record.rollback_count:
        record.rollback_free_us = 0


def forget_oldest(store: dict[Any, Any], limit: int) -> None:
    """Keep about ``limit`` entries. A tenth goes at a time: finding the first key of a dict costs its deleted slots."""
    if len(store) > limit + limit // 10:
        for key in list(islice(store, len(store) - limit)):
            del store[key]
