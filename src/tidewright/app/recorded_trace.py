"""The jobs of a recorded journal as a trace: each with the request that its user made, and the work that it was delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ..base.errors import TideError, UsageError
from ..base.units import SECOND
from ..drive.record import decode
from ..engine.commands import Ended
from ..engine.engine import Engine
from ..engine.events import Tick
from ..model.job import Dependency, JobSpec
from ..model.node import NodeSpec
from ..sim.trace import Trace, make_trace


@dataclass
class RecordedJob:
    """``submit`` and ``end`` in engine microseconds (``end`` 0: it had not ended), ``ideal_us`` of full-speed run time."""

    job: int
    spec: JobSpec
    submit: int
    ideal_us: int
    end: int = 0
    preemptions: int = 0


@dataclass
class RecordedJobs:
    """What ran since ``begin`` (engine microseconds; 0: from the start of the journal). Of jobs that were there by then only the
    rest of their work counts, as if they had been submitted at ``begin``."""

    begin: int = 0
    rows: list[RecordedJob] = field(default_factory=list)
    unstarted: int = 0
    clients: int = 0
    carried: dict[int, int] | None = None
    """Full-speed microseconds that jobs had by ``begin``; None before it."""

    def before(self, body: bytes, engine: Engine) -> bool:
        """A turn is to be replayed: before the first one from ``begin`` on, note what will have been done by then. Returns
        whether it is this one."""
        if not self.begin or self.carried is not None or decode(body).now < self.begin:
            return False
        then = engine.fork()
        then.step(self.begin, [Tick()])
        self.carried = {row.job: row.ideal_us for row in live_jobs(then)}
        return True

    def add(self, ended: Ended) -> None:
        """A job has ended."""
        if ended.end < self.begin:
            return
        row = RecordedJob(ended.job, ended.spec, ended.submit, ended.ideal_us, ended.end, ended.preemptions)
        if ended.spec.runtime:
            self.clients += 1
        elif self._kept(row):
            self.rows.append(row)
        else:
            self.unstarted += 1

    def close(self, engine: Engine) -> tuple[int, int]:
        """The journal is over: add the jobs that had not ended. Returns (those that had run, those that had not)."""
        self.clients += sum(bool(spec.runtime) for spec in engine.book.specs.values())
        left = live_jobs(engine)
        ran = [row for row in left if self._kept(row)]
        self.rows += ran
        return len(ran), len(left) - len(ran)

    def _kept(self, row: RecordedJob) -> bool:
        if row.submit < self.begin:
            row.submit = self.begin
            row.ideal_us -= (self.carried or {}).get(row.job, 0)
        return row.ideal_us > 0


def nodes_there(engine: Engine) -> list[NodeSpec]:
    """The nodes that an engine has now, without those that went down with everything on them and are not back."""
    book = engine.book
    return [node for index, node in enumerate(book.board.layout.nodes) if index not in book.dead]


def live_jobs(engine: Engine) -> list[RecordedJob]:
    """The jobs that an engine has now."""
    view = engine.view()
    jobs = view.jobs
    return [
        RecordedJob(job, view.specs[job], int(jobs.submit[row]), int(jobs.ideal_now[row]))
        for job, row in sorted(jobs.row.items())
        if not view.specs[job].runtime
    ]


def in_order(rows: Sequence[RecordedJob]) -> list[RecordedJob]:
    """By submission; jobs that wait for others come after them."""
    submit, arrays = {row.job: row.submit for row in rows}, _arrays(rows)
    for row in sorted(rows, key=lambda row: row.job):
        before = [submit[job] for job in _awaited(row.spec, arrays) if job in submit]
        submit[row.job] = row.submit = max([row.submit, *(at + 1 for at in before)])
    return sorted(rows, key=lambda row: (row.submit, row.job))


def trace_of(rows: Sequence[RecordedJob], name: str) -> Trace:
    """Rows in order as a trace. Raises UsageError."""
    place, arrays = {row.job: at for at, row in enumerate(rows)}, _arrays(rows)
    teams = tuple(sorted({row.spec.team for row in rows}))
    kinds = tuple(dict.fromkeys(row.spec.device_types for row in rows))
    try:
        return make_trace(
            f"recorded in {name}",
            np.array([row.submit / SECOND for row in rows]),
            np.array([row.ideal_us / SECOND for row in rows]),
            np.array([row.spec.devices for row in rows]),
            tier=np.array([int(row.spec.tier_rank) for row in rows], np.int8),
            team=np.array([teams.index(row.spec.team) for row in rows], np.int32),
            teams=teams,
            floor=np.array([row.spec.min_devices for row in rows], np.int32),
            gpu_memory=np.array([row.spec.gpu_memory for row in rows], np.int64),
            kinds=np.array([kinds.index(row.spec.device_types) for row in rows], np.int32),
            kind_names=kinds,
            expected=np.array([row.spec.expected_us for row in rows], np.int64),
            ids=tuple(str(row.job) for row in rows),
            specs=tuple(_again(row.spec, place, arrays) for row in rows),
        )
    except TideError as error:
        raise UsageError(f"{name}: {error}", "give a journal of jobs that ran") from None


def _arrays(rows: Sequence[RecordedJob]) -> dict[int, list[int]]:
    """Members by the id of their array."""
    found: dict[int, list[int]] = {}
    for row in rows:
        if row.spec.array is not None and row.spec.array.job:
            found.setdefault(row.spec.array.job, []).append(row.job)
    return found


def _awaited(spec: JobSpec, arrays: Mapping[int, Sequence[int]]) -> list[int]:
    """The jobs that a job waited for, each member of an array by itself."""
    return [job for one in spec.after for job in (arrays.get(one.job, ()) if one.array else (one.job,))]


def _again(spec: JobSpec, place: Mapping[int, int], arrays: Mapping[int, Sequence[int]]) -> JobSpec:
    """The request as it is submitted again. No job fails when it is simulated, and none runs longer than it did: retries and
    limits say nothing then, a job that waited for a failure waits for the end, a replica of a service is a job like others."""
    after = tuple(Dependency("afterany", place[job]) for job in _awaited(spec, arrays) if job in place)
    return msgspec.structs.replace(
        spec,
        after=after,
        retries=0,
        retry_exit_codes=(),
        max_duration_us=0,
        env={},
        workdir="",
        output="",
        run_as="",
        service="",
    )
