"""Pods that come and go, and leaders that die, against the fake API server and against a real one (see ``test_real``)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.kube.churn import bind_once, through_deaths
from tests.kube.extending import Extending, until
from tests.kube.test_real import PODS, WHERE, Ground, leading, on
from tidewright.kube.objects.pod_request import GpuAssignment, read_gpu_assignment

pytestmark = pytest.mark.processes

UNITS = 15
"""Of each of a node's two GPUs."""


async def held(found: Ground, nodes: list[str]) -> dict[str, GpuAssignment]:
    """Who holds what on our nodes, by the API server's own records; no GPU may be given away twice."""
    pages = [page async for page in found.api.pages(PODS, size=100)]
    all_ = [
        read_gpu_assignment(item) for page in pages for item in page["items"] if item["spec"].get("nodeName") in nodes
    ]
    here = {one.uid: one for one in all_ if one is not None}
    used: Counter[tuple[str, int]] = Counter()
    for one in here.values():
        used.update({(one.node, gpu): units for gpu, units in one.units.items()})
    assert max(used.values(), default=0) <= UNITS, used
    return here


async def remove(found: Ground, pod: dict[str, Any]) -> None:
    await found.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize("where", WHERE)
def test_pods_that_come_and_go_never_share_more_than_there_is(where: str) -> None:
    async def scene(found: Ground) -> None:
        rng, bound, there = random.Random(7), 0, list[dict[str, Any]]()
        nodes = [await found.node(kind=kind) for kind in ("match", "late", "late")]
        async with leading(found) as extender:
            await until(lambda: all(node in extender.pool.row for node in nodes))
            for _ in range(80):
                if there and rng.random() < 0.4:
                    await remove(found, there.pop(rng.randrange(len(there))))
                    continue
                some = [await found.pod(mem=rng.randint(1, 12)) for _ in range(rng.randint(1, 3))]
                there += some
                bound += sum(await asyncio.gather(*(bind_once(extender, pod, nodes, rng) for pod in some)))
                await held(found, nodes)
            truth = await held(found, nodes)
            known = extender.pool.held
            await until(lambda: not extender.pool.reserved and {u: dict(h.units) for u, h in known.items()} ==
                        {uid: dict(one.units) for uid, one in truth.items()})  # fmt: skip
            assert bound > 20

    on(where, scene)


@pytest.mark.parametrize("where", [pytest.param("fake", marks=pytest.mark.full), *WHERE[1:]])
def test_leaders_that_die_lose_and_double_nothing(where: str) -> None:
    async def scene(found: Ground) -> None:
        rng = random.Random(8)
        nodes = [await found.node(kind=kind) for kind in ("match", "late", "late")]
        waiting = [await found.pod(mem=rng.randint(2, 7)) for _ in range(14)]
        async with AsyncExitStack() as stack:
            started = 0

            async def start() -> Extending:
                nonlocal started
                started += 1
                return await stack.enter_async_context(leading(found, ready=False, who=f"r{started}", lease_s=2))

            async def left(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
                there = await held(found, nodes)
                return [pod for pod in some if pod["metadata"]["uid"] not in there]

            async with asyncio.timeout(200):
                await through_deaths(
                    start, waiting, nodes, rng, batch=lambda: 4, strike=lambda before: before < 3, left=left
                )
        assert started == 5 and len(await held(found, nodes)) == 14

    on(where, scene)
