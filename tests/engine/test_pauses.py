"""What a pause is expected to cost: as measured, as other jobs' of its level took lately, or as the settings say."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.units import DAY, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings
from tidewright.estimate.pauses import KEPT, PauseTimes
from tidewright.model.job import Level
from tidewright.model.node import Part
from tidewright.plan.moves import Resume, Start, Suspend
from tidewright.testing.worldlet import Worldlet


def pool(save_us: int = MINUTE, restore_us: int = 30 * SECOND, **settings: object) -> Worldlet:
    found = Worldlet(settings=EngineSettings(check_every=1, **settings))
    found.answers[co.SuspendRanks] = lambda asked: ev.Suspended(asked.job, asked.attempt, save_us, asked.serial)
    found.answers[co.ResumeRanks] = lambda asked: ev.Resumed(asked.job, asked.attempt, restore_us)
    return found


def begin(found: Worldlet, device: int) -> int:
    job = found.submit()
    found.plan(Start(job, (Part(0, 1 << device),), "x"))
    return job


def cost(found: Worldlet | Engine, job: int) -> tuple[int, int]:
    jobs = (found.engine if isinstance(found, Worldlet) else found).view().jobs
    row = jobs.row[job]
    return jobs.save_us.item(row), jobs.restore_us.item(row)


def test_what_one_job_took_is_expected_of_all_that_were_not_measured() -> None:
    found = pool()
    first, running, queued = begin(found, 0), begin(found, 1), found.submit()
    assert cost(found, running)[0] < 10 * SECOND
    found.plan(Suspend(first, "x"))
    assert [cost(found, job)[0] for job in (first, running, queued, found.submit())] == [MINUTE] * 4
    found.plan(Resume(first, (Part(0, 1),), "x"))
    assert [cost(found, job)[1] for job in (first, running, queued, found.submit())] == [30 * SECOND] * 4


def test_a_job_that_was_measured_keeps_what_it_took() -> None:
    found = pool()
    first, second = begin(found, 0), begin(found, 1)
    found.plan(Suspend(first, "x"))
    found.answers[co.SuspendRanks] = lambda asked: ev.Suspended(asked.job, asked.attempt, 9 * SECOND, asked.serial)
    for _ in range(2):
        found.plan(Suspend(second, "x"))
        found.plan(Resume(second, (Part(0, 2),), "x"))
    assert cost(found, first)[0] == MINUTE and cost(found, second)[0] == 9 * SECOND
    assert cost(found, found.submit())[0] == 9 * SECOND, "the median of 9, 9 and 60 s"


def test_levels_are_told_apart() -> None:
    found = pool(freeze_kinds=("h100",))
    frozen, imaged = begin(found, 0), found.submit(preempt="freeze")
    found.plan(Start(imaged, (Part(0, 2),), "x"))
    before = cost(found, imaged)
    found.plan(Suspend(frozen, "x"))
    levels = found.engine.view().jobs.level
    assert levels[0] == Level.FULL and levels[1] == Level.FREEZE and cost(found, imaged) == before


def test_it_is_in_snapshots() -> None:
    found = pool()
    first, second = begin(found, 0), begin(found, 1)
    found.plan(Suspend(first, "x"))
    again = Engine.restore(found.engine.snapshot())
    assert cost(again, second) == cost(found, second) and again.book.pauses.saves.usual_us(int(Level.FULL)) == MINUTE


def test_when_a_job_is_imaged_follows_from_its_own_saves_alone() -> None:
    found = pool(checkpoints=True, node_mtbf_us=DAY)
    first, second = begin(found, 0), begin(found, 1)
    before = found.engine.book.jobs[second].checkpoint_at
    found.plan(Suspend(first, "x"))
    third = begin(found, 2)
    assert found.engine.book.jobs[second].checkpoint_at == before
    assert found.engine.book.jobs[third].checkpoint_at == before


@given(st.integers(0, 10**6), st.integers(1, 200))
def test_what_is_expected_is_a_tenth_off_the_median_of_the_latest_at_most(seed: int, count: int) -> None:
    dice, times, said = random.Random(seed), PauseTimes(), []
    for _ in range(count):
        said.append(dice.choice((0, 1, 100, 1000, 10**6)) + dice.randrange(100))
        changed, before = times.note(3, said[-1]), times.usual_us(3)
        assert not changed or before == times.usual_us(3)
    latest = sorted([one for one in said if one][-KEPT:])
    middle = latest[(len(latest) - 1) // 2] if latest else 0
    assert abs(times.usual_us(3) - middle) <= 0.1 * times.usual_us(3) + 1 and times.usual_us(2) == 0
