"""Commands into calls on agents, agents' reports into events. Pure: the book and the reports in, values out.

An attempt may sit on several nodes; its events speak of it as a whole, so reports are gathered until all nodes agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from ..base.units import SECOND
from ..engine.book import Book
from ..engine.commands import Command, Launch, ResumeRanks, StopRanks, SuspendRanks
from ..engine.events import Event, Exited, Resumed, ResumeFailed, Started, StartFailed, Suspended, SuspendFailed
from ..model.job import Level, State
from ..model.node import Allocation, RankPlace, rank_layout
from ..wire import agent as wire

Key = tuple[int, int]
"""(job, attempt)"""
GONE = ("exited", "failed")
STRAY_GRACE_US = 10 * SECOND
"""Grace for ranks that the book knows nothing of."""
_FAILED = {"launch": StartFailed, "suspend": SuspendFailed, "resume": ResumeFailed}


class Call(NamedTuple):
    """One call on one agent. ``op_id`` is the same whenever this request is repeated, also by a later controller."""

    node: str
    method: str
    args: Struct
    op_id: str
    job: int
    attempt: int


class Outcome(NamedTuple):
    """What a report means: events for the engine, and calls that need no decision."""

    events: list[Event]
    calls: list[Call]


class Reach(NamedTuple):
    """How ranks of one attempt find each other."""

    address: str
    port: int


class Translator:
    """Remembers the last report of every node for every attempt that is not over."""

    def __init__(self, book: Book, reach: Callable[[tuple[str, ...]], Reach]) -> None:
        self.book = book
        self._reach = reach
        self._reports: dict[Key, dict[str, wire.JobReport]] = {}

    # -- commands into calls ----------------------------------------------------------------------------------------

    def calls(self, command: Command) -> list[Call]:
        """The calls that carry out a command; none for commands that are not about ranks."""
        if isinstance(command, Launch):
            return self._launch(command)
        if isinstance(command, SuspendRanks):
            grace, bounded = self._grace(command.job), command.job in self.book.pins
            args = wire.SuspendArgs(
                job=command.job, attempt=command.attempt, level=command.level, grace_us=grace, bounded=bounded
            )
            return self._each(self._nodes(command.allocation), "suspend", args)
        if isinstance(command, ResumeRanks):
            return self._resume(command)
        if isinstance(command, StopRanks):
            stop = wire.StopArgs(job=command.job, attempt=command.attempt, grace_us=command.grace_us)
            return self._each(self._where(command.job), "stop", stop)
        return []

    def _launch(self, command: Launch) -> list[Call]:
        spec = self.book.specs[command.job]
        seats = rank_layout(command.allocation, spec.ranks)
        nodes = self._nodes(command.allocation)
        reach = self._reach(nodes)
        calls = []
        for group, node in enumerate(nodes):
            args = wire.LaunchArgs(
                job=command.job, attempt=command.attempt, name=spec.name, command=spec.command, env=spec.env,
                workdir=spec.workdir, output=spec.output, array_index=spec.array.index if spec.array else -1,
                world_size=spec.ranks, group_rank=group, ranks=_on(seats, self.book.nodes[node]),
                master_addr=reach.address, master_port=reach.port, grace_us=spec.grace_us,
            )  # fmt: skip
            calls.append(self._call(node, "launch", args, command.job, command.attempt))
        return calls

    def _resume(self, command: ResumeRanks) -> list[Call]:
        seats = rank_layout(command.allocation, self.book.specs[command.job].ranks)
        calls = []
        for node in self._nodes(command.allocation):
            ranks = tuple(wire.NewSeat(seat.rank, seat.devices) for seat in _on(seats, self.book.nodes[node]))
            args = wire.ResumeArgs(job=command.job, attempt=command.attempt, ranks=ranks)
            calls.append(self._call(node, "resume", args, command.job, command.attempt))
        return calls

    def forget(self, key: Key) -> list[Call]:
        """The attempt's end is journaled: its records may go."""
        nodes = self._reports.pop(key, {})
        args = wire.ForgetArgs(job=key[0], attempt=key[1])
        return [_stray_call(node, "forget", args, key) for node in nodes]

    # -- reports into events ----------------------------------------------------------------------------------------

    def report(self, node: str, report: wire.JobReport) -> Outcome:
        """What a node's word on one of its attempts means for the job as a whole."""
        key = (report.job, report.attempt)
        if not self._current(key):
            return Outcome([], self._stray(node, report))
        known = self._reports.setdefault(key, {})
        known[node] = report
        everywhere = [known.get(name) for name in self._where(report.job)] or [report]
        if report.verb in _FAILED and report.error and report.state not in GONE:
            return self._refused(report, known)
        told = [one for one in everywhere if one is not None]
        if len(told) < len(everywhere):
            return Outcome([], self._stop_rest(report))
        event = _agreed(report, told, self.book.state(report.job) is State.RESUMING)
        over = isinstance(event, Exited | StartFailed)
        return Outcome([event] if event else [], [] if over else self._stop_rest(report))

    def refused(self, call: Call, error: str, fault: str) -> list[Event]:
        """An agent will not or cannot do what a call asks."""
        if call.method == "launch":
            return [StartFailed(call.job, call.attempt, error, fault)]
        if call.method == "suspend":
            return [SuspendFailed(call.job, call.attempt, error)]
        if call.method == "resume":
            return [ResumeFailed(call.job, call.attempt, error)]
        return []

    def _refused(self, report: wire.JobReport, known: dict[str, wire.JobReport]) -> Outcome:
        """One node refused or failed: the job stays as it was, so the nodes that obeyed go back."""
        calls = []
        if report.verb == "suspend":
            args = wire.ResumeArgs(job=report.job, attempt=report.attempt)
            back = [name for name, other in known.items() if other.state in ("suspended", "suspending")]
            calls = [self._call(name, "resume", args, report.job, report.attempt) for name in back]
            return Outcome([SuspendFailed(report.job, report.attempt, report.error)], calls)
        lost = report.state != "suspended"
        return Outcome([ResumeFailed(report.job, report.attempt, report.error, image_lost=lost)], calls)

    def _stop_rest(self, report: wire.JobReport) -> list[Call]:
        """A rank of a gang is dead: the others would wait for it for ever."""
        failure = report.first_failure
        dead = failure is not None or (report.state in GONE and (report.code or report.lost or report.error))
        if not dead:
            return []
        spec = self.book.specs[report.job]
        args = wire.StopArgs(job=report.job, attempt=report.attempt, grace_us=spec.grace_us)
        known = self._reports[report.job, report.attempt]
        left = [name for name in self._where(report.job) if name not in known or known[name].state not in GONE]
        return [self._call(name, "stop", args, report.job, report.attempt) for name in left]

    def _stray(self, node: str, report: wire.JobReport) -> list[Call]:
        """An attempt the book does not know (any more): it must not run, and its records are of no use."""
        key = (report.job, report.attempt)
        if report.state in GONE:
            return [_stray_call(node, "forget", wire.ForgetArgs(job=key[0], attempt=key[1]), key)]
        if report.state == "stopping":
            return []
        return [_stray_call(node, "stop", wire.StopArgs(job=key[0], attempt=key[1], grace_us=STRAY_GRACE_US), key)]

    # -- after a lost connection ------------------------------------------------------------------------------------

    def reconcile(self, node: str, inventory: Iterable[wire.JobReport]) -> Outcome:
        """Bring a node that is (again) connected in line with the book, whatever was lost meanwhile."""
        events: list[Event] = []
        calls: list[Call] = []
        there = {(entry.job, entry.attempt): entry for entry in inventory}
        for entry in there.values():
            found = self.report(node, entry)
            events += found.events
            calls += found.calls
        ended = {(event.job, event.attempt) for event in events if isinstance(event, Exited | StartFailed)}
        for job in self._expected(node):
            key = (job, int(self.book.table.attempt[self.book.table.row[job]]))
            if key in ended:
                continue
            more = self._missing(job, key) if key not in there else Outcome([], self._again(job, key, there[key]))
            events += more.events
            calls += [call for call in more.calls if call.node == node]
        return Outcome(events, calls)

    def _missing(self, job: int, key: Key) -> Outcome:
        """The node has nothing of an attempt it should have. One that was never launched is launched now."""
        if self.book.state(job) is State.STARTING:
            command = self.outstanding(job)
            return Outcome([], self.calls(command) if command else [])
        return Outcome([Exited(*key, code=137, lost=True, why="its node knows nothing of it any more")], [])

    def _again(self, job: int, key: Key, entry: wire.JobReport) -> list[Call]:
        """Ask again for what the agent may never have been asked."""
        state, have = self.book.state(job), entry.state
        if entry.error and entry.verb in ("suspend", "resume"):
            return []
        asked = {
            State.STARTING: (),
            State.SUSPENDING: ("starting", "running", "resuming"),
            State.RESUMING: ("suspended", "suspending"),
            State.STOPPING: ("starting", "running", "suspending", "suspended", "resuming"),
        }.get(state, ())
        command = self.outstanding(job) if have in asked else None
        return self.calls(command) if command else []

    def outstanding(self, job: int) -> Command | None:
        """The command that a job in transit waits for, as it was given."""
        book = self.book
        row, state = book.table.row[job], book.state(job)
        attempt, pinned = int(book.table.attempt[row]), job in book.pins
        level = int(Level.FREEZE) if pinned else book.shields.get(job, int(book.table.level[row]))
        allocation = book.allocations.get(job, ())
        if state is State.STARTING:
            return Launch(job, attempt, allocation)
        if state is State.SUSPENDING:
            return SuspendRanks(job, attempt, level, allocation)
        if state is State.RESUMING:
            return ResumeRanks(job, attempt, level, allocation)
        if state is State.STOPPING:
            return StopRanks(job, attempt, self._grace(job), book.ending[job][1])
        return None

    def _expected(self, node: str) -> list[int]:
        """Jobs that must have processes on this node, frozen ones included."""
        jobs = dict.fromkeys([*self.book.allocations, *self.book.imaged])
        return [job for job in jobs if node in self._where(job)]

    # -- small words ------------------------------------------------------------------------------------------------

    def _current(self, key: Key) -> bool:
        job, attempt = key
        row = self.book.table.row.get(job)
        if row is None or self.book.table.attempt[row] != attempt:
            return False
        return job in self.book.allocations or job in self.book.imaged

    def _where(self, job: int) -> tuple[str, ...]:
        """Nodes that hold processes of the job's attempt."""
        allocation = self.book.allocations.get(job)
        if allocation is not None:
            return self._nodes(allocation)
        home = int(self.book.table.home[self.book.table.row[job]])
        return (self.book.board.layout.nodes[home].name,) if home >= 0 else ()

    def _nodes(self, allocation: Allocation) -> tuple[str, ...]:
        layout = self.book.board.layout
        return tuple(layout.nodes[part.node].name for part in allocation)

    def _grace(self, job: int) -> int:
        return self.book.specs[job].grace_us

    def _each(self, nodes: Iterable[str], method: str, args: wire.SuspendArgs | wire.StopArgs) -> list[Call]:
        return [self._call(node, method, args, args.job, args.attempt) for node in nodes]

    def _call(self, node: str, method: str, args: Struct, job: int, attempt: int) -> Call:
        """``since`` (when the job entered its state) tells the second suspension of an attempt from the first."""
        since = int(self.book.table.since[self.book.table.row[job]])
        return Call(node, method, args, f"{job}.{attempt}.{method}.{since}", job, attempt)


def _stray_call(node: str, method: str, args: Struct, key: Key) -> Call:
    return Call(node, method, args, f"{key[0]}.{key[1]}.{method}.0", *key)


def _on(seats: list[RankPlace], node: int) -> tuple[wire.RankSeat, ...]:
    return tuple(wire.RankSeat(seat.rank, seat.local_rank, seat.devices) for seat in seats if seat.node == node)


def _agreed(report: wire.JobReport, told: list[wire.JobReport], resuming: bool) -> Event | None:
    """The event that all nodes' reports together amount to, or None while some differ."""
    job, attempt = report.job, report.attempt
    states = {one.state for one in told}
    took = max(one.took_us for one in told)
    if states == {"failed"}:
        first = next((one for one in told if one.fault == "user"), report)
        return StartFailed(job, attempt, first.error or first.why or "could not be started", first.fault or "world")
    if states <= {"exited", "failed"}:
        worst = max(told, key=lambda one: (one.lost, one.code))
        code = worst.code or (127 if "failed" in states else 0)
        return Exited(job, attempt, code, any(one.lost for one in told), worst.why or worst.error)
    if states == {"suspended"}:
        return Suspended(job, attempt, took)
    if states == {"running"}:
        return Resumed(job, attempt, took) if resuming or report.verb == "resume" else Started(job, attempt)
    return None
