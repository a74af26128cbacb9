"""Agents' reports into events. Pure: the book and the reports in, values out; ``agent_calls`` turns commands into calls.

An attempt may run on several nodes; its events concern it as a whole, so reports are gathered until all nodes agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ...engine.book import Book
from ...engine.commands import Command, ResumeRanks, StopRanks, SuspendRanks
from ...engine.events import Event, Exited, Resumed, ResumeFailed, StartFailed, SuspendFailed
from ...model.cause import Cause, Code, reported
from ...model.job import State
from ...wire import agent as wire
from .agent_calls import (
    AgentCalls,
    Call,
    CallOutcome,
    EndpointOf,
    forget_call,
    refusal,
    stop_call,
    stray_calls,
    without_answer,
)
from .aggregate_reports import (
    GONE,
    ReportedLimits,
    aggregate,
    cause,
    dead,
    failed,
    in_words,
    limits_of,
    node_to_blame,
    stays,
    stopped_before,
    torn,
)
from .image_registry import ImageRegistry
from .image_replication import ImageReplication
from .pending_commands import pending_commands

Key = tuple[int, int]
"""(job, attempt)"""
_WANTED: Mapping[str, tuple[State, ...]] = {
    "launch": (State.STARTING,),
    "suspend": (State.SUSPENDING,),
    "resume": (State.RESUMING, State.SUSPENDING, State.RUNNING),
    "checkpoint": (State.RUNNING,),
}
"""Method to the states in which a call is still useful; calls of other methods always are. A resumption may undo a suspension."""
ReportsByNode = dict[str, wire.JobReport]
"""Node to its last report on an attempt."""


class Reconciler:
    """Keeps the last report of every node for every attempt that has not ended, and derives events and calls from them."""

    def __init__(self, book: Book, master_endpoint: EndpointOf) -> None:
        self.book = book
        self.registry = ImageRegistry()
        self.agent_calls = AgentCalls(book, self.registry, master_endpoint)
        self.copies = ImageReplication(book, self.registry, self.agent_calls)
        self._reports: dict[Key, ReportsByNode] = {}
        self._attempts: dict[int, int] = {}
        """Job to the attempt of its entry in ``_reports``."""
        self._undone: dict[Key, dict[str, bool]] = {}
        """Attempts whose suspension failed on some node, to the nodes that were asked to undo theirs."""
        self._broken: dict[Key, Cause] = {}
        """Attempts that lost ranks on some node through no fault of the job, and why."""
        self._failed: dict[Key, Event] = {}
        """The last failure reported of each attempt: a report that arrives twice makes one event."""

    def calls(self, command: Command) -> list[Call]:
        """The calls that carry out a command; none for commands that are not about ranks."""
        if isinstance(command, SuspendRanks | ResumeRanks):
            self._clear_answers((command.job, command.attempt))
        return self.agent_calls.calls(command)

    def _clear_answers(self, key: Key) -> None:
        """Drop what nodes answered to an earlier request of the kind: a refusal of that one is no answer to this one."""
        self._failed.pop(key, None)
        known = self._reports.get(key, {})
        for node, report in known.items():
            known[node] = replace(report, verb="", error="", took_us=0)

    def answers(self, command: Command) -> list[Event]:
        """Events of commands that no agent can carry out: the job to be stopped has only an image and no ranks."""
        if (
            isinstance(command, StopRanks)
            and command.job in self.book.specs
            and not self.agent_calls.where(command.job)
        ):
            return [Exited(command.job, command.attempt, 143, why=command.why)]
        return []

    def forget_ended(self, jobs: Iterable[int]) -> list[Call]:
        """Calls that drop the records of these jobs' ended attempts (the end is journaled), and the images of ended jobs."""
        calls = []
        for job in jobs:
            attempt, ended = self._attempts.get(job), job not in self.book.specs
            if attempt is not None and not self.current((job, attempt)):
                del self._attempts[job]
                calls += self._forget((job, attempt), ended)
            if ended:
                called = [call.node for call in calls if call.job == job]
                calls += [call for call in self.agent_calls.drop(job, attempt or 0, ()) if call.node not in called]
                self.copies.forget(job)
        return calls

    def _forget(self, key: Key, ended: bool) -> list[Call]:
        """``ended``: the job's images are dropped, too, also those that a node has not reported yet."""
        self._undone.pop(key, None)
        self._broken.pop(key, None)
        self._failed.pop(key, None)
        reports = self._reports.pop(key, {})
        return [
            forget_call(node, *key, images=ended, left=report.state not in GONE) for node, report in reports.items()
        ]

    def wants(self, call: Call) -> bool:
        """Whether a call that had to wait is still useful in the job's present state."""
        states = _WANTED.get(call.method)
        if states is None:
            return True
        current = self.current((call.job, call.attempt)) and self.book.state(call.job) in states
        return current and call.node in self.agent_calls.where(call.job)

    # -- reports into events ----------------------------------------------------------------------------------------

    def report(self, node: str, report: wire.JobReport) -> CallOutcome:
        """What a node's report on one of its attempts means for the job as a whole."""
        found = self.copies.on_report(node, report)
        if report.verb == "fetch":
            return found
        key = (report.job, report.attempt)
        if not self.current(key):
            return CallOutcome(found.events, [*found.calls, *stray_calls(node, report)])
        if not self.agent_calls.is_current(report):
            report = without_answer(report)
        report = self._remember(key, node, report)
        where = self.agent_calls.where(report.job)
        meant = self._judge(key, node, report, where) if node in where or not where else self._elsewhere(key, node)
        return CallOutcome([*found.events, *meant.events], [*found.calls, *meant.calls])

    def _remember(self, key: Key, node: str, report: wire.JobReport) -> wire.JobReport:
        """Store the node's last report. A report of an image may come at any time and keeps the result of the last request."""
        self._attempts[key[0]] = key[1]
        known = self._reports.setdefault(key, {})
        if report.verb == "checkpoint":
            before = known.get(node)
            image = before.image if before and before.image else report.image
            if image is not None and report.image is not None and report.image.serial >= image.serial:
                image = report.image
            verb, error, took = (before.verb, before.error, before.took_us) if before else ("", "", 0)
            report = replace(report, verb=verb, error=error, took_us=took, image=image)
        if report.first_failure is not None and not report.first_failure.node:
            report = replace(report, first_failure=replace(report.first_failure, node=node))
        known[node] = report
        return report

    def _judge(self, key: Key, node: str, report: wire.JobReport, where: tuple[str, ...]) -> CallOutcome:
        """By the state of the job: the event that all its nodes' reports make, and the calls that this one requires."""
        state, known = self.book.state(key[0]), self._reports[key]
        if not where:
            return self._image_only(key, node, report)
        reports = {name: known[name] for name in where if name in known}
        if state is State.SUSPENDING and torn(reports.values()):
            return self._suspend_failed(key, reports, where)
        if state is State.RESUMING and any(failed(one, "resume") for one in reports.values()):
            return self._resume_failed(key, reports, where)
        others = [one for name, one in reports.items() if name != node]
        if state is State.RESUMING and stopped_before(report) and not any(map(dead, others)):
            return self._resume_again(key, node)
        if state is State.RUNNING and report.state == "suspended":
            return CallOutcome([], [self._undo_suspend(key, node, report)])
        if len(reports) < len(where):
            return CallOutcome([], self._stop_rest(key, reports, where))
        ranks = self.book.specs[key[0]].ranks
        event = aggregate(report, list(reports.values()), state, self.copies.serial(key[0]), ranks)
        if isinstance(event, StartFailed):
            event = replace(event, node=node_to_blame(event, reports))
        if isinstance(event, Exited) and key in self._broken:
            event = Exited(*key, code=137, lost=True, why=self._broken[key])
        events: list[Event] = [] if event is None else [event]
        if isinstance(event, Exited | StartFailed):
            return CallOutcome(events, [])
        calls = self._leave(key, where) if isinstance(event, Resumed) else []
        return CallOutcome(events, [*calls, *self._stop_rest(key, reports, where)])

    def _image_only(self, key: Key, node: str, report: wire.JobReport) -> CallOutcome:
        """A job that has only an image has no ranks that could end; one that is being stopped has thereby ended. Ranks that run,
        or were ended, are left over from a resumption that failed on another node."""
        record = self.book.jobs[key[0]]
        if record.state == State.STOPPING and record.ending is not None:
            return CallOutcome([Exited(*key, code=143, why=record.ending.why)], [])
        if record.state in (State.SUSPENDED, State.HELD) and report.state in ("running", "resuming", *GONE):
            del self._reports[key][node]
            return CallOutcome([], [forget_call(node, *key, left=True)])
        return CallOutcome([], [])

    def _elsewhere(self, key: Key, node: str) -> CallOutcome:
        """A node that the attempt has left: its copy is useful until the attempt runs on its present nodes."""
        waiting = self.book.state(key[0]) in (State.RESUMING, State.SUSPENDED, State.HELD)
        if waiting and self._reports[key][node].state in ("suspended", "suspending"):
            return CallOutcome([], [])
        report = self._reports[key].pop(node)
        if report.state in ("starting", "running", "resuming"):
            return CallOutcome([], [stop_call(node, *key, 0)])
        return CallOutcome([], [forget_call(node, *key, left=True)] if report.state != "stopping" else [])

    def _leave(self, key: Key, where: tuple[str, ...]) -> list[Call]:
        """The attempt runs on its present nodes: those it was on before drop its records."""
        left = [node for node in self._reports[key] if node not in where]
        for node in left:
            del self._reports[key][node]
        return [forget_call(node, *key, left=True) for node in left]

    # -- what fails on one of several nodes -------------------------------------------------------------------------

    def refused(self, call: Call, error: str, fault: str) -> CallOutcome:
        """An agent refused a call, or failed to carry it out. Of a launch that is reported once the ranks that other nodes have
        started are stopped."""
        if call.method == "checkpoint":
            return CallOutcome(self.copies.failed(call.job, call.attempt, error), [])
        if call.method == "fetch":
            return CallOutcome([], self.copies.retry(call.node, call.job))
        report = refusal(call, error, fault) if self.current((call.job, call.attempt)) else None
        return self.report(call.node, report) if report is not None else CallOutcome([], [])

    def _suspend_failed(self, key: Key, reports: ReportsByNode, where: tuple[str, ...]) -> CallOutcome:
        """A suspension failed on some node: the nodes on which it succeeded undo it, and then the failure is reported."""
        broken = next((one for one in reports.values() if dead(one) or failed(one, "resume")), None)
        if broken is not None:
            return self._lose_attempt(key, reports, broken)
        requested = self._undone.setdefault(key, {})
        back = [node for node, one in reports.items() if one.state == "suspended" and node not in requested]
        requested.update(dict.fromkeys(back, True))
        calls = [self._undo_suspend(key, node, reports[node]) for node in back]
        settled = [one for one in reports.values() if one.state == "exited" or stays(one)]
        if len(settled) < len(where):
            return CallOutcome([], calls)
        del self._undone[key]
        failures = [one for one in reports.values() if failed(one, "suspend")]
        error = failures[0].error if failures else Code.RANKS_ENDED()
        return self._report_once(SuspendFailed(*key, error, no_room=any(one.no_room for one in failures)), calls)

    def _undo_suspend(self, key: Key, node: str, report: wire.JobReport) -> Call:
        serial = report.image.serial if report.image is not None else 0
        return self.agent_calls.undo_suspend(node, *key, serial)

    def _lose_attempt(self, key: Key, reports: ReportsByNode, broken: wire.JobReport) -> CallOutcome:
        """Some ranks cannot come back: the others are stopped, and then the attempt is lost."""
        first = cause(reports.values())
        ended = in_words(first, self.book.specs[key[0]].ranks, len(reports)) if first else Code.RANKS_ENDED()
        self._broken[key] = Code.SUSPENDED_IN_PART(reported(broken.error or broken.why or ended))
        stop = wire.StopArgs(job=key[0], attempt=key[1], grace_us=0)
        left = [node for node, one in reports.items() if one.state not in (*GONE, "stopping")]
        return CallOutcome([], [self.agent_calls.call(node, "stop", stop) for node in left])

    def _resume_failed(self, key: Key, reports: ReportsByNode, where: tuple[str, ...]) -> CallOutcome:
        """A resumption failed on some node: the ranks that others have restored are ended, and then the failure is reported, for
        until then their devices are not free. The image is still there."""
        restored = [node for node, one in reports.items() if one.state in ("starting", "running", "resuming")]
        stop = wire.StopArgs(job=key[0], attempt=key[1], grace_us=0)
        calls = [self.agent_calls.call(node, "stop", stop) for node in restored]
        settled = [node for node, one in reports.items() if one.state in GONE or failed(one, "resume")]
        if len(settled) < len(where):
            return CallOutcome([], calls)
        first = next(one for one in reports.values() if failed(one, "resume"))
        ended = [node for node, one in reports.items() if one.state in GONE]
        for node in ended:
            del self._reports[key][node]
        lost = bool(first.image and first.image.lost) or first.state not in ("suspended", "suspending")
        node = next(node for node, one in reports.items() if one is first)
        event = ResumeFailed(*key, first.error, image_lost=lost, node=node)
        return self._report_once(event, [forget_call(node, *key, left=True) for node in ended])

    def _resume_again(self, key: Key, node: str) -> CallOutcome:
        """What a node has of the attempt is left over from a resumption that failed elsewhere: it drops this, and resumes."""
        del self._reports[key][node]
        command = pending_commands(self.book, key[0])
        again = [call for call in self.agent_calls.calls(command) if call.node == node] if command else []
        return CallOutcome([], [forget_call(node, *key, left=True), *again])

    def _report_once(self, event: SuspendFailed | ResumeFailed, calls: list[Call]) -> CallOutcome:
        repeated = self._failed.get((event.job, event.attempt)) == event
        self._failed[event.job, event.attempt] = event
        return CallOutcome([] if repeated else [event], calls)

    def _stop_rest(self, key: Key, reports: ReportsByNode, where: tuple[str, ...]) -> list[Call]:
        """Stop the other ranks of a gang once one is dead: they would wait for it without end."""
        if not any(dead(one) for one in reports.values()):
            return []
        stop = wire.StopArgs(job=key[0], attempt=key[1], grace_us=self.book.specs[key[0]].grace_us)
        left = [node for node in where if node not in reports or reports[node].state not in (*GONE, "stopping")]
        return [self.agent_calls.call(node, "stop", stop) for node in left]

    # -- nodes that come and go -------------------------------------------------------------------------------------

    def node_down(self, node: str) -> list[Event]:
        """A node is down: attempts whose other nodes have all ended are lost now; no further report will come."""
        self.registry.dead[node] = True
        self.copies.node_down(node)
        events: list[Event] = []
        for key, known in list(self._reports.items()):
            known.pop(node, None)
            if not self.current(key):
                continue
            where = self.agent_calls.where(key[0])
            reports = [known[name] for name in where if name in known]
            if where and len(reports) == len(where) and all(one.state in GONE for one in reports):
                events.append(Exited(*key, code=137, lost=True, why=Code.NODE_GONE(node)))
        return events

    def reconcile(self, node: str, inventory: Iterable[wire.JobReport]) -> CallOutcome:
        """Compare the inventory of a node that has (re)connected with the book; events and calls for each difference."""
        self.registry.dead[node] = False
        events: list[Event] = []
        calls: list[Call] = []
        for requested in self._undone.values():  # the answer may be lost; requested again, the node repeats it
            requested.pop(node, None)
        there = {(one.job, one.attempt): one if one.op_id else without_answer(one) for one in inventory}
        for entry in there.values():
            found = self.report(node, entry)
            events += found.events
            calls += found.calls
        ended = {(event.job, event.attempt): True for event in events if isinstance(event, Exited | StartFailed)}
        for job in self._expected(node):
            key = (job, int(self.book.table.attempt[self.book.table.row[job]]))
            if key in ended:
                continue
            more = (
                self._missing(node, key) if key not in there else CallOutcome([], self._repeat_command(job, there[key]))
            )
            events += more.events
            calls += [call for call in more.calls if call.node == node or key not in there]
        return CallOutcome(events, calls)

    def _missing(self, node: str, key: Key) -> CallOutcome:
        """The node has no record of an attempt that it should run. One that was never launched is launched now."""
        state = self.book.state(key[0])
        command = pending_commands(self.book, key[0])
        if command is not None and (state is State.STARTING or self._to_come(state, key[0])):
            return CallOutcome([], [call for call in self.agent_calls.calls(command) if call.node == node])
        why = "its node knows nothing of it any more"
        lost = wire.JobReport(job=key[0], attempt=key[1], state="exited", code=137, lost=True, why=why)
        return self.report(node, lost)

    def _to_come(self, state: State, job: int) -> bool:
        """Whether a resuming job may have no record on its node: one restored from full images comes from elsewhere."""
        return state is State.RESUMING and self.copies.serial(job) > 0

    def _repeat_command(self, job: int, entry: wire.JobReport) -> list[Call]:
        """The calls of a command that the agent may never have received."""
        state, have = self.book.state(job), entry.state
        useful_in: Mapping[State, tuple[str, ...]] = {
            State.RUNNING: () if self.copies.answered(entry) else ("running",),
            State.SUSPENDING: ("starting", "running", "resuming"),
            State.RESUMING: ("suspended", "suspending"),
            State.STOPPING: ("starting", "running", "suspending", "suspended", "resuming"),
        }
        command = pending_commands(self.book, job) if have in useful_in.get(state, ()) else None
        return self.agent_calls.calls(command) if command else []

    def _expected(self, node: str) -> list[int]:
        """Jobs that must have processes on this node, frozen ones included."""
        table = self.book.table
        frozen = table.id[: table.n][table.pinned_node[: table.n] == self.book.nodes.get(node, -2)]
        jobs = dict.fromkeys([*self.book.allocations, *sorted(frozen.tolist())])
        return [job for job in jobs if node in self.agent_calls.where(job)]

    def unreported_ends(self) -> list[Event]:
        """After a restart: ends of jobs being stopped that no agent will report, as they have no ranks."""
        stopping = [job for job, record in self.book.jobs.items() if record.ending is not None]
        commands = [pending_commands(self.book, job) for job in stopping]
        return [event for command in commands if command is not None for event in self.answers(command)]

    def limits(self, job: int) -> ReportedLimits:
        """How far a running job is held to what it asked for."""
        return limits_of(list(self._reports.get((job, self._attempts.get(job, 0)), {}).values()))

    def expects(self, node: str, key: Key) -> bool:
        """Whether the attempt is one that may have ranks on this node."""
        return self.current(key) and node in self.agent_calls.where(key[0])

    def left(self, node: str, key: Key) -> bool:
        """Whether the attempt runs, or is to run, on other nodes than this one."""
        return self.current(key) and key[0] in self.book.allocations and node not in self.agent_calls.where(key[0])

    def current(self, key: Key) -> bool:
        """Whether the attempt is its job's latest and has devices, or an image to go on from."""
        record = self.book.jobs.get(key[0])
        if record is None or record.attempt != key[1]:
            return False
        return record.allocation is not None or bool(record.suspended_as)
