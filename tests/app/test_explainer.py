"""The process that answers questions about forks: it answers as the rooms do, survives what it is asked, and is replaced."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidewright.app import explain_process
from tidewright.app.explain_process import ExplainProcess
from tidewright.app.explain_worker import LENGTH_BYTES, frame, serve
from tidewright.app.explainer import MOST_WAITING, ProcessExplainer
from tidewright.base.errors import Busy, Conflict, UsageError
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine.engine import Engine
from tidewright.explain.changes import smallest_changes
from tidewright.explain.forecast import forecast
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet


@pytest.fixture
def busy() -> Worldlet:
    world = Worldlet(2, 4, planner=make("fifo"))
    world.submit(6, placement="any", expected_us=HOUR)
    world.submit(4, expected_us=HOUR)
    return world


class Garbled:
    """An engine whose snapshot is not one."""

    revision, book = -1, SimpleNamespace(out=())

    def snapshot(self) -> bytes:
        return b"garbage"


class Counting:
    """An engine that counts its snapshots."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.taken = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def snapshot(self) -> bytes:
        self.taken += 1
        return self.engine.snapshot()


async def answered_here(frames: bytes) -> bytes:
    """What the process does, without one."""
    await asyncio.sleep(0)
    answers = io.BytesIO()
    serve(make("fifo"), io.BytesIO(frames), answers)
    return answers.getvalue()[LENGTH_BYTES:]


def asked(work: Callable[[ProcessExplainer], Awaitable[object]], here: bool = False, **settings: float) -> object:
    """``here``: without a process, where what is asked is how questions wait for each other."""

    async def main() -> object:
        explainer = ProcessExplainer("fifo", make("fifo"), **settings)
        if here:
            explainer.process.exchange = answered_here  # type: ignore[method-assign]
        try:
            return await work(explainer)
        finally:
            await explainer.close()

    return asyncio.run(main())


def test_the_process_answers_as_the_room_does(busy: Worldlet) -> None:
    engine, planner = busy.engine, busy.planner

    async def work(explainer: ProcessExplainer) -> object:
        found = explainer.limit(engine, 2, 0)
        return found, await explainer.changes(engine, found), await explainer.forecast(engine, [2])

    found, changes, times = asked(work, budget_s=60)  # type: ignore[misc]
    assert found.waiting and changes and changes == smallest_changes(busy.engine.snapshot(), planner, found.job)
    assert times == forecast(engine.snapshot(), planner, [2])


def test_a_rehearsal_comes_back_whole(busy: Worldlet) -> None:
    specs = [JobSpec(command=("true",), devices=1), JobSpec(command=("true",), devices=8, ranks=8, placement="any")]
    said = asked(lambda explainer: explainer.rehearse(busy.engine, specs))
    assert len(said.lines) == len(said.forecasts) == 2  # type: ignore[attr-defined]


def test_a_process_that_was_killed_is_replaced(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        await explainer.forecast(engine, [2])
        assert explainer.process.pid is not None
        os.kill(explainer.process.pid, signal.SIGKILL)
        return await explainer.forecast(engine, [2])

    assert asked(work)


def test_a_question_that_cannot_be_answered_does_not_end_the_process(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        with pytest.raises(UsageError, match="no answer: KeyError"):
            await explainer.forecast(engine, [77])
        with pytest.raises(UsageError, match="no answer"):
            await explainer.forecast(Garbled(), [2])  # type: ignore[arg-type]
        pid = explainer.process.pid
        await explainer.forecast(engine, [2])
        return pid == explainer.process.pid

    assert asked(work) is True


def test_a_client_that_goes_away_leaves_no_answer_for_the_next(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        task = asyncio.create_task(explainer.forecast(engine, [2]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await explainer.changes(engine, explainer.limit(engine, 2, 0))

    assert all(change.kind for change in asked(work))  # type: ignore[attr-defined]


def test_who_asks_again_at_once_has_no_part_in_what_was_given_up(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        for _ in range(3):
            task = asyncio.create_task(explainer.forecast(engine, [2]))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        found = await explainer.forecast(engine, [2])
        return found[0].job, len(explainer._shared), len(explainer._tasks)

    assert asked(work) == (2, 0, 0)


def test_questions_at_once_are_answered_each_with_its_own(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        return await asyncio.gather(*(explainer.forecast(engine, [job]) for job in (1, 2, 1, 2)))

    assert [found[0].job for found in asked(work, here=True)] == [1, 2, 1, 2]  # type: ignore[attr-defined]


def test_it_ends_with_its_controller(busy: Worldlet) -> None:
    async def main() -> int:
        explainer = ProcessExplainer("fifo", make("fifo"))
        await explainer.forecast(busy.engine, [2])
        assert explainer.process._process is not None and explainer.process._process.stdin is not None
        explainer.process._process.stdin.close()  # as when the controller is killed
        return await asyncio.wait_for(explainer.process._process.wait(), 20)

    assert asyncio.run(main()) == 0


# -- many at once, and processes that end -----------------------------------------------------------------------------------


def test_however_many_ask_the_same_it_is_answered_once(busy: Worldlet) -> None:
    engine = Counting(busy.engine)

    async def work(explainer: ProcessExplainer) -> object:
        exchange, sent = explainer.process.exchange, []

        async def counted(frames: bytes) -> bytes:
            sent.append(frames)
            return await exchange(frames)

        explainer.process.exchange = counted  # type: ignore[method-assign]
        found = await asyncio.gather(*(explainer.forecast(engine, [2], now) for now in range(1, 301)))  # type: ignore[arg-type]
        return len(sent), len(found), all(one == found[0] for one in found)

    assert asked(work, here=True) == (1, 300, True)
    assert engine.taken == 1


def test_more_questions_than_may_wait_are_refused_and_the_others_answered(busy: Worldlet) -> None:
    engine = Counting(busy.engine)
    specs = [JobSpec(command=("true",), devices=1, name=f"j{n}") for n in range(MOST_WAITING + 30)]

    async def work(explainer: ProcessExplainer) -> object:
        return await asyncio.gather(
            *(explainer.rehearse(engine, [spec]) for spec in specs),  # type: ignore[arg-type]
            return_exceptions=True,
        )

    answers: Any = asked(work, here=True)
    refused = [one for one in answers if isinstance(one, Busy)]
    assert len(refused) == 30 and answers[MOST_WAITING:] == refused
    assert all(len(one.lines) == 1 for one in answers[:MOST_WAITING])
    assert engine.taken == 1
    assert refused[0].retry_s >= 1 and "ask again in" in refused[0].remedy


def test_who_leaves_does_not_take_the_answer_from_those_who_asked_the_same(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        first = asyncio.create_task(explainer.forecast(engine, [2]))
        second = asyncio.create_task(explainer.forecast(engine, [2]))
        await asyncio.sleep(0.05)
        first.cancel()
        found = await second
        last = asyncio.create_task(explainer.forecast(engine, [1]))
        await asyncio.sleep(0.05)
        last.cancel()
        await asyncio.sleep(0.1)
        return found[0].job, len(explainer._shared)

    assert asked(work) == (2, 0)


def test_nothing_is_answered_once_it_is_closed(busy: Worldlet) -> None:
    async def work(explainer: ProcessExplainer) -> object:
        waiting = asyncio.create_task(explainer.forecast(busy.engine, [2]))
        await asyncio.sleep(0.05)
        await explainer.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(Conflict, match="is stopping"):
            await explainer.forecast(busy.engine, [2])
        return explainer.process.pid, await explainer.forecast_when_idle(busy.engine, 2)

    assert asked(work) == (None, None)


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("kill -9 $$", "has ended by SIGKILL \\(is the machine out of memory"),
        ("exit 3", "has ended with exit code 3"),
        ("exec >&-; sleep 5", "has closed its output"),
    ],
)
def test_a_process_that_ends_over_every_question_is_named_and_started_ever_more_rarely(
    script: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_process, "EXIT_S", 1.0 if "sleep" not in script else 0.05)
    now = [0.0]

    async def main() -> None:
        process = ExplainProcess(("sh", "-c", script), clock=lambda: now[0])
        with pytest.raises(UsageError, match=how):
            await process.exchange(b"")
        with pytest.raises(UsageError, match=how):
            await process.exchange(b"")
        with pytest.raises(Busy, match="has ended 2 times; the next starts in 2 s"):
            await process.exchange(b"")
        now[0] += 2.0
        with pytest.raises(UsageError, match=how):
            await process.exchange(b"")
        with pytest.raises(Busy, match="has ended 3 times; the next starts in 4 s") as refused:
            await process.exchange(b"")
        assert refused.value.retry_s == 4.0
        await process.close()

    asyncio.run(main())


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="could not be started"):
        asyncio.run(ExplainProcess(("/nowhere/python",)).exchange(b""))


# -- the controller's own questions -----------------------------------------------------------------------------------------


def test_its_own_question_is_answered_as_a_users(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        return await explainer.forecast_when_idle(engine, 2), await explainer.forecast(engine, [2])

    own, users = asked(work, here=True, budget_s=60)  # type: ignore[misc]
    assert (own,) == users and own.start is not None


def test_its_own_question_is_not_asked_while_a_user_waits_and_given_up_for_one_who_comes(busy: Worldlet) -> None:
    engine = busy.engine

    async def work(explainer: ProcessExplainer) -> object:
        users = asyncio.create_task(explainer.forecast(engine, [2]))
        await asyncio.sleep(0)
        none = await explainer.forecast_when_idle(engine, 2)
        assert none is None and not users.done()
        await users
        own = asyncio.create_task(explainer.forecast_when_idle(engine, 2))
        await asyncio.sleep(0.01)
        later = await explainer.forecast(engine, [2])
        assert own.done() or await own is None
        again = await explainer.forecast_when_idle(engine, 2)
        assert again is not None
        return await users == later == (again,), await own

    assert asked(work, budget_s=60) == (True, None)


def test_a_controller_that_ends_meanwhile_ends_its_own_question(busy: Worldlet) -> None:
    async def work(explainer: ProcessExplainer) -> object:
        own = asyncio.create_task(explainer.forecast_when_idle(busy.engine, 2))
        await asyncio.sleep(0.01)
        own.cancel()
        with pytest.raises(asyncio.CancelledError):
            await own
        return explainer._background

    assert asked(work) is None


def test_a_question_is_of_the_moment_at_which_it_is_asked(busy: Worldlet) -> None:
    """The book may be of an earlier step: a job that was to run for an hour has run for two."""
    engine, now = busy.engine, 2 * HOUR

    async def work(explainer: ProcessExplainer) -> object:
        spec = JobSpec(command=("true",), devices=8, ranks=8, placement="any")
        rehearsed = await explainer.rehearse(engine, [spec], now)
        return [
            *await explainer.forecast(engine, [2], now),
            await explainer.forecast_when_idle(engine, 2, now),
            *rehearsed.forecasts,
        ]

    for found in asked(work, here=True):  # type: ignore[attr-defined]
        assert found.start.low >= now
    assert asked(lambda explainer: explainer.forecast(engine, [2]), here=True)[0].start.low < now  # type: ignore[index]


def test_changes_are_of_the_moment_at_which_they_are_asked_for(busy: Worldlet) -> None:
    """The running job has 20 minutes of its hour left by then; who asks a moment later shares the answer."""
    engine, now = Counting(busy.engine), 40 * MINUTE

    async def work(explainer: ProcessExplainer) -> object:
        found = explainer.limit(busy.engine, 2, now)
        at_once = (explainer.changes(engine, found, now), explainer.changes(engine, found, now + SECOND))  # type: ignore[arg-type]
        return await asyncio.gather(*at_once)

    first, second = asked(work, here=True, budget_s=60)  # type: ignore[misc]
    assert first == second and engine.taken == 1
    (wait,) = [change for change in first if change.kind == "wait"]
    assert wait.what == Code.AFTER_JOBS((1,), 20 * MINUTE)


def test_the_process_ends_quietly_when_its_controller_was_killed() -> None:
    read, write = os.pipe()
    os.close(read)
    sink = os.fdopen(write, "wb")
    serve(make("fifo"), io.BytesIO(frame(b"1") + frame(b"no snapshot") + frame(b"no question")), sink)
    sink.close()  # what is left in the stream is not written again
