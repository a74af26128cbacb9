"""Starts, restores and image work are shared round-robin between jobs: no job waits for another's whole queue."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.agent.fair_queue import FairQueue, FairThreads


async def order(queue: FairQueue, jobs: list[int]) -> list[int]:
    """The jobs in the order in which their waiters are served, one at a time."""
    served: list[int] = []

    async def one(job: int) -> None:
        async with queue.slot(job):
            served.append(job)
            await asyncio.sleep(0)

    await asyncio.gather(*(one(job) for job in jobs))
    return served


def test_a_job_of_many_ranks_does_not_keep_a_small_one_waiting() -> None:
    async def body() -> None:
        served = await order(FairQueue(1), [1] * 600 + [2])
        assert served.index(2) <= 2 and len(served) == 601

    asyncio.run(body())


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 4))
def test_waiters_are_served_round_robin(jobs: list[int], limit: int) -> None:
    async def body() -> None:
        served = await order(FairQueue(limit), jobs)
        assert sorted(served) == sorted(jobs)
        waited = served[limit:]
        for job in set(waited):
            places = [at for at, other in enumerate(waited) if other == job]
            for first, second in itertools.pairwise(places):
                between = waited[first + 1 : second]
                assert all(between.count(other) <= 1 for other in set(between))

    asyncio.run(body())


def test_a_cancelled_waiter_takes_no_slot() -> None:
    async def body() -> None:
        queue = FairQueue(1)
        async with queue.slot(1):
            waiting = [asyncio.create_task(queue._acquire(job)) for job in (2, 2, 3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.sleep(0)
        await asyncio.wait_for(waiting[1], 5)
        waiting[2].cancel()  # before it is served
        queue._release()
        await asyncio.sleep(0)
        async with asyncio.timeout(5), queue.slot(4):
            pass

    asyncio.run(body())


def test_a_waiter_cancelled_as_it_is_served_hands_the_slot_on() -> None:
    async def body() -> None:
        queue = FairQueue(1)
        await queue._acquire(1)
        waiting = asyncio.create_task(queue._acquire(2))
        await asyncio.sleep(0)
        queue._release()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(5), queue.slot(3):
            pass

    asyncio.run(body())


def test_image_work_of_one_job_does_not_block_anothers() -> None:
    async def body() -> None:
        threads, gate, done = FairThreads(2, "store"), threading.Event(), []
        first = [asyncio.create_task(threads.run(1, gate.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        later = [asyncio.create_task(threads.run(1, done.append, 1)) for _ in range(20)]
        await asyncio.sleep(0)
        other = asyncio.create_task(threads.run(2, done.append, 2))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*first, *later, other)
        assert done.index(2) <= 3
        threads.close()

    asyncio.run(body())
