"""Whatever fails between any two steps: no GPU is given away twice, no reservation outlives its pod, nothing is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.kube.churn import NODES, Churn, overcommitted, through_deaths, tried
from tests.kube.extending import Extending, extending, until
from tests.kube.objects import late_node, node, placed, pod
from tidewright.kube.extender import cluster_cache
from tidewright.kube.extender.handler import ExtenderHandler
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes


async def cluster(api: FakeApi) -> None:
    for at, (name, (mem, count)) in enumerate(NODES.items()):
        await api.create("nodes", (node, late_node)[at % 2](name, mem, count))


def truth(api: FakeApi) -> dict[str, tuple[str, dict[int, int]]]:
    """Who holds what, from a look at every pod."""
    held = [read_gpu_assignment(item) for (kind, *_), item in api.store.objects.items() if kind == "pods"]
    return {one.uid: (one.node, dict(one.units)) for one in held if one and one.bound}


def known(extender: Extending) -> dict[str, tuple[str, dict[int, int]]]:
    """Who holds what, as the extender has it."""
    return {uid: (held.node, dict(held.units)) for uid, held in extender.pool.held.items()}


@pytest.mark.parametrize(
    ("seed", "steps", "breaks"),
    [
        (1, 250, 0.5),
        pytest.param(2, 250, 0.5, marks=pytest.mark.full),
        pytest.param(3, 100_000, 0.05, marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
)
def test_random_churn_with_failures_never_overcommits(
    seed: int, steps: int, breaks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_cache, "RESERVED_S", 0.5)
    monkeypatch.setattr("tidewright.kube.extender.handler.RESERVED_S", 0.5)

    async def main() -> None:
        async with FakeApi().served() as api:
            await cluster(api)
            async with extending(api, lead="off") as extender:
                churn = Churn(api, random.Random(seed), [extender], breaks=breaks)
                churn.arm()
                for at in range(steps):
                    await churn.step()
                    if at % 1000 == 999:
                        print(f"{at + 1} of {steps}: {churn.bound} bound, {churn.refused} refused", flush=True)
                await churn.settle()
                api.mischief.decide = lambda method, path: ""
                await until(lambda: not extender.pool.reserved and known(extender) == truth(api))
                async with extending(api, lead="off") as second:
                    assert second.pool.held == extender.pool.held
                assert churn.bound > steps / 10 and churn.refused > steps / 100

    asyncio.run(main())


@pytest.mark.parametrize("shown", [True, False], ids=["after its end was shown", "and the watch never shows it"])
def test_a_pod_that_was_read_bound_and_is_gone_holds_nothing(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_cache, "RESERVED_S", 0.1)
    monkeypatch.setattr("tidewright.kube.extender.leader_election.SWEEP_S", 0.1)

    async def main() -> None:
        async with FakeApi().served() as api:
            await cluster(api)
            async with extending(api, lead="off") as extender:
                one = placed("one", "n0", 0, 3)
                held = read_gpu_assignment(one)
                if shown:
                    made = await api.create("pods", one)
                    await extender.heard(made)
                    held = read_gpu_assignment(made)
                    await api.remove("pods", "default", "one")
                    await until(lambda: not extender.pool.held)
                assert held is not None and held.bound
                extender.cluster_cache.settle_read(held.uid, held)
                assert extender.pool.held, "it may be so"
                await until(lambda: not extender.pool.held)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seed", "pods"), [(5, 60), pytest.param(6, 500, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
)
def test_the_leader_killed_at_random_points(seed: int, pods: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods keep coming while leaders die in the middle of binds; in the end every pod that still exists is bound."""
    monkeypatch.setattr(cluster_cache, "RESERVED_S", 0.5)
    monkeypatch.setattr("tidewright.kube.extender.handler.RESERVED_S", 0.5)
    rng = random.Random(seed)

    async def main() -> None:
        async with FakeApi().served() as api, AsyncExitStack() as stack:
            for at in range(pods // 8 + 1):
                await api.create("nodes", (late_node, node)[at % 2](f"n{at}", 32, 2))
            started = 0

            async def start() -> Extending:
                nonlocal started
                started += 1
                return await stack.enter_async_context(extending(api, ready=False, who=f"r{started}", lease_s=2))

            waiting = [await api.create("pods", pod(f"p{at}", rng.randint(1, 4))) for at in range(pods)]
            nodes = [f"n{at}" for at in range(pods // 8 + 1)]

            async def left(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
                over = overcommitted(api, dict.fromkeys(nodes, (32, 2)))
                assert not over, over
                now = [api.store.objects["pods", "default", one["metadata"]["name"]] for one in some]
                return [one for one, found in zip(some, now, strict=True) if not found["spec"].get("nodeName")]

            async with asyncio.timeout(900):
                kills = await through_deaths(
                    start, waiting, nodes, rng,
                    batch=lambda: rng.randint(1, 8),
                    strike=lambda before: before < max(2, pods // 50) and rng.random() < 0.3,
                    left=left,
                )  # fmt: skip
            assert kills >= 2
            assert len(truth(api)) == pods

    asyncio.run(main())


def test_the_judge_sees_an_overcommitted_gpu() -> None:
    """Or the tests above prove nothing."""

    async def main() -> None:
        api = FakeApi()
        for at in range(2):
            notes = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "8"}
            await api.create("pods", pod(f"p{at}", 8, node="n2", notes=notes, phase="Running"))
        assert overcommitted(api) == {("n2", 0): 16}

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["filter", "decide"])
def test_the_judge_sees_a_verb_that_breaks(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer of 500 is enough, however well all else goes."""

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with FakeApi().served() as api:
            await cluster(api)
            async with extending(api, lead="off") as extender:
                churn = Churn(api, random.Random(1), [extender])
                monkeypatch.setattr(ExtenderHandler, verb, broken)
                with pytest.raises(BaseExceptionGroup, match="of the extender"):
                    for _ in range(50):
                        await churn.step()
                    await churn.settle()
                made = await api.create("pods", pod("last", 1))
                with pytest.raises(AssertionError):
                    await tried(extender, made, ["n0"], churn.rng)

    asyncio.run(main())
