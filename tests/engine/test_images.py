"""Full images: levels, periodic images, failover. One promise per test."""

from __future__ import annotations

import math

import msgspec
import pytest

from tests.engine.records import each
from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.job import Level, State
from tidewright.model.node import Part
from tidewright.plan.moves import Migrate, Resume, Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.causes import codes, history, history_codes
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet

ONE, TWO = (Part(0, 1),), (Part(0, 1), Part(1, 1))
ELSEWHERE = (Part(1, 1),)
EVERY = 100 * SECOND
SAVE = SECOND
"""What an image costs in these worlds."""


def world(nodes: int = 2, full: bool = True, **settings) -> Worldlet:
    """Real nodes that take full images; each keeps its own."""
    made = Worldlet(nodes, 4, settings=live_settings(check_every=1, **settings), kind="cpu", full=full)
    made.answers[co.CheckpointRanks] = lambda command: None
    return made


def running(world: Worldlet, allocation=ONE, **fields) -> int:
    job = world.submit(sum(part.mask.bit_count() for part in allocation), **fields)
    world.plan(Start(job, allocation, "test"))
    assert world.state(job) is State.RUNNING
    return job


def level(world: Worldlet, job: int) -> Level:
    return Level(int(world.engine.book.table.level[world.engine.book.table.row[job]]))


def ideal(world: Worldlet, job: int) -> int:
    jobs = world.engine.view().jobs
    return int(jobs.ideal_now[jobs.row[job]])


def imaged(world: Worldlet, job: int, after: int = EVERY) -> int:
    """Run on until an image has been taken; returns its serial."""
    given = world.later(after)
    order = next(command for command in given if isinstance(command, co.CheckpointRanks))
    assert order.job == job
    world.later(SAVE, ev.Checkpointed(job, order.attempt, order.serial, SAVE, 1000, 10**9))
    return order.serial


# -- levels -------------------------------------------------------------------------------------------------------------


def test_the_level_is_full_where_every_node_takes_images_and_falls_elsewhere() -> None:
    pool = Worldlet(1, 4, settings=live_settings(check_every=1), kind="cpu", full=True)
    pool.tell(ev.NodeUp(pool.nodes[0].__class__(name="bare", kind="cpu", devices=4), "1"))
    there, bare, both = running(pool), running(pool, ELSEWHERE), running(pool, (Part(0, 2), Part(1, 2)))
    assert [level(pool, job) for job in (there, bare, both)] == [Level.FULL, Level.FREEZE, Level.NONE]


@pytest.mark.parametrize(
    ("preempt", "expected"),
    [("auto", Level.FULL), ("full", Level.FULL), ("freeze", Level.FREEZE), ("cooperative", Level.COOPERATIVE),
     ("requeue", Level.REQUEUE), ("none", Level.NONE)],
)  # fmt: skip
def test_the_users_wish_is_the_most_there_can_be(preempt: str, expected: Level) -> None:
    pool = world()
    assert level(pool, running(pool, (Part(0, 3),), preempt=preempt)) is expected


def test_a_gang_at_full_level_is_suspended_over_nodes_and_held_without_a_bound() -> None:
    pool = world()
    job = running(pool, TWO)
    assert not pool.reply(ev.Hold(job, "h"), "h").error
    assert pool.state(job) is State.HELD and not pool.engine.book.jobs[job].held_in_place
    assert pool.engine.book.allocations == {}
    bare = world(full=False)
    gang = running(bare, (Part(0, 3),))
    assert Code.GANG_TIMEOUT in codes(bare.reply(ev.Hold(gang, "h"), "h").error)


def test_a_frozen_gang_needs_no_bound_where_it_stops_at_a_cut() -> None:
    pool = world()
    job = running(pool, (Part(0, 3),), preempt="freeze")
    assert not pool.reply(ev.Hold(job, "h"), "h").error
    assert pool.state(job) is State.HELD and not pool.engine.book.jobs[job].held_in_place
    spread = running(pool, TWO, preempt="freeze")
    assert Code.SPANS_NODES in codes(pool.reply(ev.Hold(spread, "s"), "s").error)


def test_a_program_lowers_the_level_of_its_attempt_and_no_further_one() -> None:
    pool = world()
    job = running(pool)
    pool.tell(ev.LevelLowered(job, 1, int(Level.NONE), "it maps an io_uring"))
    assert level(pool, job) is Level.NONE and Code.LEVEL_CAPPED in history_codes(pool, job)
    assert (
        Code.NOT_SUSPENDABLE(job, reported("it maps an io_uring"), 60 * SECOND)
        == pool.reply(ev.Hold(job, "h"), "h").error
    )
    pool.tell(ev.LevelLowered(job, 1, int(Level.FREEZE), "weaker news"))
    assert level(pool, job) is Level.NONE, "what was ruled out stays ruled out"
    pool.tell(ev.Exited(job, 1, 137, lost=True))
    pool.plan(Start(job, ONE, "again"))
    assert level(pool, job) is Level.FULL


def test_a_node_that_can_no_longer_take_images_lowers_the_level_of_its_jobs() -> None:
    pool = world()
    job = running(pool)
    bare = pool.nodes[0].__class__(name="n0", kind="cpu", devices=4)
    pool.tell(ev.NodeUp(bare, "2"))
    assert level(pool, job) is Level.FREEZE


# -- suspended as an image ----------------------------------------------------------------------------------------------


def suspended(world: Worldlet, allocation=ONE) -> int:
    job = running(world, allocation)
    world.later(10 * SECOND)
    world.plan(Suspend(job, "room"))
    assert world.state(job) is State.SUSPENDED
    return job


def test_an_image_has_no_home_but_needs_a_node_like_its_own() -> None:
    pool = world(3)
    pool.tell(ev.NodeUp(pool.nodes[0].__class__(name="bare", kind="cpu", devices=4), "1"))
    pool.tell(ev.NodeUp(pool.nodes[0].__class__(name="other", kind="h100", devices=4, full=True), "1"))
    job = suspended(pool)
    for node in (3, 4):
        pool.plan(Resume(job, (Part(node, 1),), "there"))
        assert history_codes(pool, job)[-1] is Code.NOT_RESTORABLE
    pool.plan(Resume(job, (Part(2, 1),), "there"))
    assert pool.state(job) is State.RUNNING
    assert co.ResumeRanks(job, 1, int(Level.FULL), (Part(2, 1),), 1) in pool.said


def test_a_planner_is_shown_where_an_image_can_go() -> None:
    pool = Worldlet(1, 1, settings=live_settings(check_every=1), kind="cpu", full=True)
    pool.tell(ev.NodeUp(pool.nodes[0].__class__(name="bare", kind="cpu", devices=4), "1"))
    job = suspended(pool)
    running(pool)
    pool.planner = make("fifo")
    pool.later(MINUTE)
    assert pool.state(job) is State.SUSPENDED, "its image cannot be restored on the node that is free"
    assert explain(pool.engine, pool.planner, job).why == Code.DEVICES_SHORT(1, "cpu", 0)
    pool.tell(ev.NodeUp(pool.nodes[0].__class__(name="n0", kind="cpu", devices=1), "2"))
    said = explain(pool.engine, pool.planner, job)
    assert said.reason is Reason.NODES_DOWN and said.why == Code.NO_IMAGE_NODES(1)


def test_a_cancelled_image_ends_at_once_and_its_holders_are_told() -> None:
    pool = world()
    job = suspended(pool, TWO)
    given = pool.tell(ev.Cancel(job, "c"))
    assert pool.state(job) is State.CANCELLED
    assert co.DropImages(job, 1, (), ("n0", "n1")) in given
    assert not any(isinstance(command, co.StopRanks) for command in given)


def test_late_news_of_an_imaged_attempt_means_nothing() -> None:
    pool = world()
    job = suspended(pool)
    pool.tell(ev.Exited(job, 1, 0), ev.Exited(job, 1, 137, lost=True))
    assert pool.state(job) is State.SUSPENDED


def test_an_image_dies_with_a_node_that_holds_a_part_unless_there_is_a_copy() -> None:
    pool = world(3)
    lost, kept, stored = suspended(pool, TWO), suspended(pool, TWO), suspended(pool, TWO)
    pool.tell(ev.ImageCopied(kept, 1, "n2"), ev.ImageCopied(stored, 1, "*"), ev.NodeDown("n1", "power"))
    assert [pool.state(job) for job in (lost, kept, stored)] == [State.QUEUED, State.SUSPENDED, State.SUSPENDED]
    assert Code.NO_IMAGE_LEFT not in history_codes(pool, lost) and ideal(pool, lost) == 0
    assert pool.engine.book.image_node_names(kept) == ("n0", "n2")
    pool.tell(ev.NodeDown("n2", "power"))
    assert pool.state(kept) is State.QUEUED


def test_a_copy_on_a_dead_node_is_none() -> None:
    pool = world(3)
    job = suspended(pool)
    pool.tell(ev.NodeDown("n2", "power"), ev.ImageCopied(job, 1, "n2"), ev.NodeDown("n0", "power"))
    assert pool.state(job) is State.QUEUED and not pool.engine.book.jobs[job].images


# -- periodic images ----------------------------------------------------------------------------------------------------


def test_the_interval_is_that_of_young_and_daly() -> None:
    pool = world(node_mtbf_us=10 * DAY)
    job = running(pool, TWO)
    row = pool.engine.book.table.row[job]
    pool.engine.book.table.save_us[row] = 2 * SECOND
    pool.engine.book.jobs[job].save_measured = True
    pool.plan(Migrate(job, (Part(0, 2), Part(1, 2)), "anew"))
    cost = int(pool.engine.book.table.save_us[row])
    due = pool.engine.book.jobs[job].checkpoint_at - pool.now
    assert due == pytest.approx(math.sqrt(2 * cost * 10 * DAY / 2), rel=1e-6), "two nodes fail twice as often as one"


def test_failures_seen_shorten_the_interval() -> None:
    pool = world(4, node_mtbf_us=10 * DAY)
    first = running(pool)
    calm = pool.engine.book.jobs[first].checkpoint_at - pool.now
    for index in range(6):
        pool.tell(ev.NodeDown("n3", "power"))
        pool.later(HOUR, ev.NodeUp(pool.nodes[3], str(index)))
    second = running(pool, ELSEWHERE)
    assert pool.engine.book.jobs[second].checkpoint_at - pool.now < 0.5 * calm


def test_a_job_sets_its_own_interval_or_wants_none_and_the_operator_may_switch_all_off() -> None:
    pool = world()
    own, never = running(pool, checkpoint_us=EVERY), running(pool, ELSEWHERE, checkpoint_us=-1)
    assert each(pool.engine.book, "checkpoint_at") == {own: pool.now + EVERY}
    assert not pool.engine.book.jobs[never].checkpoint_at
    off = world(checkpoints=False)
    running(off, checkpoint_us=EVERY)
    assert each(off.engine.book, "checkpoint_at") == {}


def test_the_first_image_comes_after_one_interval_and_standing_still_is_no_progress() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    assert not any(isinstance(command, co.CheckpointRanks) for command in pool.later(EVERY - 1))
    assert imaged(pool, job, 1) == 1
    assert ideal(pool, job) == EVERY, "the second in which it was imaged does not count"
    image = pool.engine.book.jobs[job].image
    assert (image.ideal_us, image.nodes, image.size_bytes, image.save_us) == (EVERY, ("n0",), 10**9, SAVE)
    assert pool.engine.book.jobs[job].checkpoint_at == pool.now + EVERY
    assert int(pool.engine.book.table.save_us[pool.engine.book.table.row[job]]) == SAVE


def test_two_images_are_kept_and_older_ones_given_up() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    assert [imaged(pool, job) for _ in range(3)] == [1, 2, 3]
    assert [image.serial for image in pool.engine.book.jobs[job].images] == [2, 3]
    assert co.DropImages(job, 1, (2, 3), ("n0",)) in pool.said


def test_failed_images_are_tried_ever_more_rarely_and_silence_is_a_failure() -> None:
    pool = world(checkpoint_patience_us=10 * SECOND)
    job = running(pool, checkpoint_us=EVERY)
    pauses = []
    for attempt in range(3):
        given = pool.later(pool.engine.book.jobs[job].checkpoint_at - pool.now)
        serial = next(command.serial for command in given if isinstance(command, co.CheckpointRanks))
        if attempt < 2:
            pool.tell(ev.CheckpointFailed(job, 1, serial, "disk full"))
        else:
            pool.later(10 * SECOND)
            assert Code.NO_ANSWER() in history(pool, job)
        pauses.append((pool.engine.book.jobs[job].checkpoint_at - pool.now) // EVERY)
    assert pauses == [2, 4, 8]
    pool.tell(ev.Checkpointed(job, 1, serial, SAVE))
    assert pool.engine.book.jobs[job].image is None, "the answer came too late to be believed"


def test_a_suspension_overtakes_an_image_in_the_making() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    pool.later(EVERY)
    pool.plan(Suspend(job, "room"))
    pool.tell(ev.Checkpointed(job, 1, 1, SAVE))
    assert pool.state(job) is State.SUSPENDED
    assert [image.serial for image in pool.engine.book.jobs[job].images] == [2]


# -- failover -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["node", "lost", "killed"])
def test_the_worlds_fault_rolls_a_job_back_to_its_image(end: str) -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.tell(ev.ImageCopied(job, 1, "n1"))
    pool.later(41 * SECOND)
    how = {
        "node": ev.NodeDown("n0", "power"),
        "lost": ev.Exited(job, 1, 137, lost=True),
        "killed": ev.Exited(job, 1, 137),
    }
    pool.tell(how[end])
    assert pool.state(job) is State.QUEUED, "at once, and without a mark against it"
    assert Code.ROLLED_BACK(41 * SECOND, 1) in history(pool, job)
    assert ideal(pool, job) == EVERY and pool.engine.book.jobs[job].lost_us == 41 * SECOND
    pool.plan(Start(job, ELSEWHERE, "failover"))
    assert co.Launch(job, 2, ELSEWHERE, 1) in pool.said
    assert pool.state(job) is State.RUNNING and Code.RUNS_FROM_IMAGE(1) in history(pool, job)
    pool.later(SECOND, ev.Exited(job, 2, 0))
    ended = pool.ended[job]
    assert (ended.ideal_us, ended.lost_us) == (EVERY + SECOND, 41 * SECOND)
    assert pool.engine.book.ledger.lost_total == 41 * SECOND * 1000


def test_without_an_image_a_killed_job_has_failed_and_a_lost_one_starts_over() -> None:
    pool = world()
    killed, lost = running(pool), running(pool, ELSEWHERE)
    pool.later(5 * SECOND, ev.Exited(killed, 1, 137), ev.Exited(lost, 1, 137, lost=True))
    assert pool.state(killed) is State.FAILED
    assert pool.state(lost) is State.QUEUED and ideal(pool, lost) == 0
    assert pool.engine.book.jobs[lost].lost_us == 5 * SECOND


def test_a_failure_of_the_jobs_own_does_not_go_back_to_an_image() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY, retries=1)
    imaged(pool, job)
    given = pool.tell(ev.Exited(job, 1, 1))
    assert co.DropImages(job, 1, (), ("n0",)) in given
    pool.later(MINUTE)
    pool.plan(Start(job, ONE, "again"))
    assert co.Launch(job, 2, ONE, 0) in pool.said


def test_survivors_are_killed_first_and_at_once() -> None:
    pool = world(3)
    job = running(pool, TWO, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.tell(ev.ImageCopied(job, 1, "*"))
    pool.obey = False
    given = pool.tell(ev.NodeDown("n1", "power"))
    stops = [command for command in given if isinstance(command, co.StopRanks)]
    assert [(stop.job, stop.grace_us) for stop in stops] == [(job, 0)]
    assert pool.state(job) is State.STOPPING and job in pool.engine.book.allocations
    pool.tell(ev.Exited(job, 1, 137))
    assert pool.state(job) is State.QUEUED and pool.engine.book.jobs[job].restore_from == 1


def test_a_job_that_is_killed_again_and_again_from_one_image_gives_up() -> None:
    pool = world(launch_attempts=3)
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    for attempt in range(1, 5):
        pool.tell(ev.Exited(job, attempt, 137))
        if pool.state(job) is State.FAILED:
            break
        pool.later(10 * MINUTE)
        pool.plan(Start(job, ONE, "again"))
    assert pool.state(job) is State.FAILED and attempt == 4


def test_a_damaged_image_falls_back_to_the_one_before_and_then_to_the_beginning() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    imaged(pool, job)
    pool.obey = False
    pool.later(7 * SECOND, ev.Exited(job, 1, 137))
    for attempt, serial, left in ((2, 2, EVERY), (3, 1, 0)):
        pool.plan(Start(job, ONE, "again"))
        assert co.Launch(job, attempt, ONE, serial) in pool.said
        pool.tell(ev.StartFailed(job, attempt, f"image {serial} is damaged", image_lost=True))
        assert ideal(pool, job) == left
        pool.later(MINUTE)
    pool.plan(Start(job, ONE, "again"))
    assert co.Launch(job, 4, ONE, 0) in pool.said
    assert Code.IMAGE_UNUSABLE(2) in history(pool, job) and Code.ROLLED_BACK(100 * SECOND, 1) in history(pool, job)
    assert pool.engine.book.jobs[job].lost_us == 2 * EVERY + 7 * SECOND


def test_a_suspended_job_whose_image_is_damaged_goes_back_to_a_periodic_one() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.later(20 * SECOND)
    pool.plan(Suspend(job, "room"))
    pool.obey = False
    pool.plan(Resume(job, ELSEWHERE, "back"))
    pool.tell(ev.ResumeFailed(job, 1, "a page does not match", image_lost=True))
    assert pool.state(job) is State.QUEUED and pool.engine.book.jobs[job].restore_from == 1
    assert ideal(pool, job) == EVERY and pool.engine.book.jobs[job].lost_us == 20 * SECOND


def test_a_suspended_job_whose_image_is_lost_with_its_node_while_it_resumes_goes_back_to_an_older_one() -> None:
    pool = world(3)
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.tell(ev.ImageCopied(job, 1, "n2"))
    pool.later(20 * SECOND)
    pool.plan(Suspend(job, "room"))
    pool.obey = False
    pool.plan(Resume(job, ELSEWHERE, "back"))
    pool.tell(ev.NodeDown("n0", "power"))
    pool.tell(ev.ResumeFailed(job, 1, "image 2 cannot be had"))
    assert pool.state(job) is State.QUEUED and pool.engine.book.jobs[job].restore_from == 1
    assert ideal(pool, job) == EVERY and pool.engine.book.jobs[job].lost_us == 20 * SECOND


def test_a_resumption_that_fails_too_often_falls_back_without_stopping_what_is_not_there() -> None:
    pool = world(launch_attempts=2)
    job = suspended(pool)
    pool.obey = False
    for _ in range(2):
        pool.plan(Resume(job, ELSEWHERE, "back"))
        pool.tell(ev.ResumeFailed(job, 1, "no route"))
        pool.later(MINUTE)
    assert pool.state(job) is State.QUEUED and ideal(pool, job) == 0
    assert not any(isinstance(command, co.StopRanks) for command in pool.said)


def test_a_job_that_waits_to_start_from_an_image_goes_further_back_when_that_dies() -> None:
    pool = world(3)
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.tell(ev.ImageCopied(job, 1, "n2"))
    imaged(pool, job)
    pool.tell(ev.ImageCopied(job, 2, "n1"))
    pool.tell(ev.NodeDown("n0", "power"))
    assert pool.engine.book.jobs[job].restore_from == 2
    pool.tell(ev.NodeDown("n1", "power"))
    assert pool.engine.book.jobs[job].restore_from == 1 and ideal(pool, job) == EVERY
    pool.tell(ev.NodeDown("n2", "power"))
    assert not pool.engine.book.jobs[job].restore_from and ideal(pool, job) == 0
    assert Code.NO_IMAGE_LEFT in history_codes(pool, job)


def test_switches_written_as_numbers_are_kept_as_switches() -> None:
    settings = live_settings(checkpoints=0, forecasts=1)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=EngineSettings) == settings
    assert settings.checkpoints is False


def test_word_of_an_earlier_suspension_is_not_taken_for_this_one() -> None:
    pool = world()
    job = suspended(pool)
    pool.plan(Resume(job, ONE, "back"))
    pool.obey = False
    pool.plan(Suspend(job, "room"))
    pool.tell(ev.Suspended(job, 1, SAVE, 1))
    assert pool.state(job) is State.SUSPENDING
    pool.tell(ev.Suspended(job, 1, SAVE, 2))
    assert pool.state(job) is State.SUSPENDED


def test_work_done_twice_is_not_held_against_the_time_limit() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY, max_duration_us=2 * EVERY)
    imaged(pool, job)
    pool.later(90 * SECOND, ev.Exited(job, 1, 137))
    pool.plan(Start(job, ONE, "again"))
    pool.later(90 * SECOND)
    assert pool.state(job) is State.RUNNING
    pool.later(20 * SECOND)
    assert pool.state(job) is State.TIMEOUT


def test_learned_costs_and_images_survive_a_snapshot() -> None:
    pool = world()
    job = running(pool, checkpoint_us=EVERY)
    imaged(pool, job)
    pool.later(EVERY)
    again = Engine.restore(pool.engine.snapshot())
    assert each(again.book, "images") == each(pool.engine.book, "images")
    assert each(again.book, "saving") == each(pool.engine.book, "saving")
    assert again.snapshot() == pool.engine.snapshot()


def test_before_it_is_measured_a_full_image_is_taken_to_cost_its_size() -> None:
    pool = world()
    one, four = running(pool), running(pool, (Part(1, 0xF),))
    table = pool.engine.book.table
    assert int(table.save_us[table.row[one]]) == pytest.approx(1.5 * SECOND + 250 / 300 * SECOND, abs=1)
    assert int(table.save_us[table.row[four]]) == pytest.approx(1.5 * SECOND + 1000 / 300 * SECOND, abs=1)
    frozen = running(pool, (Part(0, 2),), preempt="freeze")
    assert int(table.save_us[table.row[frozen]]) == live_settings().save_us


# -- where they lie -----------------------------------------------------------------------------------------------------


def test_a_planner_is_told_where_images_lie_and_a_job_comes_back_there() -> None:
    pool = world(3)
    job = suspended(pool, (Part(2, 1),))
    before = pool.engine.view()
    assert before.image_nodes == {job: (2,)}
    assert Engine.restore(pool.engine.snapshot()).view().image_nodes == {job: (2,)}
    pool.planner = make("sla")
    pool.tell(ev.NodeUp(pool.nodes[0], "1"))
    assert pool.state(job) is State.RUNNING and pool.engine.book.allocations[job][0].node == 2
    assert Code.AT_ITS_IMAGE(("n2",)) in history(pool, job)
    pool.tell(ev.NodeDown("n2", "power"))
    assert pool.engine.view().image_nodes == {} and before.image_nodes == {job: (2,)}, "a view does not change"


def test_when_a_part_of_an_image_is_gone_its_home_is_the_copy() -> None:
    pool = world(3)
    job = suspended(pool, TWO)
    assert pool.engine.view().image_nodes == {job: (0, 1)}
    pool.tell(ev.ImageCopied(job, 1, "n2"))
    assert pool.engine.view().image_nodes == {job: (0, 1)}, "each rank's image lies on its own node"
    pool.tell(ev.NodeDown("n1", "power"))
    assert pool.engine.view().image_nodes == {job: (2,)}
    pool.tell(ev.Cancel(job, "c"))
    assert pool.engine.view().image_nodes == {}


def test_images_in_one_place_for_all_have_no_home() -> None:
    pool = world(2, shared_images=1)
    job = suspended(pool)
    assert pool.engine.book.jobs[job].images and pool.engine.view().image_nodes == {}
