"""The agent's machine, action by action: what goes out for an event, and in which order."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tidewright.agent.machine import actions as do
from tidewright.agent.machine import events as ev
from tidewright.agent.machine import image_actions as on_images
from tidewright.agent.machine.node import NodeMachine
from tidewright.agent.machine.outcomes import RankOutcome
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.machine.scripts import Instant
from tidewright.agent.machine.table import TABLE
from tidewright.base.errors import Conflict, TideError, UsageError
from tidewright.checkpoint.protocol import GangImage
from tidewright.model.job import Level
from tidewright.wire.agent import (
    CheckpointArgs,
    ForgetArgs,
    ImageReport,
    JobReport,
    LaunchArgs,
    Peer,
    Phase,
    RankSeat,
    ResumeArgs,
    StopArgs,
    SuspendArgs,
    Verb,
)

KEY = 1, 0
IMAGE = GangImage(driver="criu", job=1, attempt=0)
PEERS = (Peer("a", "127.0.0.1", 1), Peer("b", "127.0.0.1", 2))
RESULTS: dict[type, Any] = {
    do.CreateAttempt: ((0, "/log"),),
    do.CheckSeats: ({}, ((0, "/log"),)),
    do.SpawnRanks: {},
    do.CheckLevel: "",
    do.FindControlPages: True,
    do.CutGang: 5,
    do.PackRendezvous: "left",
    on_images.MeasureRanks: {},
    on_images.DumpRanks: on_images.Dumped(100, IMAGE),
    do.SuspendByDriver: IMAGE,
    on_images.StoreImage: 50,
    on_images.PushImage: False,
    on_images.HasRaw: True,
    on_images.ReadyImages: {},
    on_images.MakeGeneration: on_images.Renewed({}),
    on_images.RestoreRanks: {},
    do.SweepRanks: (),
    do.TidyRank: True,
    do.FindDeviceFault: "",
    do.ReadLastLines: (),
    do.ReadEnding: do.RankEnding(False, RankOutcome(0)),
}


class Shell:
    """Carries out every step at once, but for those of a type in ``slow``, whose numbers are kept; ``fails`` by type."""

    def __init__(self, node: str = "a") -> None:
        self.machine = NodeMachine(node, images=True)
        self.done: list[do.Effect | do.ActionStep] = []
        self.slow: dict[type, list[int]] = {}
        self.fails: dict[type, do.ActionFailed] = {}
        self.mono_us = 0
        self.answers: list[JobReport | TideError] = []

    def feed(self, event: ev.Event) -> None:
        self.mono_us += 1
        for number, _, action in self.machine.handle(Instant(self.mono_us, self.mono_us / 1e6, 0.0), event):
            self.done.append(action)
            if isinstance(action, do.AnswerRequest):
                self.answers.append(action.report)
            elif isinstance(action, do.Refuse):
                self.answers.append(action.error)
            elif isinstance(action, do.Log):
                assert action.level != "bug", action.text
            elif number and type(action) in self.slow:
                self.slow[type(action)].append(number)
            elif number:
                self.finish(number, type(action))

    def finish(self, number: int, kind: type) -> None:
        error = self.fails.get(kind)
        self.feed(ev.StepFailed(number, error) if error else ev.StepDone(number, RESULTS.get(kind)))

    def ask(self, verb: str, args: Any, op_id: str = "") -> JobReport:
        count = len(self.answers)
        self.feed(ev.Requested(1, verb, args, op_id))
        assert len(self.answers) == count + 1, "every request is answered once, and at once"
        answer = self.answers[-1]
        if isinstance(answer, TideError):
            raise answer
        return answer

    def names(self, *of: type) -> list[str]:
        return [type(each).__name__ for each in self.done if isinstance(each, of)]

    def published(self) -> list[JobReport]:
        return [each.report for each in self.done if isinstance(each, do.PublishReport)]

    @property
    def record(self) -> AttemptRecord:
        return self.machine.attempts[KEY].record


def seats(*ranks: int) -> tuple[RankSeat, ...]:
    return tuple(RankSeat(rank, rank, (rank,)) for rank in ranks)


def running(node: str = "a", peers: tuple[Peer, ...] = ()) -> Shell:
    shell = Shell(node)
    args = LaunchArgs(job=1, attempt=0, command=("x",), ranks=seats(0), world_size=max(1, len(peers)), peers=peers)
    shell.ask("launch", args, "start")
    assert shell.record.phase == "running"
    shell.done.clear()
    return shell


ARGS: dict[Verb, Any] = {
    "launch": LaunchArgs(job=1, attempt=0, command=("x",), ranks=seats(0)),
    "suspend": SuspendArgs(job=1, attempt=0, level=Level.FREEZE),
    "resume": ResumeArgs(job=1, attempt=0),
    "checkpoint": CheckpointArgs(job=1, attempt=0, serial=9),
    "stop": StopArgs(job=1, attempt=0),
}


def at(phase: Phase) -> Shell:
    """A node that has taken over an attempt in some phase, and is not done with anything yet."""
    shell = Shell()
    shell.slow = {kind: [] for kind in do.ActionStep.__subclasses__() if not kind.INSTANT}
    image = IMAGE if phase in ("suspended", "resuming") else None
    record = AttemptRecord(phase=phase, image=image, ending="stop" if phase == "stopping" else "", level=Level.FREEZE)
    shell.feed(ev.Adopted(ARGS["launch"], record, (), {0: RankOutcome(3)} if phase in ("exited", "failed") else {}))
    shell.done.clear()
    return shell


@pytest.mark.parametrize("phase", get_args(Phase))
@pytest.mark.parametrize("verb", list(ARGS))
def test_every_verb_in_every_state_is_answered_at_once_and_says_what_will_be(phase: Phase, verb: Verb) -> None:
    becomes = {"suspend": "suspending", "resume": "resuming", "stop": "stopping"}
    shell = at(phase)
    report = shell.ask(verb, ARGS[verb], "op")
    begins = TABLE[phase, verb].value == "begin" and verb in becomes
    assert report.state == (becomes[verb] if begins else phase)
    assert shell.ask(verb, ARGS[verb], "op").state == report.state, "asked again it changes nothing"
    if begins:
        shell.done.clear()
        assert shell.ask(verb, ARGS[verb], "op").state == report.state
        assert not shell.names(do.SuspendByDriver, do.ResumeByDriver)


@pytest.mark.parametrize("phase", get_args(Phase))
def test_forget_is_for_what_has_ended_or_left(phase: Phase) -> None:
    shell, args = at(phase), ForgetArgs(job=1, attempt=0)
    if phase in ("exited", "failed"):
        shell.ask("forget", args)
        assert shell.machine.attempts == {}
        with pytest.raises(Conflict):
            shell.ask("launch", ARGS["launch"])
        return
    with pytest.raises(Conflict, match=phase):
        shell.ask("forget", args)
    shell.slow.clear()
    left = msgspec.structs.replace(args, left=True)
    shell = at(phase)
    shell.slow = {kind: [] for kind in shell.slow if kind is not do.KillRanks}
    shell.ask("forget", left)
    assert shell.machine.reports() == (), "an attempt that has left is not reported any more"


def test_what_is_not_here_is_refused_or_gone() -> None:
    shell = Shell()
    assert shell.ask("stop", ARGS["stop"]).lost
    for verb in ("suspend", "resume", "checkpoint"):
        with pytest.raises(UsageError, match="not on this node"):
            shell.ask(verb, ARGS[verb])


def test_the_image_counts_before_any_process_is_ended_and_is_stored_behind() -> None:
    shell = running()
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=1), "s")
    order = shell.names(on_images.DumpRanks, do.CommitRecord, on_images.FinishDump, on_images.StoreImage)
    assert order == ["DumpRanks", "CommitRecord", "FinishDump", "StoreImage"]
    assert [report.state for report in shell.published()][:2] == ["suspending", "suspended"]


def test_a_record_that_cannot_be_written_leaves_the_ranks_running() -> None:
    shell = running()
    shell.fails[do.CommitRecord] = do.ActionFailed("disk full", no_room=True)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=1), "s")
    last = shell.published()[-1]
    assert (last.state, last.error, last.no_room) == ("running", "disk full", True)
    assert shell.names(on_images.DiscardRaw, on_images.UndoDump, do.ReleaseRanks, on_images.FinishDump) == [
        "DiscardRaw",
        "UndoDump",
        "ReleaseRanks",
    ]


def test_what_ranks_have_left_is_packed_before_any_node_hears_of_the_cut() -> None:
    """A node that has heard may let its ranks run on, and what they leave then is not of the image."""
    shell = running("a", PEERS)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=7, peers=PEERS), "s")
    order = shell.names(do.CutGang, do.PackRendezvous, do.SendCutResult, on_images.DumpRanks)
    assert order == ["CutGang", "PackRendezvous", "SendCutResult", "DumpRanks"]
    (sent,) = [each for each in shell.done if isinstance(each, do.SendCutResult)]
    assert (sent.others, sent.cut, sent.why) == (PEERS[1:], 7, "")


@pytest.mark.parametrize("step", [do.CutGang, do.PackRendezvous])
def test_every_node_hears_why_there_is_no_cut(step: type) -> None:
    shell = running("a", PEERS)
    shell.fails[step] = do.ActionFailed("no number")
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=7, peers=PEERS), "s")
    (sent,) = [each for each in shell.done if isinstance(each, do.SendCutResult)]
    assert "no number" in sent.why and "no number" in shell.published()[-1].error
    assert shell.names(do.ReleaseRanks) == (["ReleaseRanks"] if step is do.PackRendezvous else [])


def test_a_leader_that_refuses_tells_those_who_wait_for_its_decision() -> None:
    for verb in ("suspend", "checkpoint"):
        shell = running("a", PEERS)
        RESULTS[do.CheckLevel] = "rank 0 has opened a terminal"
        try:
            args = {
                "suspend": SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS),
                "checkpoint": CheckpointArgs(job=1, attempt=0, serial=6, peers=PEERS),
            }
            shell.ask(verb, args[verb], "s")
        finally:
            RESULTS[do.CheckLevel] = ""
        (sent,) = [each for each in shell.done if isinstance(each, do.SendCutResult)]
        assert sent.why == "rank 0 has opened a terminal" and not shell.names(do.CutGang)


def holds(shell: Shell, cut: int) -> None:
    """The leader holds the ranks here, and all stand still."""
    shell.feed(ev.HoldRequested(cut, KEY, cut))
    shell.feed(ev.CutDecided(KEY, cut, ""))


def follower() -> Shell:
    shell = running("b", PEERS)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    assert not shell.names(do.CutGang, on_images.DumpRanks)
    return shell


def test_a_node_that_does_not_lead_waits_for_the_decision() -> None:
    shell = follower()
    shell.feed(ev.CutDecided((1, 1), 6, "another attempt"))
    shell.feed(ev.CutDecided(KEY, 5, "another cut"))
    assert shell.record.phase == "suspending"
    holds(shell, 6)
    assert shell.record.phase == "suspended" and shell.record.image is not None


def test_a_decision_may_come_before_it_is_waited_for() -> None:
    shell = running("b", PEERS)
    holds(shell, 6)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    assert shell.record.phase == "suspended"


def test_ranks_run_on_when_no_decision_comes_and_when_they_are_to_end() -> None:
    shell = follower()
    (timer,) = [each for each in shell.done if isinstance(each, do.StartTimer)]
    shell.feed(ev.TimerFired(timer.timer))
    assert shell.record.phase == "running" and shell.names(do.ReleaseRanks)
    assert "no decision" in shell.published()[-1].error
    shell = follower()
    shell.ask("stop", ARGS["stop"])
    assert shell.record.phase == "stopping" and shell.names(do.ReleaseRanks, do.TerminateRanks) == [
        "ReleaseRanks",
        "TerminateRanks",
    ]


def test_a_node_that_takes_an_image_is_held_for_that_image_only() -> None:
    """Releasing its ranks afterwards would release them from the later cut, too, without a record of it."""
    shell = running("b", PEERS)
    shell.slow[on_images.DumpRanks] = []
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    holds(shell, 5)
    assert shell.slow[on_images.DumpRanks]
    for ask, serial in ((1, 5), (2, None), (3, 6)):
        shell.feed(ev.HoldRequested(ask, KEY, serial))
    assert granted(shell) == [5, 1, 2], "the cut of the image itself, and one of a leader that does not say for what"
    shell.finish(shell.slow[on_images.DumpRanks][0], on_images.DumpRanks)
    order = [type(each).__name__ for each in shell.done if isinstance(each, do.ReleaseRanks | do.GrantHold)]
    assert order == ["GrantHold", "GrantHold", "GrantHold", "ReleaseRanks", "GrantHold"]


@pytest.mark.parametrize("over", [False, True], ids=["it-runs-on", "it-has-ended"])
def test_an_image_that_is_stored_after_the_attempt_has_ended_is_dropped(over: bool) -> None:
    """It would never be reported, and the job's next attempt counts on the images that the controller knows."""
    shell = running()
    shell.slow[on_images.StoreImage] = []
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=3), "c")
    if over:
        shell.feed(ev.RankGone(KEY, 0, 0))
        assert shell.record.phase == "exited"
    count = len(shell.published())
    shell.finish(shell.slow[on_images.StoreImage][0], on_images.StoreImage)
    assert shell.names(on_images.DropImage, on_images.PruneImages) == (["DropImage"] if over else ["PruneImages"])
    assert (len(shell.published()) > count) is not over


# -- what the simulation found ------------------------------------------------------------------------------------------


def granted(shell: Shell) -> list[int]:
    return [each.ask for each in shell.done if isinstance(each, do.GrantHold)]


def refused(shell: Shell) -> list[TideError | JobReport]:
    return [answer for answer in shell.answers if isinstance(answer, TideError)]


def test_no_later_cut_begins_before_an_image_that_was_asked_for_is_done() -> None:
    """Its leader has released its ranks long ago: the image here would be taken of the later cut, and no two parts of it fit."""
    shell = running("b", PEERS)
    shell.slow[do.CheckLevel] = []
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    holds(shell, 5)
    shell.feed(ev.HoldRequested(6, KEY, 6))
    assert granted(shell) == [5]
    shell.finish(shell.slow.pop(do.CheckLevel)[0], do.CheckLevel)
    assert shell.published()[-1].image.serial == 5 and granted(shell) == [5, 6]  # type: ignore[union-attr]


def test_a_cut_does_not_wait_for_what_was_asked_for_after_it() -> None:
    """That waits for the cut."""
    shell = running("b", PEERS)
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    shell.feed(ev.HoldRequested(5, KEY, 5))
    assert granted(shell) == [5]
    shell.feed(ev.CutDecided(KEY, 5, ""))
    shell.feed(ev.HoldRequested(6, KEY, 6))
    assert granted(shell) == [5, 6]
    holds(shell, 6)
    assert shell.record.phase == "suspended"


@pytest.mark.parametrize("heard", [ev.HoldRequested(6, KEY, 6), ev.CutDecided(KEY, 6, "no")])
@pytest.mark.parametrize("held", [False, True])
def test_a_cut_that_its_leader_was_never_asked_for_is_not_waited_for(heard: ev.Event, held: bool) -> None:
    """A suspension overtook the request for an image there, and has come to its cut, or has been refused."""
    shell = running("b", PEERS)
    if held:
        shell.feed(ev.HoldRequested(5, KEY, 5))
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    shell.feed(heard)
    failed = next(each for each in shell.published() if each.verb == "checkpoint")
    assert failed.error and failed.image is not None and failed.image.serial == 5
    if isinstance(heard, ev.HoldRequested):
        assert granted(shell)[-1] == 6
        shell.feed(ev.CutDecided(KEY, 6, ""))
    assert shell.record.phase == ("suspended" if isinstance(heard, ev.HoldRequested) else "running")


@pytest.mark.parametrize("verb", ["suspend", "checkpoint"])
def test_ranks_that_were_held_for_a_cut_that_is_refused_here_run_on(verb: Verb) -> None:
    """Nobody else releases them: the node that leads the cut has it."""
    shell = running("b", PEERS)
    shell.slow[do.CheckLevel] = []
    holds(shell, 6)
    if verb == "checkpoint":
        shell.ask(verb, CheckpointArgs(job=1, attempt=0, serial=6, peers=PEERS), "c")
    else:
        shell.ask(verb, SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    shell.feed(ev.StepDone(shell.slow[do.CheckLevel][0], "a debugger is attached"))
    assert shell.published()[-1].error and shell.names(do.ReleaseRanks)


@pytest.mark.parametrize("refused_here", [True, False])
def test_ranks_that_are_held_for_a_cut_that_nothing_will_come_of_run_on(refused_here: bool) -> None:
    """A suspension overtook the request for an image, for which the ranks are held, on its way here; and it is refused, here or
    where its cut is led."""
    shell = running("b", PEERS)
    if refused_here:
        shell.slow[do.CheckLevel] = []
    holds(shell, 5)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    assert not shell.names(do.ReleaseRanks)
    if refused_here:
        shell.feed(ev.StepDone(shell.slow[do.CheckLevel][0], "a debugger is attached"))
    else:
        shell.feed(ev.CutDecided(KEY, 6, "a debugger is attached"))
    assert shell.record.phase == "running" and shell.names(do.ReleaseRanks)


def test_ranks_are_not_held_again_for_an_image_that_an_earlier_agent_made() -> None:
    """The agent that leads the cut died in it and begins again. Its ranks have trained on since: no image is of two moments."""
    shell = running("b", PEERS)
    shell.record.last_image = ImageReport(serial=5, ranks=(0,))
    shell.feed(ev.HoldRequested(5, KEY, 5))
    shell.feed(ev.HoldRequested(4, KEY, 4))
    assert granted(shell) == [] and len(refused(shell)) == 2
    shell.feed(ev.HoldRequested(6, KEY, 6))
    assert granted(shell) == [6]


@pytest.mark.parametrize("decided", [False, True])
def test_an_image_that_is_asked_for_late_waits_for_no_decision(decided: bool) -> None:
    """The ranks are held for the cut of the suspension that overtook it, which the node that leads both has come to."""
    shell = running("b", PEERS)
    shell.feed(ev.HoldRequested(6, KEY, 6))
    if decided:
        shell.feed(ev.CutDecided(KEY, 6, ""))
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS), "s")
    assert next(each for each in shell.published() if each.verb == "checkpoint").error
    assert not shell.names(do.ReleaseRanks)
    if not decided:
        shell.feed(ev.CutDecided(KEY, 6, ""))
    assert shell.record.phase == "suspended"


@pytest.mark.parametrize("held_first", [False, True])
def test_a_cut_after_which_another_was_asked_for_is_refused_at_once(held_first: bool) -> None:
    """A suspension has overtaken the request for an image here, and on the node that leads both it waits for that image."""
    shell = running("b", PEERS)
    suspension = SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=6, peers=PEERS)
    if not held_first:
        shell.ask("suspend", suspension, "s")
    shell.feed(ev.HoldRequested(5, KEY, 5))
    if held_first:
        shell.ask("suspend", suspension, "s")
        shell.feed(ev.CutDecided(KEY, 5, "rank 1 does not come"))
    assert (granted(shell), bool(refused(shell))) == (([5], False) if held_first else ([], True))
    shell.feed(ev.HoldRequested(6, KEY, 6))
    shell.feed(ev.CutDecided(KEY, 6, ""))
    assert shell.record.phase == "suspended"


def test_an_image_waits_for_a_freeze_that_is_under_way_whatever_its_number() -> None:
    shell = running("b", PEERS)
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FREEZE, peers=PEERS), "1.0.suspend.1000")
    shell.feed(ev.HoldRequested(5, KEY, 5))
    assert granted(shell) == [] and refused(shell) == []
    shell.feed(ev.CutDecided(KEY, 1000, "no"))
    assert granted(shell) == [5]


def test_a_cut_whose_image_was_not_asked_for_yet_is_void_once_the_ranks_are_held_for_another() -> None:
    shell = running("b", PEERS)
    holds(shell, 5)
    shell.feed(ev.HoldRequested(6, KEY, 6))
    assert granted(shell) == [5, 6]
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    assert "another cut" in shell.published()[-1].error
    assert not shell.names(on_images.DumpRanks, do.ReleaseRanks), "they are held for the other cut"


def test_who_asks_too_late_for_a_cut_may_not_hold_the_ranks() -> None:
    shell = follower()
    shell.feed(ev.CutDecided(KEY, 6, "rank 1 does not come"))
    assert shell.record.phase == "running"
    shell.feed(ev.HoldRequested(9, KEY, 6))
    assert granted(shell) == [] and "is over" in str(refused(shell)[-1])


def test_a_cut_for_which_an_earlier_agent_let_the_ranks_be_held_is_none() -> None:
    """This one releases them, whatever the leader has recorded; an image would be taken of ranks that run."""
    shell = Shell("b")
    shell.slow[on_images.UndoDump] = []
    args = LaunchArgs(job=1, attempt=0, command=("x",), ranks=seats(0), world_size=2, peers=PEERS)
    shell.feed(ev.Adopted(args, AttemptRecord(phase="running", checkpointing=True, peers=PEERS)))
    shell.feed(ev.CutDecided(KEY, 5, ""))
    shell.finish(shell.slow[on_images.UndoDump][0], on_images.UndoDump)
    assert shell.names(do.ReleaseRanks)
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    assert not shell.names(on_images.DumpRanks) and "were released" in shell.published()[-1].error


def test_no_cut_holds_ranks_that_are_still_to_be_released_from_the_cut_of_an_earlier_agent() -> None:
    shell = Shell("b")
    shell.slow = {on_images.UndoDump: [], do.ReleaseRanks: []}
    args = LaunchArgs(job=1, attempt=0, command=("x",), ranks=seats(0), world_size=2, peers=PEERS)
    shell.feed(ev.Adopted(args, AttemptRecord(phase="running", checkpointing=True, peers=PEERS)))
    shell.feed(ev.HoldRequested(7, KEY, 5))
    shell.finish(shell.slow[on_images.UndoDump][0], on_images.UndoDump)
    assert granted(shell) == []
    shell.finish(shell.slow[do.ReleaseRanks][0], do.ReleaseRanks)
    assert granted(shell) == [7]


def test_nobody_holds_the_ranks_for_a_cut_that_is_done_with() -> None:
    shell = running("b", PEERS)
    shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=5, peers=PEERS), "c")
    holds(shell, 5)
    assert shell.names(on_images.DumpRanks) and shell.names(do.ReleaseRanks)
    shell.feed(ev.HoldRequested(9, KEY, 5))
    assert granted(shell) == [5] and "is over" in str(refused(shell)[-1])


def test_a_freeze_is_not_decided_by_what_was_said_of_an_earlier_one() -> None:
    shell = running("b", PEERS)
    args = SuspendArgs(job=1, attempt=0, level=Level.FREEZE, peers=PEERS)
    shell.ask("suspend", args, "1.0.suspend.1000")
    shell.feed(ev.CutDecided(KEY, 1000, "no"))
    assert shell.record.phase == "running"
    shell.feed(ev.CutDecided(KEY, 1000, ""))
    shell.ask("suspend", args, "1.0.suspend.2000")
    assert shell.record.phase == "suspending", "it waits for a decision of its own"
    holds(shell, 2000)
    assert shell.record.phase == "suspended"


def test_a_freeze_that_an_earlier_agent_began_is_completed_without_asking_whether_it_may_be() -> None:
    """Refused, it would leave ranks frozen that are reported as running."""
    shell = Shell()
    RESULTS[do.CheckLevel] = "a debugger is attached"
    try:
        shell.feed(
            ev.Adopted(ARGS["launch"], AttemptRecord(phase="suspending", verb="suspend", level=Level.FREEZE, cut=7))
        )
    finally:
        RESULTS[do.CheckLevel] = ""
    assert shell.record.phase == "suspended" and not shell.names(do.CheckLevel)


def test_a_record_keeps_its_first_names_on_disk() -> None:
    """An agent takes over the ranks of an earlier one, and an earlier one may come back after it."""
    written = b'{"phase":"running","quiet":true,"shot":{"serial":3},"cap":2,"cap_why":"a debugger","sitting":"g"}'
    record = msgspec.json.decode(written, type=AttemptRecord)
    assert record.quiesced and record.last_image is not None and record.last_image.serial == 3
    assert (record.max_level, record.max_level_why, record.rendezvous_generation) == (2, "a debugger", "g")
    encoded = msgspec.json.decode(msgspec.json.encode(record))
    assert set(encoded) == {"phase", "quiet", "shot", "cap", "cap_why", "sitting"}


def resuming(step: type) -> Shell:
    """Comes back from an image, and is at a step of that."""
    shell = running()
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=1), "s")
    shell.done.clear()
    shell.slow[step] = []
    launch = msgspec.structs.replace(ARGS["launch"], image=1)
    shell.ask("resume", ResumeArgs(job=1, attempt=0, serial=1, launch=launch), "r")
    assert shell.slow[step]
    return shell


def test_ranks_that_come_back_while_their_attempt_leaves_are_ended() -> None:
    shell = resuming(on_images.RestoreRanks)
    shell.ask("forget", ForgetArgs(job=1, attempt=0, left=True))
    shell.finish(shell.slow[on_images.RestoreRanks][0], on_images.RestoreRanks)
    order = [each for each in shell.done if isinstance(each, on_images.RestoreRanks | do.KillRanks | do.RemoveAttempt)]
    assert order[-2:] == [do.KillRanks((0,)), do.RemoveAttempt(True)] and shell.machine.attempts == {}


def test_what_has_ended_while_it_leaves_is_forgotten_once() -> None:
    shell = running()
    shell.ask("stop", ARGS["stop"])
    shell.feed(ev.RankGone(KEY, 0, 0))
    shell.slow[do.KillRanks] = []
    shell.ask("forget", ForgetArgs(job=1, attempt=0, left=True))
    shell.ask("forget", ForgetArgs(job=1, attempt=0))
    shell.finish(shell.slow[do.KillRanks][0], do.KillRanks)
    assert shell.names(do.RemoveAttempt) == ["RemoveAttempt"]


def test_nothing_waits_for_a_cut_of_an_attempt_that_was_forgotten() -> None:
    shell = follower()
    shell.feed(ev.RankGone(KEY, 0, 0))
    shell.ask("forget", ForgetArgs(job=1, attempt=0))
    assert shell.names(do.ReleaseRanks), "the suspension has come to its end"


def test_an_attempt_that_is_stopped_while_its_ranks_wait_to_come_back_ends() -> None:
    shell = resuming(do.WriteEndpoints)
    shell.ask("stop", ARGS["stop"])
    shell.fails[do.WriteEndpoints] = do.ActionFailed("its ranks are being ended")
    shell.finish(shell.slow[do.WriteEndpoints][0], do.WriteEndpoints)
    assert shell.record.phase == "exited" and not shell.names(on_images.RestoreRanks)


def test_the_end_of_ranks_before_does_not_end_an_attempt_that_comes_back() -> None:
    shell = Shell()
    shell.slow[on_images.ReadyImages] = []
    record = AttemptRecord(phase="resuming", verb="resume", level=Level.FULL, serial=1)
    shell.feed(ev.Adopted(msgspec.structs.replace(ARGS["launch"], image=1), record))
    shell.ask("stop", ARGS["stop"])
    shell.feed(ev.RankGone(KEY, 0, 0))
    assert shell.record.phase == "stopping"
    shell.finish(shell.slow[on_images.ReadyImages][0], on_images.ReadyImages)
    assert shell.record.phase == "exited" and not shell.names(on_images.RestoreRanks)


def test_ranks_of_an_interrupted_try_to_bring_them_back_do_not_count_as_failed() -> None:
    """The second agent in a row that is killed there: what the first one restored is killed, and is not waited for."""
    shell = Shell()
    record = AttemptRecord(phase="resuming", verb="resume", level=Level.FULL, serial=1, generation=1)
    shell.feed(ev.Adopted(msgspec.structs.replace(ARGS["launch"], image=1), record))
    kinds = [type(each) for each in shell.done]
    assert do.WatchRanks not in kinds[: kinds.index(do.KillRanks)] and shell.record.phase == "running"


def test_the_answer_to_a_checkpoint_repeats_no_refusal_of_a_suspension() -> None:
    shell = running()
    shell.fails[on_images.DumpRanks] = do.ActionFailed("full disk")
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=3), "s")
    assert shell.published()[-1].verb == "suspend" and shell.published()[-1].error
    answer = shell.ask("checkpoint", CheckpointArgs(job=1, attempt=0, serial=4), "c")
    assert (answer.verb, answer.error) == ("checkpoint", "")


def test_a_suspended_attempt_whose_agent_died_while_it_was_stopped_ends() -> None:
    shell = Shell()
    record = AttemptRecord(phase="stopping", verb="stop", ending="stop", image=IMAGE, level=Level.FULL, serial=1)
    shell.feed(ev.Adopted(ARGS["launch"], record))
    assert shell.record.phase == "exited" and shell.names(on_images.FinishDump, on_images.DiscardRaw)


def test_a_repeated_resumption_of_what_came_from_elsewhere_changes_nothing() -> None:
    shell = Shell()
    shell.fails[on_images.ReadyImages] = do.ActionFailed("no node that has it answers")
    args = ResumeArgs(job=1, attempt=0, serial=1, launch=msgspec.structs.replace(ARGS["launch"], image=1))
    shell.ask("resume", args, "r")
    assert shell.record.phase == "suspended" and shell.published()[-1].error
    del shell.fails[on_images.ReadyImages]
    assert shell.ask("resume", args, "r").state == "suspended" and not shell.names(on_images.RestoreRanks)


def test_what_came_from_elsewhere_and_could_not_be_restored_has_no_ranks_for_the_next_agent() -> None:
    shell = Shell()
    shell.fails[on_images.ReadyImages] = do.ActionFailed("no node that has it answers")
    launch = msgspec.structs.replace(ARGS["launch"], image=1)
    shell.ask("resume", ResumeArgs(job=1, attempt=0, serial=1, launch=launch), "r")
    left = msgspec.json.decode(msgspec.json.encode(shell.record), type=AttemptRecord)
    following = Shell()
    following.feed(ev.Adopted(launch, left))
    assert following.record.phase == "suspended" and not following.names(do.WatchRanks)
    following.ask("resume", ResumeArgs(job=1, attempt=0, serial=1, launch=launch), "again")
    assert following.record.phase == "running" and following.names(on_images.RestoreRanks)


def test_an_image_that_an_earlier_agent_may_have_reported_as_stored_outlives_a_stop() -> None:
    """The controller counts it, and the next attempt comes back from it."""
    shell = Shell()
    shell.slow[on_images.StoreImage] = []
    record = AttemptRecord(phase="running", last_image=ImageReport(serial=3, ranks=(0,)))
    shell.feed(ev.Adopted(ARGS["launch"], record))
    shell.ask("stop", ARGS["stop"], "e")
    shell.feed(ev.RankGone(KEY, 0, 0))
    assert shell.record.phase == "exited"
    shell.finish(shell.slow[on_images.StoreImage][0], on_images.StoreImage)
    assert not shell.names(on_images.DropImage)


def test_the_only_copy_of_an_image_outlives_the_attempt_that_is_stopped_in_it() -> None:
    """Another node of a gang was lost, and its next attempt comes back from the image."""
    shell = running()
    shell.slow[on_images.StoreImage] = []
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=3), "s")
    shell.ask("stop", ARGS["stop"], "e")
    assert shell.record.phase == "exited"
    shell.finish(shell.slow[on_images.StoreImage][0], on_images.StoreImage)
    assert not shell.names(on_images.DiscardRaw, on_images.DropImage)


@pytest.mark.parametrize("phase", ["starting", "running", "suspending", "resuming", "stopping"])
def test_what_was_going_on_before_its_node_was_started_anew_is_lost(phase: Phase) -> None:
    """The controller has given its devices to others as soon as the node is back."""
    shell = Shell()
    shell.machine.boot = "second"
    ending = "stop" if phase == "stopping" else ""
    image = IMAGE if phase == "resuming" else None
    record = AttemptRecord(phase=phase, boot="first", ending=ending, image=image, level=Level.FULL, serial=1)
    shell.feed(ev.Adopted(ARGS["launch"], record))
    last = shell.published()[-1]
    assert (last.state, last.lost) == ("exited", True)
    assert not shell.names(do.SpawnRanks, on_images.RestoreRanks, do.SuspendByDriver)


def test_an_image_outlives_the_restart_of_its_node() -> None:
    shell = Shell()
    shell.machine.boot = "second"
    record = AttemptRecord(phase="suspended", boot="first", image=IMAGE, level=Level.FULL, serial=1)
    shell.feed(ev.Adopted(ARGS["launch"], record))
    assert shell.record.phase == "suspended"


def test_ranks_that_were_released_are_not_brought_back_once_more_by_the_next_agent() -> None:
    """Those on other nodes train on with them."""
    shell = resuming(do.ReleaseRanks)
    left = msgspec.json.decode(msgspec.json.encode(shell.record), type=AttemptRecord)
    following = Shell()
    following.feed(ev.Adopted(shell.machine.attempts[KEY].args, left))
    assert following.record.phase == "running" and following.names(do.ReleaseRanks)
    assert not following.names(on_images.RestoreRanks, do.KillRanks)
    shell = following
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=2), "s2")
    shell.done.clear()
    shell.ask("resume", ResumeArgs(job=1, attempt=0, serial=2, launch=shell.machine.attempts[KEY].args), "r2")
    assert shell.names(on_images.RestoreRanks), "the next image is another matter"


def test_logs_are_reported_of_the_ranks_that_are_here_now() -> None:
    shell = running()
    shell.ask("suspend", SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=1), "s")
    RESULTS[do.CheckSeats] = {}, ((1, "/other"),)
    try:
        launch = msgspec.structs.replace(ARGS["launch"], image=1, ranks=seats(1), world_size=2)
        shell.ask("resume", ResumeArgs(job=1, attempt=0, serial=1, launch=launch), "r")
    finally:
        RESULTS[do.CheckSeats] = {}, ((0, "/log"),)
    assert shell.published()[-1].logs == ((1, "/other"),)
