"""Commands into calls, reports into events, and what is asked again after a lost connection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.cli.words import last_output, nodes_or_reason
from tidewright.engine import events as ev
from tidewright.engine.commands import CheckpointRanks, Command, Ended, Launch, ResumeRanks, StopRanks, SuspendRanks
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.live.api.views import ended_job
from tidewright.live.reconcile.agent_calls import MasterEndpoint
from tidewright.live.reconcile.pending_commands import pending_commands
from tidewright.live.reconcile.reconciler import Reconciler
from tidewright.model.cause import Code, reported
from tidewright.model.job import JobSpec, Level, State
from tidewright.model.job_record import Image
from tidewright.model.node import NodeSpec, Part
from tidewright.plan.moves import Resume, Start
from tidewright.plan.plan import Plan
from tidewright.plan.render import render
from tidewright.testing.causes import within
from tidewright.wire.agent import ImageReport, JobReport, LaunchArgs, RankFailure
from tidewright.wire.api import FailureView

from .fakes import FirstFit


class Play:
    """A real engine, its commands translated; time is a counter."""

    def __init__(self, nodes: int = 1, devices: int = 4, settings: EngineSettings | None = None) -> None:
        self.engine = Engine(settings or live_settings())
        self.reconciler = Reconciler(self.engine.book, lambda *which: MasterEndpoint("10.0.0.1", 29999))
        self.now = 0
        self.feed(*(ev.NodeUp(NodeSpec(name=f"n{at}", kind="cpu", devices=devices), "boot") for at in range(nodes)))

    def feed(self, *events: ev.Event) -> list[Command]:
        """Step, planning included."""
        self.now += 1000
        commands = self.engine.step(self.now, events)
        if self.engine.book.planning:
            plan = FirstFit().plan(self.engine.view())
            commands = [*commands, *self.engine.step(self.now, [ev.PlanReady(plan)])]
        return commands

    def running(self, **spec: Any) -> int:
        commands = self.feed(ev.Submit(JobSpec(command=("x",), **spec), "op"))
        (launch,) = [command for command in commands if isinstance(command, Launch)]
        self.feed(ev.Started(launch.job, launch.attempt))
        assert self.engine.book.state(launch.job) is State.RUNNING
        return launch.job

    def report(self, state: str, job: int = 1, node: str = "n0", attempt: int = 1, **more: Any) -> Any:
        return self.reconciler.report(node, JobReport(job=job, attempt=attempt, state=state, **more))  # type: ignore[arg-type]


def test_launch_seats_every_rank_once() -> None:
    play = Play()
    commands = play.feed(ev.Submit(JobSpec(command=("x",), devices=2, ranks=4, name="j"), "op"))
    (call,) = [call for command in commands for call in play.reconciler.calls(command)]
    assert call.method == "launch" and isinstance(call.args, LaunchArgs)
    assert [(seat.rank, seat.local_rank, seat.devices) for seat in call.args.ranks] == [
        (0, 0, (0,)),
        (1, 1, (0,)),
        (2, 2, (1,)),
        (3, 3, (1,)),
    ]
    assert (call.args.world_size, call.args.master_port) == (4, 29999)


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_get_the_serial_of_the_image_that_the_job_could_come_back_from(nodes: int) -> None:
    play = Play(nodes)
    job = play.running()
    play.engine.book.jobs[job].images = tuple(Image(serial, 1, 0, 0, ("n0", "n1")[:nodes]) for serial in (5, 7))
    allocation = tuple(Part(node, (0,)) for node in range(nodes))
    for command in (CheckpointRanks(job, 1, 9, allocation), SuspendRanks(job, 1, int(Level.FULL), allocation, 9)):
        calls = play.reconciler.calls(command)
        assert [(call.args.serial, call.args.previous) for call in calls] == [(9, 7)] * nodes  # type: ignore[union-attr]


def test_every_way_a_run_can_go() -> None:
    play = Play()
    play.running()
    assert play.report("exited", code=3).events == [ev.Exited(1, 1, 3)]
    assert play.report("exited", lost=True, why="shim died").events == [ev.Exited(1, 1, 0, True, "shim died")]
    failed = play.report("failed", fault="user", error="no such program").events
    assert failed == [ev.StartFailed(1, 1, "no such program", "user", node="n0")]
    assert play.report("starting").events == []


def test_a_copy_displaces_no_image_that_the_job_could_come_back_from() -> None:
    play = Play(2)
    job = play.running()
    play.engine.book.jobs[job].images = tuple(Image(serial, 1, 0, 0, ("n0",)) for serial in (5, 7))
    fetches = [play.reconciler.agent_calls.fetch("n1", job, 1, serial) for serial in (9, 7, 5)]
    assert [call.args.previous for call in fetches if call is not None] == [7, 5, 0]  # type: ignore[attr-defined]


def test_suspend_and_resume_answers() -> None:
    play = Play()
    play.running()
    play.feed(ev.Hold(1, "h"))
    assert play.report("suspended", verb="suspend", took_us=7).events == [ev.Suspended(1, 1, 7)]
    refused = play.report("running", verb="suspend", error="too little memory")
    assert refused.events == [ev.SuspendFailed(1, 1, "too little memory")]
    play.feed(ev.Suspended(1, 1))
    play.feed(ev.Release(1, "r"))
    assert play.engine.book.state(1) is State.RESUMING
    assert play.report("running", took_us=9).events == [ev.Resumed(1, 1, 9)], "an agent restarted meanwhile"
    failed = play.report("suspended", verb="resume", error="cgroup gone")
    assert failed.events == [ev.ResumeFailed(1, 1, "cgroup gone", node="n0")]


def test_what_a_node_answered_to_an_earlier_request_is_no_answer_to_the_next() -> None:
    """Its gang would be taken for torn before that node was asked, and be undone on the others."""
    play = two_nodes()
    commands = play.feed(ev.Hold(1, "h"))
    for _ in range(2):
        while not (suspends := [each for each in commands if isinstance(each, SuspendRanks)]):
            play.now += 1_000_000
            commands = play.feed(ev.Tick())
        play.reconciler.calls(suspends[0])
        assert play.report("suspended", node="n0", verb="suspend").calls == []
        refusal = play.report("running", node="n1", verb="suspend", error="busy")
        assert [call.method for call in refusal.calls] == ["resume"]
        undone = play.report("running", node="n0", verb="resume")
        assert [type(event) for event in undone.events] == [ev.SuspendFailed]
        commands = play.feed(*undone.events)


def test_the_next_controller_ends_what_is_left_of_a_resumption_that_failed_elsewhere() -> None:
    """The devices there are free, by the book."""
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    play.feed(ev.Suspended(1, 1, 7, serial=1))
    following = Reconciler(play.engine.book, lambda *which: MasterEndpoint("10.0.0.1", 29999))
    for state in ("suspended", "suspending"):
        assert following.reconcile("n0", [JobReport(job=1, attempt=1, state=state, verb="suspend")]).calls == []
    for state in ("resuming", "running"):
        (call,) = following.reconcile("n1", [JobReport(job=1, attempt=1, state=state, verb="resume")]).calls
        assert (call.node, call.method, call.args.left) == ("n1", "forget", True)  # type: ignore[attr-defined]


def resuming() -> Play:
    """Job 1 comes back from image 1 on both nodes."""
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    play.feed(ev.Suspended(1, 1, 7, serial=1))
    play.feed(ev.Release(1, "r"))
    play.engine.book.planning = True
    plan = Plan(play.engine.revision, (Resume(1, (Part(0, 3), Part(1, 3)), "t"),))
    play.engine.step(play.now, [ev.PlanReady(plan)])
    assert play.engine.book.state(1) is State.RESUMING
    return play


def test_a_resumption_has_failed_once_no_node_has_restored_ranks_any_more() -> None:
    """Their devices would be given to others while they still train there."""
    play = resuming()
    assert play.report("running", node="n1", verb="resume").events == []
    failure = play.report("suspended", node="n0", verb="resume", error="no memory")
    assert [(call.node, call.method, call.args.grace_us) for call in failure.calls] == [("n1", "stop", 0)]  # type: ignore[attr-defined]
    assert failure.events == []
    assert play.report("stopping", node="n1", verb="stop").events == []
    ended = play.report("exited", node="n1", verb="stop", code=137)
    assert ended.events == [ev.ResumeFailed(1, 1, "no memory", node="n0")]
    assert [(call.node, call.method, call.args.left) for call in ended.calls] == [("n1", "forget", True)]


def test_what_a_node_answered_still_counts_when_another_one_is_asked_again() -> None:
    """Its line had broken."""
    play = resuming()
    play.report("suspended", node="n1", verb="resume", error="no disk")
    suspended = JobReport(job=1, attempt=1, state="suspended", verb="suspend")
    (again, *_) = play.reconciler.reconcile("n0", [suspended]).calls
    assert (again.node, again.method) == ("n0", "resume")
    failure = play.report("suspended", node="n0", verb="resume", error="no memory")
    assert [type(event) for event in failure.events] == [ev.ResumeFailed]


def test_what_a_failed_resumption_left_on_a_node_is_dropped_before_the_next_one() -> None:
    """The order to drop it was lost with the agent, or its controller."""
    play = resuming()
    play.feed(ev.ResumeFailed(1, 1, "no memory", node="n0"))
    assert play.engine.book.state(1) is State.HELD
    ended = JobReport(job=1, attempt=1, state="exited", verb="stop", code=137)
    (call,) = play.reconciler.reconcile("n1", [ended]).calls
    assert (call.node, call.method, call.args.left) == ("n1", "forget", True)  # type: ignore[attr-defined]
    again = resuming()
    found = again.report("exited", node="n1", verb="stop", code=137)
    assert [(call.node, call.method) for call in found.calls] == [("n1", "forget"), ("n1", "resume")]
    assert not found.events


def test_ranks_that_died_after_they_came_back_do_not_come_back_once_more() -> None:
    play = resuming()
    play.report("running", node="n1", verb="resume")
    died = play.report("exited", node="n0", verb="resume", code=3, first_failure=RankFailure(0, 3))
    assert [(call.node, call.method) for call in died.calls] == [("n1", "stop")]
    ended = play.report("exited", node="n1", verb="stop")
    assert [type(event) for event in ended.events] == [ev.Exited]


def test_a_node_that_has_not_answered_a_resumption_may_still_restore_ranks() -> None:
    play = resuming()
    play.report("suspended", node="n1", verb="suspend")
    assert play.report("suspended", node="n0", verb="resume", error="no memory").events == []
    late = play.report("suspended", node="n1", verb="resume", error="no disk")
    assert [type(event) for event in late.events] == [ev.ResumeFailed]


def test_what_answers_an_earlier_request_is_no_answer_to_a_suspension() -> None:
    """A node that was resumed, and says so again, has not failed the suspension that it has not been asked for."""
    play = two_nodes()
    (suspend,) = [one for one in play.feed(ev.Hold(1, "h")) if isinstance(one, SuspendRanks)]
    (op_id,) = {call.op_id for call in play.reconciler.calls(suspend)}
    assert play.report("running", node="n1", verb="resume", op_id="1.1.resume.17").events == []
    assert play.report("running", node="n0", verb="suspend", error="busy", op_id=op_id).events == []
    refused = play.report("running", node="n1", verb="suspend", error="busy", op_id=op_id)
    assert [type(event) for event in refused.events] == [ev.SuspendFailed]


def test_a_refusal_in_an_inventory_may_be_of_an_earlier_request() -> None:
    """The node is asked again, and repeats its answer if it was asked before."""
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    refusal = JobReport(job=1, attempt=1, state="running", verb="suspend", error="busy")
    found = play.reconciler.reconcile("n1", [refusal])
    assert found.events == [] and [(call.node, call.method) for call in found.calls] == [("n1", "suspend")]
    play.feed(ev.Suspended(1, 1, 7, serial=1))
    assert not play.reconciler.reconcile("n1", [refusal]).events


def test_reports_of_attempts_that_are_over_end_those_and_nothing_else() -> None:
    play = Play()
    play.running()
    stray = play.report("running", attempt=7)
    assert stray.events == [] and [call.method for call in stray.calls] == ["stop"]
    gone = play.report("exited", job=99)
    assert gone.events == [] and [call.method for call in gone.calls] == ["forget"]


def test_a_gang_on_two_nodes_speaks_with_one_voice() -> None:
    play = Play(nodes=2, devices=2, settings=EngineSettings())
    job = JobSpec(command=("x",), devices=4, ranks=4)
    play.feed(ev.Submit(job, "op"))
    play.engine.book.planning = True
    plan = Plan(play.engine.revision, (Start(1, (Part(0, 3), Part(1, 3)), "t"),))
    (launch,) = [one for one in play.engine.step(play.now, [ev.PlanReady(plan)]) if isinstance(one, Launch)]
    calls = play.reconciler.calls(launch)
    assert [(call.node, [seat.rank for seat in call.args.ranks]) for call in calls] == [("n0", [0, 1]), ("n1", [2, 3])]  # type: ignore[attr-defined]
    assert [(call.args.group_rank, call.args.groups) for call in calls] == [(0, 2), (1, 2)]  # type: ignore[attr-defined]
    assert play.report("running", node="n0").events == []
    assert play.report("running", node="n1").events == [ev.Started(1, 1)]
    dying = play.report("running", node="n0", first_failure=RankFailure(1, 9))
    assert {(call.node, call.method) for call in dying.calls} >= {("n1", "stop"), ("n0", "stop")}
    assert play.report("exited", node="n0", code=9, first_failure=RankFailure(1, 9)).events == []
    assert play.report("exited", node="n1", code=143).events[0].code == 9, "blamed for having been stopped"


def two_nodes() -> Play:
    """Job 1 runs on n0 (ranks 0 and 1) and n1 (2 and 3)."""
    play = Play(nodes=2, devices=2, settings=EngineSettings())
    play.feed(ev.Submit(JobSpec(command=("x",), devices=4, ranks=4), "op"))
    play.engine.book.planning = True
    plan = Plan(play.engine.revision, (Start(1, (Part(0, 3), Part(1, 3)), "t"),))
    play.engine.step(play.now, [ev.PlanReady(plan)])
    play.feed(ev.Started(1, 1))
    return play


def test_a_node_that_was_to_undo_its_part_of_a_suspension_is_asked_again_when_its_answer_may_be_lost() -> None:
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    play.report("suspended", node="n0", verb="suspend")
    undo = play.report("running", node="n1", verb="suspend", error="no room")
    assert [(call.node, call.method) for call in undo.calls] == [("n0", "resume")]
    suspended = JobReport(job=1, attempt=1, state="suspended", verb="suspend")
    again = play.reconciler.reconcile("n0", [suspended])
    assert [(call.node, call.method, call.op_id) for call in again.calls] == [("n0", "resume", undo.calls[0].op_id)]


def test_a_refusal_of_an_earlier_request_does_not_fail_the_present_one() -> None:
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    late = play.report("running", node="n1", verb="suspend", error="no room", op_id="1.1.suspend.7")
    assert late.events == [] and late.calls == []


@pytest.mark.parametrize("order", [("n0", "n1"), ("n1", "n0")])
def test_the_first_rank_to_fail_is_the_jobs_cause_and_stays_with_it(order: tuple[str, str]) -> None:
    play = two_nodes()
    said = {
        "n0": RankFailure(1, 1, "exit code 1", ended=20.5, lines=("connection reset",)),
        "n1": RankFailure(3, 139, "killed by signal 11 (SIGSEGV)", ended=20.1, lines=("boom",)),
    }
    for node in order:
        found = play.report(
            "exited", node=node, code=said[node].code, first_failure=said[node], why="stopped on request"
        )
    (exited,) = found.events
    assert (exited.code, exited.why) == (139, "rank 3 on n1: killed by signal 11 (SIGSEGV)")
    (ended,) = [one for one in play.feed(exited) if isinstance(one, Ended)]
    assert ended.failure == RankFailure(3, 139, "killed by signal 11 (SIGSEGV)", "n1", 20.1, ("boom",))
    view = ended_job(ended, full=True)
    assert view.state == "failed" and view.exit_code == 139 and view.why == exited.why
    assert view.failure == FailureView(
        rank=3, exit_code=139, signal="SIGSEGV", why="killed by signal 11 (SIGSEGV)", node="n1", lines=("boom",)
    )
    listed = ended_job(ended)
    assert listed.failure is not None and not listed.failure.lines
    assert (
        nodes_or_reason(listed) == "exit 139 (SIGSEGV, rank 3)" and last_output(view) == "last output of rank 3\n  boom"
    )


@pytest.mark.parametrize("other", ["running", "suspended"])
def test_a_crash_while_a_gang_is_suspended_is_named(other: str) -> None:
    play = two_nodes()
    play.feed(ev.Hold(1, "h"))
    assert play.engine.book.state(1) is State.SUSPENDING
    crash = RankFailure(2, 3, "exit code 3", ended=5.0)
    error = {"verb": "suspend", "error": "rank 2 has ended already"} if other == "running" else {"verb": "suspend"}
    play.report(other, node="n0", **error)
    events = play.report("exited", node="n1", verb="suspend", code=3, first_failure=crash).events
    events = events or play.report("exited", node="n0", code=143, verb="stop", why="stopped on request").events
    assert isinstance(events[0], ev.Exited) and reported("rank 2 on n1: exit code 3") in within(reported(events[0].why))


def test_inventory_brings_a_node_in_line() -> None:
    play = Play()
    play.running()
    assert play.reconciler.reconcile("n0", []).events == [
        ev.Exited(1, 1, 137, True, "its node knows nothing of it any more")
    ]
    assert play.reconciler.reconcile("n0", [JobReport(job=1, attempt=1, state="running")]).calls == []
    play.feed(ev.Cancel(1, "c"))
    again = play.reconciler.reconcile("n0", [JobReport(job=1, attempt=1, state="running")])
    assert [call.method for call in again.calls] == ["stop"]


def test_a_stop_is_asked_again_whatever_failed_before_it() -> None:
    """The last thing that the agent tells of is a suspension that failed; then it was away when the job was cancelled."""
    play = Play()
    play.running()
    play.feed(ev.Cancel(1, "c"))
    failed = JobReport(job=1, attempt=1, state="running", verb="suspend", error="no room for an image")
    assert [call.method for call in play.reconciler.reconcile("n0", [failed]).calls] == ["stop"]


def test_a_launch_that_may_never_have_arrived_is_asked_again() -> None:
    play = Play()
    play.feed(ev.Submit(JobSpec(command=("x",)), "op"))
    assert play.engine.book.state(1) is State.STARTING
    found = play.reconciler.reconcile("n0", [])
    assert found.events == [] and [call.method for call in found.calls] == ["launch"]


@settings(deadline=None)
@given(steps=st.lists(st.sampled_from(["hold", "release", "cancel", "exit", "ack", "tick"]), max_size=14))
def test_whatever_is_outstanding_is_what_was_commanded(steps: list[str]) -> None:
    """The command rebuilt from the book is the last one the engine gave for the job: a restart asks for the same."""
    play = Play()
    job = play.running(retries=2)
    last: Command | None = None
    for number, step in enumerate(steps):
        if job not in play.engine.book.specs:
            return
        attempt = int(play.engine.book.table.attempt[play.engine.book.table.row[job]])
        acks: dict[State, ev.Event] = {
            State.STARTING: ev.Started(job, attempt),
            State.SUSPENDING: ev.Suspended(job, attempt, 5),
            State.RESUMING: ev.Resumed(job, attempt, 5),
            State.STOPPING: ev.Exited(job, attempt, 143),
        }
        event: ev.Event = {
            "hold": ev.Hold(job, f"h{number}"),
            "release": ev.Release(job, f"r{number}"),
            "cancel": ev.Cancel(job, f"c{number}"),
            "exit": ev.Exited(job, attempt, 1),
            "ack": acks.get(play.engine.book.state(job), ev.Tick()),
            "tick": ev.Tick(),
        }[step]
        mine = [one for one in play.feed(event) if isinstance(one, Launch | SuspendRanks | ResumeRanks | StopRanks)]
        last = mine[-1] if mine else last
        if job in play.engine.book.specs:
            pending = pending_commands(play.engine.book, job)
            assert pending is None or pending == last


def test_two_suspensions_of_one_attempt_are_two_operations() -> None:
    play = Play()
    play.running()
    ids = []
    for number in range(2):
        commands = play.feed(ev.Hold(1, f"h{number}"))
        (call,) = [call for command in commands for call in play.reconciler.calls(command)]
        ids.append(call.op_id)
        again = pending_commands(play.engine.book, 1)
        assert again is not None and play.reconciler.calls(again)[0].op_id == call.op_id
        play.feed(ev.Suspended(1, 1))
        play.feed(ev.Release(1, f"r{number}"))
        play.feed(ev.Resumed(1, 1))
    assert ids[0] != ids[1]
    assert play.engine.book.table.level[0] == Level.FREEZE


def test_images_of_a_job_that_ends_go_with_it_also_those_that_were_not_reported() -> None:
    play = Play()
    job = play.running()
    assert play.report("running", verb="launch").events == []
    (exited,) = play.report("exited").events
    play.feed(exited)
    forgotten = [call for call in play.reconciler.forget_ended([job]) if call.method == "forget"]
    assert [(call.node, call.args.images) for call in forgotten] == [("n0", True)], "an image may be on its way there"  # type: ignore[attr-defined]
    late = play.report("exited", verb="checkpoint", image=ImageReport(serial=1, ranks=(0,), stored=True)).calls
    assert [(call.method, call.node, call.args.images) for call in late][:1] == [("forget", "n0", True)]
    fetched = play.report("exited", verb="fetch", image=ImageReport(serial=1, ranks=(0,), stored=True), node="n0").calls
    assert [(call.method, call.args.images) for call in fetched] == [("forget", True)]


def test_a_rank_that_passed_its_memory_is_named_with_its_limit() -> None:
    play = two_nodes()
    ate = RankFailure(3, 137, "killed by signal 9 (SIGKILL), out of memory", ended=20.1, memory_limit=2**31)
    fell = RankFailure(1, 1, "exit code 1", ended=20.5)
    play.report("exited", node="n0", code=1, first_failure=fell)
    found = play.report("exited", node="n1", code=137, first_failure=ate)
    (exited,) = found.events
    assert exited.why == Code.OUT_OF_MEMORY(3, 2**31) and exited.failure.memory_limit == 2**31
    assert render(exited.why) == "out of memory: rank 3 passed its limit of 2.0GiB (--mem)"
