"""The view: everything a planner may know, frozen at one revision of the book."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .board import Board, Layout
from .job import JobSpec, State
from .node import Allocation
from .rate import RatedJob, RateEstimator, progress_column, rated, workload_at
from .service import ReclaimTerms
from .table import COLUMNS, Column, JobTable

_WAITING = (int(State.QUEUED), int(State.SUSPENDED))
_USUAL = (
    "id", "state", "tier", "level", "placement", "reserved", "submit", "wait_since", "run_since", "demand", "floor", "ranks",
    "held", "rate", "kinds", "memory", "ideal", "accrued", "held_milli", "expected", "pinned_node", "save_us", "restore_us",
    "since", "waived", "deadline", "weight", "restore_kind",
)  # fmt: skip
"""Columns that nearly every plan looks at."""
_ACTIVE = (int(State.STARTING), int(State.RUNNING), int(State.RESUMING))


def _sealed(column: Column) -> Column:
    """Read-only: a derived column is computed once and shared like the others."""
    column.flags.writeable = False
    return column


class JobColumns:
    """Read-only columns of the jobs that have not ended (see ``model.table.COLUMNS``), plus a few derived ones.

    Row i of every column is the same job. Arrays stay valid as long as the view they came from is kept.
    """

    waiting: Column
    """Rows that want devices and have none reserved: queued, or suspended by a plan. Shape (n,), bool."""
    active: Column
    """Rows that hold devices and keep them unless a plan says otherwise. Shape (n,), bool."""
    ideal_now: Column
    """Full-speed run time delivered until now, microseconds. Shape (n,), int64."""
    attained_now: Column
    """Service received until now, milli-device-microseconds. Shape (n,), int64."""
    shares: Column
    """Rows that ask for a share of a device. Shape (n,), bool."""
    wall: Column
    """Time since submission, microseconds, at least 1. Shape (n,), int64."""

    def __init__(self, table: JobTable, now: int) -> None:
        self.n = table.n
        self.row: Mapping[int, int] = table.row
        self.resourced = table.resourced
        """Whether any row may ask for host CPUs, host memory, or compute of a device apart from its memory."""
        self._arrays = table.arrays()
        self.__dict__.update({name: self._arrays[name][: self.n] for name in _USUAL})
        self._now = now
        self.memo: dict[Any, Any] = {}
        """What estimates and policies have derived from these columns, so that each is worked out once for a view. It is as
        long true as the view, which is never written."""

    # A column is made when it is first asked for. Not with functools.cached_property, which takes a lock each time.
    def __getattr__(self, name: str) -> Column:
        whole = self._arrays.get(name)
        if whole is not None:
            column = whole[: self.n]
        elif name in _DERIVED:
            column = _sealed(_DERIVED[name](self))
        else:
            raise AttributeError(f"no job column {name!r}; there are: {', '.join(COLUMNS)}")
        self.__dict__[name] = column
        return column

    @property
    def delivered(self) -> Column:
        """Delivered GPU fraction since submission: ideal time over wall time. Shape (n,), float64."""
        return self.ideal_now / self.wall


def _waiting(jobs: JobColumns) -> Column:
    state: Column = jobs.state
    found: Column = ((state == _WAITING[0]) | (state == _WAITING[1])) & ~jobs.reserved
    return found


def _active(jobs: JobColumns) -> Column:
    state: Column = jobs.state
    found: Column = (state == _ACTIVE[0]) | (state == _ACTIVE[1]) | (state == _ACTIVE[2])
    return found


def _ideal_now(jobs: JobColumns) -> Column:
    # Rows that do not run have rate zero.
    total: Column = jobs.ideal + progress_column(jobs._now - jobs.accrued, jobs.rate)
    return total


def _attained_now(jobs: JobColumns) -> Column:
    total: Column = jobs.attained + np.where(jobs.rate > 0, (jobs._now - jobs.accrued) * jobs.held_milli, 0)
    return total


def _wall(jobs: JobColumns) -> Column:
    since: Column = np.maximum(jobs._now - jobs.submit, 1)
    return since


def _shares(jobs: JobColumns) -> Column:
    found: Column = jobs.memory > 0
    return found | (jobs.gpu_milli > 0) if jobs.resourced else found


_DERIVED: dict[str, Callable[[JobColumns], Column]] = {
    "waiting": _waiting,
    "active": _active,
    "ideal_now": _ideal_now,
    "attained_now": _attained_now,
    "wall": _wall,
    "shares": _shares,
}


class View:
    """One revision of the book. ``board()`` is a scratch copy; everything else is shared and must not be written."""

    __slots__ = (
        "__weakref__",
        "_board",
        "allocations",
        "avoid",
        "estimate_sigma",
        "explained",
        "freeze_kinds",
        "image_nodes",
        "jobs",
        "layout",
        "now",
        "policy_state",
        "rates",
        "reclaims",
        "reservations",
        "revision",
        "specs",
        "tolerances",
    )

    def __init__(
        self,
        now: int,
        revision: int,
        table: JobTable,
        board: Board,
        specs: Mapping[int, JobSpec],
        allocations: Mapping[int, Allocation],
        reservations: Mapping[int, Allocation],
        image_nodes: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
        avoid: Mapping[int, int] = MappingProxyType({}),
        rates: RateEstimator | None = None,
        policy_state: tuple[str, bytes] = ("", b""),
        estimate_sigma: float = 0.0,
        tolerances: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
        reclaims: tuple[ReclaimTerms, ...] = (),
        freeze_kinds: tuple[str, ...] = (),
        explained: bool = True,
    ) -> None:
        self.now = now
        self.revision = revision
        self.jobs = JobColumns(table, now)
        self.layout: Layout = board.layout
        self._board = board
        self.specs = specs
        """Job id to what its user asked for."""
        self.allocations = allocations
        """Job id to the devices it holds now (jobs on their way out included)."""
        self.reservations = reservations
        """Job id to the devices set aside for it."""
        self.image_nodes = image_nodes
        """Job id to the nodes where its latest full image lies, in rank order; not for images that every node has equally far."""
        self.avoid = avoid
        """Job id to the set of nodes (as an int) that refused to launch it a while ago."""
        self.rates = rates
        """How fast a job runs where; None: only the number of devices counts (``model.splice``)."""
        self.policy_state = policy_state
        """What a policy of this name remembers (see ``policy.state``)."""
        self.estimate_sigma = estimate_sigma
        """How far users' estimates were off so far: standard deviation of the logarithm of their factor."""
        self.tolerances = tolerances
        """How long jobs with a promise that have ended could have stood idle (``estimate.tolerance``)."""
        self.reclaims = reclaims
        """What services with a reclaim deadline may claim."""
        self.freeze_kinds = freeze_kinds
        """Kinds of devices that a job releases when it is frozen."""
        self.explained = explained
        """Whether a plan is to say what keeps jobs from starting."""
        table.lend(self)

    def freezes(self, job: int) -> bool:
        """Whether a running job whose level is a full image would release its devices, too, by being frozen where it is."""
        held = self.allocations[job]
        kind = self.layout.nodes[held[0].node].kind
        return len(held) == 1 and kind in self.freeze_kinds and self.specs[job].may_be_frozen

    def board(self) -> Board:
        """A scratch board: free means neither reserved nor held by a job that may stay."""
        return self._board.copy()

    def rated(self, row: int) -> RatedJob:
        """The job of a row, as estimators of rates see it now."""
        jobs = self.jobs
        spec, at = self.specs[jobs.id.item(row)], jobs.reference.item(row)
        kind = self.layout.kinds[at] if at >= 0 else ""
        return rated(spec, kind, workload_at(spec, jobs.ideal_now.item(row)))

    @property
    def capacity(self) -> int:
        """Devices in service on nodes that are up."""
        sizes, board = self.layout.node_size, self._board
        if board.up.bit_count() == len(sizes) and not board.any_closed:
            return sum(self.layout.kind_devices)
        total = sum(size for node, size in enumerate(sizes) if board.up >> node & 1)
        if board.any_closed:
            total -= sum(mask.bit_count() for node, mask in enumerate(board.closed) if board.up >> node & 1)
        return total

    def in_service(self, job: int) -> bool:
        """Whether none of the devices that the job holds is out of service."""
        return self._board.open_for(self.allocations.get(job, ()))

    @property
    def any_closed(self) -> bool:
        """Whether a device of the pool is out of service."""
        return self._board.any_closed
