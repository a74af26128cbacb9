"""A recorded journal as a trace and a cluster, so that the same jobs can be run under another policy.

A job's duration is the full-speed run time it was delivered. Jobs that had not ended are censored there: they are
counted, because what they would still have needed is unknown.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import Bug, NotFound, UsageError
from ..base.units import agreeing, counted
from ..drive.record import FORMAT, StepRecord, decode
from ..engine.commands import Ended, Launch
from ..engine.engine import Engine
from ..engine.events import Checkpointed, Hold, NodeUp, Resumed, Started, Suspended
from ..engine.settings import EngineSettings
from ..live.journal.recover import SETTINGS, Replayed, Since, settings_of
from ..live.journal.store import DATABASE
from ..model.node import NodeSpec
from ..sim.costs import Costs, RecordedCost, recorded_cost
from ..sim.trace import Trace
from .recorded_trace import RecordedJob, RecordedJobs, in_order, nodes_there, trace_of

_REMEDY = "give a state directory, its journal.db, or the output of tide journal export"


class Head(msgspec.Struct, frozen=True):
    """First line of an exported journal. ``settings_since``: when which settings were in force, oldest first; exports of
    earlier versions only have those of the end, ``settings``."""

    tidewright_journal: int
    version: str = ""
    policy: str = ""
    base_turn: int = 0
    settings: EngineSettings = EngineSettings()
    settings_since: tuple[Since, ...] = ()

    @property
    def known(self) -> list[Since]:
        """When which settings were in force."""
        return list(self.settings_since) or [Since(0, self.settings)]


@dataclass
class Recording:
    """``trace`` and ``nodes`` are ready to simulate; ``notes`` say what of the journal they do not hold. ``nodes``: all that were
    there at the beginning, and those that came later."""

    trace: Trace
    nodes: tuple[NodeSpec, ...]
    policy: str
    settings: EngineSettings
    costs: Costs
    """As distributions over all jobs."""
    own_costs: Costs
    """The same for simulations of ``trace``: each job's operations take what its own took, while it has no more of them."""
    jobs: list[RecordedJob]
    """Of each row of the trace, what became of it."""
    notes: list[str] = field(default_factory=list)


def read(path: Path, since_us: int = 0) -> Recording:
    """The recording in a state directory, a journal database or an exported journal; of its last ``since_us`` only, if that is
    given. Raises UsageError."""
    if path.is_dir():
        path = path / DATABASE
    if not path.exists():
        raise NotFound(f"no such journal: {path}", _REMEDY)
    head, bodies = _exported(path) if path.suffix != ".db" else _database(path)
    if head.base_turn:
        raise UsageError(
            f"{path} starts at turn {head.base_turn}, after a repair: what came before is not in it",
            "replay a journal that goes back to its beginning",
        )
    try:
        return _gather(path, head, bodies, _last(path) - since_us if since_us else 0)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a journal of this version: {error}", _REMEDY) from None
    except Bug as error:
        raise UsageError(
            f"{path} cannot be followed by this version: {error}",
            "replay it with the version of tidewright that wrote it",
        ) from None
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path} cannot be read: {error}", "tide doctor says what can be recovered") from None


def _exported(path: Path) -> tuple[Head, Iterator[bytes]]:
    stream = path.open("rb")
    try:
        head = msgspec.json.decode(stream.readline(), type=Head)
    except msgspec.MsgspecError as error:
        stream.close()
        raise UsageError(f"{path} is not an exported journal: {error}", _REMEDY) from None

    def lines() -> Iterator[bytes]:
        with stream:
            for line in stream:
                if line.strip():
                    yield line.rstrip(b"\n")

    return head, lines()


def _database(path: Path) -> tuple[Head, Iterator[bytes]]:
    try:
        db = _opened(path)
        keys = ("base_turn", SETTINGS, "format")
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN (?, ?, ?)", keys).fetchall())
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path} is not a journal: {error}", _REMEDY) from None
    if meta.get("format") != FORMAT or SETTINGS not in meta:
        raise UsageError(f"{path} is not a journal that this version can replay", _REMEDY)
    known = settings_of(meta[SETTINGS])
    bodies = (row[0] for row in db.execute("SELECT body FROM turns ORDER BY turn"))
    return Head(FORMAT, base_turn=int(meta.get("base_turn", 0)), settings_since=tuple(known)), bodies


def _opened(path: Path) -> sqlite3.Connection:
    """A read-only connection; a controller may go on writing meanwhile. Raises sqlite3.DatabaseError."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    # In a directory that may not be written SQLite cannot make its index of the log; without a log it needs none.
    whole = not path.with_name(f"{path.name}-wal").exists() and not os.access(path.parent, os.W_OK)
    return sqlite3.connect(f"{address}&immutable=1" if whole else address, uri=True)


class _Measured:
    """What launches, saves and restores took in the recording: of all its jobs, and of each since ``begin``."""

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._launched: dict[tuple[int, int], int] = {}
        names = ("launch_us", "restart_us", "save_us", "restore_us", "checkpoint_us")
        self._took: dict[str, list[int]] = {name: [] for name in names}
        self._of_job: dict[str, dict[int, list[int]]] = {name: {} for name in names}

    def observe(self, record: StepRecord) -> None:
        for event in record.events:
            if isinstance(event, Started) and (event.job, event.attempt) in self._launched:
                operation = "restart_us" if event.attempt > 1 else "launch_us"
                self._note(record, operation, event.job, record.now - self._launched.pop((event.job, event.attempt)))
            elif isinstance(event, Suspended):
                self._note(record, "save_us", event.job, event.save_us)
            elif isinstance(event, Resumed):
                self._note(record, "restore_us", event.job, event.restore_us)
            elif isinstance(event, Checkpointed):
                self._note(record, "checkpoint_us", event.job, event.save_us)
        for command in record.commands:
            if isinstance(command, Launch):
                self._launched[command.job, command.attempt] = record.now

    def _note(self, record: StepRecord, operation: str, job: int, took_us: int) -> None:
        self._took[operation].append(took_us)
        if record.now >= self._begin:
            self._of_job[operation].setdefault(job, []).append(took_us)

    def costs(self) -> Costs:
        """What each took, as distributions; the simulator's own cost where nothing was measured."""
        took: dict[str, Any] = {name: recorded_cost(took) for name, took in self._took.items() if took}
        return Costs(**took)

    def own_costs(self, rows: Sequence[RecordedJob]) -> Costs:
        """The same, and first what each job's own operations took. ``rows`` in the order of the trace."""
        changed = {}
        for name, of_job in self._of_job.items():
            cost = getattr(self.costs(), name)
            if isinstance(cost, RecordedCost):
                own = {at: tuple(of_job[row.job]) for at, row in enumerate(rows) if row.job in of_job}
                changed[name] = msgspec.structs.replace(cost, of_row=own)
        return msgspec.structs.replace(self.costs(), **changed)


def _last(path: Path) -> int:
    """Engine microseconds of the last turn."""
    bodies = (_exported(path) if path.suffix != ".db" else _database(path))[1]
    last = deque(bodies, maxlen=1)
    return decode(last[0]).now if last else 0


def _gather(path: Path, head: Head, bodies: Iterable[bytes], begin: int) -> Recording:
    nodes: dict[str, NodeSpec] = {}
    jobs = RecordedJobs(max(begin, 0))
    measured = _Measured(jobs.begin)
    held: set[int] = set()

    engine = Engine(head.known[0].settings)
    again = Replayed(engine, head.known)
    for turn, body in enumerate(bodies, 1):
        if jobs.before(body, engine):  # what is not there any more is no part of the pool
            nodes = {node.name: node for node in nodes_there(engine)}
        record = again.turn(turn, body)
        nodes.update({event.node.name: event.node for event in record.events if isinstance(event, NodeUp)})
        held.update(event.job for event in record.events if isinstance(event, Hold))
        for ended in record.commands:
            if isinstance(ended, Ended):
                jobs.add(ended)
        measured.observe(record)
    censored, waiting = jobs.close(engine)
    if not jobs.rows:
        raise UsageError(f"{path}: no job in it has run yet", "run some jobs first")
    rows = in_order(jobs.rows)
    recording = Recording(
        trace_of(rows, path.parent.name if path.name == DATABASE else path.name), tuple(nodes.values()), head.policy,
        head.known[-1].settings, measured.costs(), measured.own_costs(rows), rows,
    )  # fmt: skip
    for count, text in (
        (censored, "had not ended when the journal did: censored at the run time until then"),
        (waiting, "had not started when the journal ended and {are} left out"),
        (jobs.unstarted, "ended without having run and {are} left out"),
        (jobs.clients, "asked for no devices, only for a device runtime, and {are} left out"),
        (sum(row.job in held for row in rows), "{were} held meanwhile; holds are not simulated"),
        (sum(bool(row.spec.retries) for row in rows), "may be retried; failures are not simulated"),
        (sum(bool(row.spec.max_duration_us) for row in rows), "had a time limit, which says nothing here"),
    ):
        if count:
            words = text.format(are=agreeing(count, "is", "are"), were=agreeing(count, "was", "were"))
            recording.notes.append(f"{counted(count, 'job')} {words}")
    if again.turns:
        recording.notes.append(
            f"{counted(again.turns, 'turn')} from turn {again.first} on {agreeing(again.turns, 'was', 'were')} decided otherwise "
            "by the version that wrote the journal; "
            "what was recorded was adopted"
        )
    return recording
