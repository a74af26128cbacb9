"""Arrays by their ids: limits of their own, changed afterwards; jobs that wait for the whole of one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.drive.replay import replay
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.cause import Code
from tidewright.model.job import ArrayMember, Dependency, JobSpec
from tidewright.plan.moves import Start
from tidewright.plan.reasons import Reason
from tidewright.plan.render import remedy, render
from tidewright.testing.swarm import Swarm
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples

SEEDS = st.integers(min_value=0, max_value=2**32)


def _array(world: Worldlet, name: str, size: int, limit: int = 0, key: str = "") -> list[int]:
    """The jobs of a new array, submitted in one step as the controller does."""
    key = key or f"{name}{world.engine.book.next_job}"
    events = [
        ev.Submit(JobSpec(command=("x",), array=ArrayMember(name, at, size, limit)), f"{key}.{at}", f"{key}.0")
        for at in range(size)
    ]
    world.tell(*events)
    return [world.engine.book.answers[f"{key}.{at}"].job for at in range(size)]


def _states(world: Worldlet, jobs: list[int]) -> str:
    """A letter for each: H held, Q queued, R running, C ended."""
    return "".join(world.state(job).name[0] for job in jobs)


def _start(world: Worldlet, job: int, device: int = 0) -> None:
    from tidewright.model.node import Part

    world.plan(Start(job, (Part(0, 1 << device),), "test"))


def test_an_array_is_known_by_the_id_of_its_first_member() -> None:
    world = Worldlet()
    world.submit()
    jobs = _array(world, "a", 3)
    assert [world.engine.book.specs[job].array for job in jobs] == [
        ArrayMember("a", at, 3, 0, jobs[0]) for at in range(3)
    ]
    more = ev.Submit(JobSpec(command=("x",), array=ArrayMember("a", 3, 4, 0, jobs[0])), "later", "later")
    assert world.engine.book.specs[world.reply(more, "later").job].array == ArrayMember("a", 3, 4, 0, jobs[0])


def test_two_arrays_of_one_name_have_limits_of_their_own() -> None:
    world = Worldlet()
    one, other = _array(world, "a", 4, 2), _array(world, "a", 3, 1)
    assert (_states(world, one), _states(world, other)) == ("QQHH", "QHH")
    assert world.engine.book.hold_reason(one[2]) is not None
    world.tell(ev.Cancel(other[0]))
    assert (_states(world, one), _states(world, other)) == ("QQHH", "CQH")
    world.tell(ev.Cancel(one[2]))  # one that waits makes no room
    assert _states(world, one) == "QQCH"


def test_arrays_of_earlier_versions_share_the_limit_of_their_name() -> None:
    world = Worldlet()
    jobs = [world.submit(array=ArrayMember("a", at, 2, limit=2)) for at in (0, 1, 0, 1)]
    assert _states(world, jobs) == "QQHH"
    assert world.reply(ev.LimitArray(jobs[0], 4, "op"), "op").error == Code.NO_SUCH_ARRAY(jobs[0])


def test_a_raised_limit_lets_more_queue_and_a_lowered_one_holds_back_what_has_not_started() -> None:
    world = Worldlet()
    jobs = _array(world, "a", 6, 2)
    assert not world.reply(ev.LimitArray(jobs[0], 4, "up"), "up").error
    assert _states(world, jobs) == "QQQQHH"
    _start(world, jobs[0], 0)
    _start(world, jobs[1], 1)
    world.tell(ev.LimitArray(jobs[0], 1, "down"))
    assert _states(world, jobs) == "RRHHHH"
    assert world.engine.book.jobs[jobs[3]].history[-1][2] == Code.ARRAY_LIMIT_CHANGED()
    world.tell(ev.Exited(jobs[0], 1, 0))
    assert _states(world, jobs) == "CRHHHH", "as many run as may"
    world.tell(ev.Exited(jobs[1], 1, 0))
    assert _states(world, jobs) == "CCQHHH", "the first of those that wait is next"
    again = Engine.restore(world.engine.snapshot())
    assert again.snapshot() == world.engine.snapshot()
    world.tell(ev.LimitArray(jobs[0], 0, "none"))
    assert _states(world, jobs) == "CCQQQQ"
    before = len(world.said)
    world.tell(ev.LimitArray(jobs[0], 1, "none"))
    assert _states(world, jobs) == "CCQQQQ" and len(world.said) == before + 1, "the same call again, the same answer"


@pytest.mark.parametrize("end", ["requeue", "lost"])
def test_a_member_that_starts_over_counts_against_a_limit_that_was_lowered(end: str) -> None:
    world = Worldlet()
    jobs = _array(world, "a", 4, 3)
    for device, job in enumerate(jobs[:3]):
        _start(world, job, device)
    world.tell(ev.LimitArray(jobs[0], 2, "limit"))
    assert _states(world, jobs) == "RRRH"
    world.tell(ev.Requeue(jobs[1], "again") if end == "requeue" else ev.Exited(jobs[1], 1, 137, lost=True))
    assert _states(world, jobs) == "RHRH"
    assert world.engine.book.hold_reason(jobs[1]) == (Reason.ARRAY_LIMIT, Code.ARRAY_FULL(str(jobs[0])))
    world.tell(ev.Exited(jobs[0], 1, 0))
    assert _states(world, jobs) == "CQRH"  # one ended: the first that waits may queue


def test_a_limit_of_what_is_no_array_is_refused() -> None:
    world = Worldlet()
    job = world.submit()
    (member,) = _array(world, "a", 1)
    world.tell(ev.Cancel(member))
    for array, wanted, kind in (
        (job, Code.NO_SUCH_ARRAY(job), "notfound"),
        (member, Code.ARRAY_OVER(member), "conflict"),
    ):
        reply = world.reply(ev.LimitArray(array, 1, f"op{array}"), f"op{array}")
        assert (reply.error, reply.kind) == (wanted, kind) and remedy(wanted)


@pytest.mark.parametrize(
    ("kind", "codes", "wanted"),
    [("afterok", (0, 0), "Q"), ("afterok", (0, 1), "C"), ("afternotok", (1, 0), "Q"), ("afternotok", (0, 0), "C"),
     ("afterany", (1, 0), "Q")],
)  # fmt: skip
def test_a_job_waits_for_every_member_of_an_array(kind, codes, wanted) -> None:
    world = Worldlet()
    jobs = _array(world, "a", 2)
    (waiting,) = after = [world.submit(after=(Dependency(kind, jobs[0], True),))]
    why = world.engine.book.hold_reason(waiting)
    assert why is not None and render(why[1]) == f"waits for every member of array {jobs[0]}"
    for at, job in enumerate(jobs):
        assert _states(world, after) == "H"
        _start(world, job)
        world.tell(ev.Exited(job, 1, codes[at]))
        world.engine = world.driver.engine = Engine.restore(world.engine.snapshot())
    assert _states(world, after) == wanted
    reply = world.reply(ev.Submit(JobSpec(command=("x",), after=(Dependency(kind, jobs[0], True),)), "late"), "late")
    assert _states(world, [reply.job]) == wanted, "an array that has ended is remembered as jobs are"


def test_no_member_waits_for_its_own_array_nor_a_job_for_one_that_never_was() -> None:
    world = Worldlet()
    jobs = _array(world, "a", 2)
    dependency = (Dependency("afterok", jobs[0], True),)
    for at, array in enumerate((ArrayMember("a", 2, 3, 0, jobs[0]), None)):
        after = dependency if array else (Dependency("afterok", 77, True),)
        reply = world.reply(ev.Submit(JobSpec(command=("x",), array=array, after=after), f"no{at}"), f"no{at}")
        assert reply.error == Code.UNKNOWN_DEPENDENCY(after[0].job)


def test_a_snapshot_by_names_opens_with_the_same_members_waiting() -> None:
    """Of format 4, which had counts and queues by the arrays' names."""
    world = Worldlet()
    jobs = [world.submit(array=ArrayMember("a", at, 4, limit=2)) for at in range(4)]
    plain = msgspec.msgpack.decode(world.engine.snapshot())
    del plain["arrays"], plain["array_outcomes"]
    plain |= {"format": 4, "array_active": {"a": 2}, "array_queue": {"a": [*jobs[2:], 99]}}
    again = Engine.restore(msgspec.msgpack.encode(plain))
    assert again.snapshot() == world.engine.snapshot()


class ArraySwarm(Swarm):
    """A hostile world with arrays of several members, jobs that wait for them, and users who change limits."""

    def _submission(self) -> ev.Submit:
        submission, rng = super()._submission(), self.rng
        numbers = list(self.engine.book.arrays)
        known = [int(key) for key in numbers if key.isdigit()]
        array = submission.spec.array
        if array is not None and rng.random() < 0.8:
            join = rng.choice(known) if known and rng.random() < 0.6 else 0
            spec = replace(submission.spec, array=replace(array, job=join, limit=rng.randrange(3)))
            return replace(submission, spec=spec, array_of=submission.op_id)
        if rng.random() < 0.3 and known:
            kind = rng.choice(("afterok", "afternotok", "afterany"))
            after = (Dependency(kind, rng.choice(known), True),)  # type: ignore[arg-type]
            return replace(submission, spec=replace(submission.spec, after=after))
        return submission

    def _surprise(self) -> ev.Event:
        rng = self.rng
        if rng.random() < 0.1:
            return ev.LimitArray(rng.randrange(1, self.submitted + 3), rng.randrange(4), f"l{rng.random()}")
        return super()._surprise()


@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_in_a_hostile_world_every_member_ends_and_the_journal_says_the_same_again(seed: int) -> None:
    swarm = ArraySwarm(seed)
    swarm.run(80)
    image, so_far = swarm.engine.snapshot(), len(swarm.journal.records)
    swarm.run(40)
    restored = Engine.restore(image)
    replay(swarm.journal.records[so_far:], engine=restored)
    assert restored.snapshot() == swarm.engine.snapshot()
    assert replay(swarm.journal.records, swarm.engine.settings).snapshot() == swarm.engine.snapshot()
    swarm.settle()
    assert set(swarm.ended) == set(swarm.accepted) and not swarm.engine.book.arrays
