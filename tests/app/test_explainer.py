"""The process that answers questions about forks: it answers as the rooms do, survives what it is asked, and is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from tidewright.app.explainer import ProcessExplainer
from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR
from tidewright.explain.changes import smallest_changes
from tidewright.explain.forecast import forecast
from tidewright.model.job import JobSpec
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet


@pytest.fixture
def busy() -> Worldlet:
    world = Worldlet(2, 4, planner=make("fifo"))
    world.submit(6, placement="any", expected_us=HOUR)
    world.submit(4, expected_us=HOUR)
    return world


def asked(work: Callable[[ProcessExplainer], Awaitable[object]], **settings: float) -> object:
    async def main() -> object:
        explainer = ProcessExplainer("fifo", make("fifo"), **settings)
        try:
            return await work(explainer)
        finally:
            await explainer.close()

    return asyncio.run(main())


def test_the_process_answers_as_the_room_does(busy: Worldlet) -> None:
    image, planner = busy.engine.snapshot(), busy.planner

    async def work(explainer: ProcessExplainer) -> object:
        found = explainer.limit(busy.engine, 2, 0)
        return found, await explainer.changes(image, found), await explainer.forecast(image, [2])

    found, changes, times = asked(work, budget_s=60)  # type: ignore[misc]
    assert found.waiting and changes and changes == smallest_changes(busy.engine, planner, found)
    assert times == forecast(image, planner, [2])


def test_a_rehearsal_comes_back_whole(busy: Worldlet) -> None:
    specs = [JobSpec(command=("true",), devices=1), JobSpec(command=("true",), devices=8, ranks=8, placement="any")]
    said = asked(lambda explainer: explainer.rehearse(busy.engine.snapshot(), specs))
    assert len(said.lines) == len(said.forecasts) == 2  # type: ignore[attr-defined]


def test_a_process_that_was_killed_is_replaced(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        await explainer.forecast(image, [2])
        assert explainer._process is not None
        os.kill(explainer._process.pid, signal.SIGKILL)
        with pytest.raises(UsageError, match="has ended"):
            await explainer.forecast(image, [2])
        return await explainer.forecast(image, [2])

    assert asked(work)


def test_a_question_that_cannot_be_answered_does_not_end_the_process(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        with pytest.raises(UsageError, match="no answer: KeyError"):
            await explainer.forecast(image, [77])
        with pytest.raises(UsageError, match="no answer"):
            await explainer.forecast(b"garbage", [2])
        assert explainer._process is not None
        pid = explainer._process.pid
        await explainer.forecast(image, [2])
        return pid == explainer._process.pid

    assert asked(work) is True


def test_a_client_that_goes_away_leaves_no_answer_for_the_next(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        task = asyncio.create_task(explainer.forecast(image, [2]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await explainer.changes(image, explainer.limit(busy.engine, 2, 0))

    assert all(change.kind for change in asked(work))  # type: ignore[attr-defined]


def test_questions_at_once_are_answered_each_with_its_own(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        return await asyncio.gather(*(explainer.forecast(image, [job]) for job in (1, 2, 1, 2)))

    assert [found[0].job for found in asked(work)] == [1, 2, 1, 2]  # type: ignore[attr-defined]


def test_it_ends_with_its_controller(busy: Worldlet) -> None:
    async def main() -> int:
        explainer = ProcessExplainer("fifo", make("fifo"))
        await explainer.forecast(busy.engine.snapshot(), [2])
        assert explainer._process is not None and explainer._process.stdin is not None
        explainer._process.stdin.close()  # as when the controller is killed
        return await asyncio.wait_for(explainer._process.wait(), 20)

    assert asyncio.run(main()) == 0


# -- the controller's own questions -----------------------------------------------------------------------------------------


def test_its_own_question_is_answered_as_a_users(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        return await explainer.forecast_when_idle(image, 2), await explainer.forecast(image, [2])

    own, users = asked(work, budget_s=60)  # type: ignore[misc]
    assert (own,) == users and own.start is not None


def test_its_own_question_is_not_asked_while_a_user_waits_and_given_up_for_one_who_comes(busy: Worldlet) -> None:
    image = busy.engine.snapshot()

    async def work(explainer: ProcessExplainer) -> object:
        users = asyncio.create_task(explainer.forecast(image, [2]))
        await asyncio.sleep(0)
        none = await explainer.forecast_when_idle(image, 2)
        assert none is None and not users.done()
        await users
        own = asyncio.create_task(explainer.forecast_when_idle(image, 2))
        await asyncio.sleep(0.01)
        later = await explainer.forecast(image, [2])
        assert own.done() or await own is None
        again = await explainer.forecast_when_idle(image, 2)
        assert again is not None
        return await users == later == (again,), await own

    assert asked(work, budget_s=60) == (True, None)


def test_a_controller_that_ends_meanwhile_ends_its_own_question(busy: Worldlet) -> None:
    async def work(explainer: ProcessExplainer) -> object:
        own = asyncio.create_task(explainer.forecast_when_idle(busy.engine.snapshot(), 2))
        await asyncio.sleep(0.01)
        own.cancel()
        with pytest.raises(asyncio.CancelledError):
            await own
        return explainer._background

    assert asked(work) is None


def test_a_question_is_of_the_moment_at_which_it_is_asked(busy: Worldlet) -> None:
    """The book may be of an earlier step: a job that was to run for an hour has run for two."""
    image, now = busy.engine.snapshot(), 2 * HOUR

    async def work(explainer: ProcessExplainer) -> object:
        spec = JobSpec(command=("true",), devices=8, ranks=8, placement="any")
        rehearsed = await explainer.rehearse(image, [spec], now)
        return [
            *await explainer.forecast(image, [2], now),
            await explainer.forecast_when_idle(image, 2, now),
            *rehearsed.forecasts,
        ]

    for found in asked(work):  # type: ignore[attr-defined]
        assert found.start.low >= now
    assert asked(lambda explainer: explainer.forecast(image, [2]))[0].start.low < now  # type: ignore[index]
