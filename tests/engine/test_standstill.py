"""Whatever happens to a queue, nobody waits for a plan that nothing asks for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State
from tidewright.model.node import Part
from tidewright.plan.moves import Migrate, Resize, Resume, Start
from tidewright.plan.plan import Plan, Wake
from tidewright.policy.registry import make, policies
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples

BEGIN = (Start, Resume, Migrate, Resize)
STEPS = 70
ACTS = (
    *("submit", "submit", "cancel", "hold", "release", "exit", "exit", "wait", "scale", "move", "image"),
    *("drain", "undrain", "down", "up", "answer", "answer", "answer"),
)


def blocked_head(policy: str) -> tuple[Worldlet, int, int, int]:
    """Two of four devices are free; the first in the queue wants four, the second two."""
    pool = Worldlet(nodes=1, devices=4, planner=make(policy))
    running = pool.submit(2, expected_us=MINUTE, preempt="none")
    head, second = pool.submit(4, expected_us=2 * MINUTE), pool.submit(2, expected_us=3 * MINUTE)
    assert pool.state(running) is State.RUNNING and pool.state(head) is State.QUEUED
    return pool, running, head, second


@pytest.mark.parametrize("policy", ["fifo", "sjf"])
@pytest.mark.parametrize("leave", [lambda job: ev.Cancel(job, "c"), lambda job: ev.Hold(job, "h")])
def test_the_next_job_starts_once_the_head_of_the_queue_has_left_it(policy, leave) -> None:
    pool, _, head, second = blocked_head(policy)
    assert pool.state(second) is State.QUEUED
    pool.tell(leave(head))
    assert pool.state(second) is State.RUNNING


class Story(Worldlet):
    """Two nodes of four devices. ``slow``: what nodes say comes later, in any order."""

    def __init__(self, policy: str, dice: random.Random) -> None:
        self.dice, self.slow, self.unsaid, self.down = dice, False, [], set()
        super().__init__(nodes=2, devices=4, planner=make(policy), memory=1 << 36, full=True)
        self.slow = dice.random() < 0.5

    def _answers(self, command: co.Command) -> list[ev.Event]:
        found = super()._answers(command)
        if self.slow and not isinstance(command, co.PlanRequest):
            self.unsaid += found
            return []
        return found

    def act(self, at: int) -> str:
        """Let something happen; returns what."""
        alive = list(self.engine.book.jobs)
        act = self.dice.choice(ACTS) if alive else "submit"
        job, node = self.dice.choice(alive) if alive else 0, self.dice.choice(("n0", "n1"))
        requests = {
            "cancel": ev.Cancel(job, f"c{at}"), "hold": ev.Hold(job, f"h{at}"), "release": ev.Release(job, f"r{at}"),
            "scale": ev.Scale(job, self.dice.choice((0, 1, 2, 4, 8)), f"s{at}"), "image": ev.TakeImage(job, f"i{at}"),
            "move": ev.Move(job, self.dice.choice(((), (node,))), f"m{at}"),
            "drain": ev.NodeDrain(node, True, "", f"d{at}"), "undrain": ev.NodeDrain(node, False, "", f"u{at}"),
        }  # fmt: skip
        runs = alive and self.state(job) is State.RUNNING
        if act == "submit":
            self.arrive()
        elif act in requests:
            self.tell(requests[act])
        elif act == "exit" and runs:
            attempt = self.engine.book.table.attempt.item(self.engine.book.table.row[job])
            self.tell(ev.Exited(job, attempt, self.dice.choice((0, 1)), lost=self.dice.random() < 0.2))
        elif act == "down" and node not in self.down:
            self.down.add(node)
            self.unsaid.clear()
            self.tell(ev.NodeDown(node, "gone"))
        elif act == "up" and node in self.down:
            self.down.discard(node)
            self.tell(ev.NodeUp(next(one for one in self.nodes if one.name == node), str(at + 2)))
        elif act == "answer" and self.unsaid:
            self.tell(self.unsaid.pop(self.dice.randrange(len(self.unsaid))))
        else:
            # What time alone changes is looked at when the policy asks for it; here it is not what is tested.
            self.later(self.dice.choice((1, 30, 400)) * SECOND)
            self.engine.replan()
            self.tell(ev.Tick())
        return f"{act} {job} {node}"

    def arrive(self) -> None:
        """A job of any kind is submitted."""
        dice = self.dice
        fewest = {"min_devices": 1} if dice.random() < 0.2 else {}
        expected = {"expected_us": dice.choice((1, 5, 60)) * MINUTE} if dice.random() < 0.8 else {}
        self.submit(
            dice.choice((1, 1, 2, 4, 8)), tier=dice.choice(("premium", "standard", "basic")), placement="any",
            preempt=dice.choice(("auto", "none", "freeze", "requeue", "full")), **fewest, **expected,
        )  # fmt: skip

    def wanted(self) -> list[object]:
        """What a plan made now would begin on devices that are not just becoming free for somebody else."""
        book = self.engine.book
        if book.wake.at == self.now + 1:
            self.later(1)
        leaving = [job for job in book.jobs if book.state(job) in (State.STOPPING, State.SUSPENDING)]
        coming = [part for job in leaving for part in book.allocations.get(job, ())]
        coming += [part for parts in book.reservations.values() for part in parts]
        moves = [move for move in self.planner.plan(self.engine.view()).moves if isinstance(move, BEGIN)]
        return [move for move in moves if not _overlap(getattr(move, "allocation", ()), coming)]


def _overlap(mine: Sequence[Part], others: Sequence[Part]) -> bool:
    return any(one.node == other.node and one.mask & other.mask for one in mine for other in others)


def standstills(policy: str, seeds: range) -> list[str]:
    """Steps after which a plan that nothing asks for would begin something."""
    found = []
    for seed in seeds:
        story = Story(policy, random.Random(seed))
        for at in range(STEPS):
            act = story.act(at)
            if wanted := story.wanted():
                found.append(f"seed {seed}, step {at}, {act}: nothing asks for a plan that would make {wanted[0]}")
                break
    return found


@pytest.mark.parametrize("policy", sorted(policies.names()))
def test_after_anything_a_plan_made_now_would_begin_nothing_more(policy: str) -> None:
    assert not standstills(policy, range(examples(8)))


@pytest.mark.full
@pytest.mark.parametrize("policy", sorted(policies.names()))
def test_after_anything_a_plan_made_now_would_begin_nothing_more_in_long_stories(policy: str) -> None:
    found = standstills(policy, range(8, 200))
    assert not found, "\n".join(found)


# -- jobs that are starting -------------------------------------------------------------------------------------------------


def started_slowly(policy: str) -> tuple[Worldlet, int, int]:
    """A long job of low tier is starting on all devices when a short premium one arrives."""
    pool = Worldlet(nodes=1, devices=4, planner=make(policy))
    pool.obey = False
    long = pool.submit(4, tier="basic", expected_us=100 * HOUR)
    short = pool.submit(4, tier="premium", expected_us=MINUTE)
    assert pool.state(long) is State.STARTING and pool.state(short) is State.QUEUED
    pool.obey = True
    pool.tell(ev.Started(long, 1))
    return pool, long, short


@pytest.mark.parametrize("policy", ["srtf", "srsf", "sla"])
def test_a_job_that_was_starting_when_another_came_is_preempted_once_it_may_be(policy: str) -> None:
    pool, long, short = started_slowly(policy)
    pool.later(2 * MINUTE)  # sla lets it run for a minute
    assert pool.state(short) is State.RUNNING and pool.state(long) is not State.RUNNING


def test_a_job_that_was_starting_falls_into_a_lower_queue_when_its_service_is_spent() -> None:
    pool, _, short = started_slowly("las")
    pool.later(HOUR)  # four devices: the first queue ends after 3,250 / 4 seconds
    assert pool.state(short) is State.RUNNING


def begun(wake: Wake, *also: ev.Event) -> Engine:
    """A job of four devices begins to run under a plan that waits so; before that, ``also`` happens."""
    pool = Worldlet(nodes=1, devices=4)
    pool.obey = False
    first = pool.submit(4)
    engine = pool.engine.fork()
    engine.book.planning = True
    start = Start(first, (Part(0, 15),), Code.FIRST_IN_QUEUE())
    engine.step(0, [ev.PlanReady(Plan(engine.revision, (start,), wake=wake))])
    engine.step(0, list(also))
    engine.step(0, [ev.Started(first, 1)])
    return engine


@pytest.mark.parametrize(("at", "due"), [(0, 5), (3, 3), (9, 5)])
def test_after_run_is_the_time_for_another_plan_and_an_earlier_one_stays(at: int, due: int) -> None:
    engine = begun(Wake(at=at * SECOND, after_run=5 * SECOND))
    assert engine.book.wake.at == due * SECOND and engine.due() is not None and engine.due() <= due * SECOND
    assert not engine.book.planning


def test_where_a_job_that_begins_to_run_is_no_reason_nothing_is_due() -> None:
    engine = begun(Wake())
    assert engine.book.wake.at == 0 and not engine.book.planning


def test_a_plan_under_way_when_a_job_begins_to_run_is_followed_by_another() -> None:
    engine = begun(Wake(after_run=5 * SECOND), ev.Submit(JobSpec(command=("true",), devices=4)))
    assert engine.book.planning and engine.book.forced
