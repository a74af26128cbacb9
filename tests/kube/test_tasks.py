"""Tasks of a service: stopped together, and the first failure ends them all."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tidewright.base.errors import UsageError
from tidewright.kube.node.tasks import run_until_stopped


async def endless(ended: list[str], name: str = "endless") -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def failing(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_stop_cancels_every_part_and_waits_for_it() -> None:
    async def main() -> None:
        stop, ended = asyncio.Event(), list[str]()
        asyncio.get_running_loop().call_soon(stop.set)
        await run_until_stopped(stop, endless(ended, "a"), endless(ended, "b"))
        assert sorted(ended) == ["a", "b"] and len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_part_that_returns_ends_the_others() -> None:
    async def main() -> None:
        ended = list[str]()
        await run_until_stopped(asyncio.Event(), endless(ended), asyncio.sleep(0))
        assert ended == ["endless"]

    asyncio.run(main())


@pytest.mark.parametrize("error", [UsageError("wrong", "mend it"), ValueError("bug")])
def test_the_first_failure_is_raised_by_itself(error: Exception) -> None:
    async def late(ended: list[str]) -> None:
        try:
            await endless(ended)
        except asyncio.CancelledError:
            raise ValueError("while it was cancelled") from None

    async def main() -> None:
        ended = list[str]()
        with pytest.raises(type(error)) as raised:
            await run_until_stopped(asyncio.Event(), late(ended), failing(error))
        assert raised.value is error and ended == ["endless"] and len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_cancelling_the_caller_cancels_every_part() -> None:
    async def main() -> None:
        ended = list[str]()
        running = asyncio.create_task(run_until_stopped(asyncio.Event(), endless(ended), endless(ended)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == ["endless", "endless"] and len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_caller_that_retries_on_error_ends_when_it_is_cancelled() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the stream was cancelled") from None

    async def retrying(tries: list[int]) -> None:
        while len(tries) < 3:
            tries.append(1)
            with suppress(ConnectionError):
                await run_until_stopped(asyncio.Event(), fails_when_cancelled())

    async def main() -> None:
        tries: list[int] = []
        running = asyncio.create_task(retrying(tries))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 5)
        assert tries == [1]

    asyncio.run(main())
