"""Pods that come and go, and leaders that die, against the fake API server and against a real one (see ``test_real``)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from tests.kube.extending import Extending, until
from tests.kube.test_real import PODS, WHERE, Ground, leading, on
from tidewright.kube.ask import Holding, holding_of

pytestmark = pytest.mark.processes

UNITS = 15
"""Of each of a node's two GPUs."""


async def held(found: Ground, nodes: list[str]) -> dict[str, Holding]:
    """Who holds what on our nodes, by the API server's own records; no GPU may be given away twice."""
    pages = [page async for page in found.api.pages(PODS, size=100)]
    all_ = [holding_of(item) for page in pages for item in page["items"] if item["spec"].get("nodeName") in nodes]
    here = {one.uid: one for one in all_ if one is not None}
    used: Counter[tuple[str, int]] = Counter()
    for one in here.values():
        used.update({(one.node, gpu): units for gpu, units in one.units.items()})
    assert max(used.values(), default=0) <= UNITS, used
    return here


async def remove(found: Ground, pod: dict[str, Any]) -> None:
    await found.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})


async def schedule(extender: Extending, pod: dict[str, Any], nodes: list[str], rng: random.Random) -> bool:
    """As kube-scheduler would, once."""
    fits = (await extender.filter(pod, nodes))["NodeNames"]
    return bool(fits) and await extender.bind(pod, rng.choice(fits)) == ""


@pytest.mark.parametrize("where", WHERE)
def test_pods_that_come_and_go_never_share_more_than_there_is(where: str) -> None:
    async def scene(found: Ground) -> None:
        rng, bound, there = random.Random(7), 0, list[dict[str, Any]]()
        nodes = [await found.node() for _ in range(3)]
        async with leading(found) as extender:
            await until(lambda: all(node in extender.pool.row for node in nodes))
            for _ in range(80):
                if there and rng.random() < 0.4:
                    await remove(found, there.pop(rng.randrange(len(there))))
                    continue
                some = [await found.pod(mem=rng.randint(1, 12)) for _ in range(rng.randint(1, 3))]
                there += some
                bound += sum(await asyncio.gather(*(schedule(extender, pod, nodes, rng) for pod in some)))
                await held(found, nodes)
            truth = await held(found, nodes)
            known = extender.pool.held
            await until(lambda: not extender.pool.reserved and {u: dict(h.units) for u, h in known.items()} ==
                        {uid: dict(one.units) for uid, one in truth.items()})  # fmt: skip
            assert bound > 20

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_leaders_that_die_lose_and_double_nothing(where: str) -> None:
    async def scene(found: Ground) -> None:
        rng = random.Random(8)
        nodes = [await found.node() for _ in range(3)]
        waiting = [await found.pod(mem=rng.randint(2, 7)) for _ in range(14)]
        async with AsyncExitStack() as stack:
            started = 0

            async def start() -> Extending:
                nonlocal started
                started += 1
                return await stack.enter_async_context(leading(found, ready=False, who=f"r{started}", lease_s=2))

            replicas = [await start(), await start()]
            async with asyncio.timeout(200):
                while waiting:
                    leader = next((one for one in replicas if one.service.extender.site is not None), None)
                    if leader is None:
                        await asyncio.sleep(0.05)
                        continue
                    tries = asyncio.gather(*(tried(leader, pod, nodes, rng) for pod in waiting[:4]))
                    if started < 5:
                        await asyncio.sleep(rng.uniform(0, 0.05))
                        await leader.kill()
                        replicas.remove(leader)
                        replicas.append(await start())
                    await tries
                    there = await held(found, nodes)
                    waiting = [pod for pod in waiting if pod["metadata"]["uid"] not in there]
        assert started == 5 and len(await held(found, nodes)) == 14

    on(where, scene)


async def tried(extender: Extending, pod: dict[str, Any], nodes: list[str], rng: random.Random) -> None:
    """No answer, or one that is not 200, is only a dead leader's."""
    try:
        await schedule(extender, pod, nodes, rng)
    except (aiohttp.ClientError, AssertionError):
        if not extender.killed:
            raise
        await asyncio.sleep(0.05)
