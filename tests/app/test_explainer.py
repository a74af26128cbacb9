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
