"""A scheduler, users and a bad day: random pods come, are bound through the extender and go, while everything fails."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.kube.extending import Extending
from tests.kube.objects import pod
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import POLICIES, read_gpu_assignment
from tidewright.testing.kube_api import FakeApi

CROWD = 30
"""Pods, ended and waiting ones as well, above which one goes where another would have come: or in a long run nearly all would be
those that fit nowhere, and nothing would be bound any more."""
NODES = {"n0": (30, 2), "n1": (32, 4), "n2": (8, 1), "n3": (96, 4)}


def overcommitted(api: FakeApi, nodes: Mapping[str, tuple[int, int]] = NODES) -> dict[tuple[str, int], int]:
    """By the API server's own records: GPUs of which bound pods that have not ended hold more than there is."""
    used: dict[tuple[str, int], int] = defaultdict(int)
    for (kind, *_), item in api.store.objects.items():
        held = read_gpu_assignment(item) if kind == "pods" and item["spec"].get("nodeName") else None
        for gpu, units in (held.units if held else {}).items():
            used[item["spec"]["nodeName"], gpu] += units
    return {where: units for where, units in used.items() if units > nodes[where[0]][0] // nodes[where[0]][1]}


@dataclass
class Churn:
    """``extenders``: replicas of which one leads; a dead one is left out by its owner, so what these answer is 200.

    ``faults``: share of writes that fail; ``breaks``: how often watches break, 18 would be every second step. Who watches comes
    back after 0.2 s and more, so in a long run with many of them nothing would ever be known.
    """

    api: FakeApi
    rng: random.Random
    extenders: list[Extending]
    faults: float = 0.1
    breaks: float = 0.5
    made: int = 0
    bound: int = 0
    refused: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failed: list[BaseException] = field(default_factory=list)

    def arm(self) -> None:
        """Let a share of all writes of annotations and bindings fail before or after they are done."""

        def decide(method: str, path: str) -> str:
            return self.rng.choice(["before", "after"]) if "/pods/" in path and self.rng.random() < self.faults else ""

        self.api.mischief.decide = decide

    async def step(self) -> None:
        """One thing happens. Raises what a verb could not answer, ExceptionGroup."""
        weights = [10, 5, 3, 0.6 * self.breaks, 0.4 * self.breaks]
        what = self.rng.choices(["come", "go", "end", "cut", "compact"], weights)[0]
        pods = [key for key in self.api.store.objects if key[0] == "pods"]
        if what == "come" and len(pods) >= CROWD:
            what = "go"
        if what == "come" or not pods:
            await self._come()
        elif what == "go":
            # Rather old ones: most are bound before they go, some are in the middle of it.
            await self.api.remove(*pods[int(len(pods) * self.rng.random() ** 3)])
        elif what == "end":
            chosen = self.rng.choice(pods)
            if self.api.store.objects[chosen]["spec"].get("nodeName"):
                await self.api.change(*chosen, {"status": {"phase": "Succeeded"}}, status=True)
        elif what == "cut":
            await self.api.cut_watches()
        else:
            self.api.store.compact()
        assert not (over := overcommitted(self.api)), over
        self._check()

    async def _come(self) -> None:
        name = f"p{self.made}"
        self.made += 1
        count = self.rng.choice([1, 1, 1, 2])
        notes = {names.POLICY: self.rng.choice(POLICIES)}
        made = await self.api.create("pods", pod(name, count * self.rng.randint(1, 8), count, notes=notes))
        task = asyncio.create_task(self.schedule(made))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if len(self._tasks) > 4:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failed.append(error)

    def _check(self) -> None:
        if self._failed:
            raise BaseExceptionGroup("of the extender", self._failed)

    async def schedule(self, made: dict[str, Any]) -> None:
        """As kube-scheduler: filter, choose, bind; twice at most, as the pod may not fit. Whatever the API server does, the
        extender itself must answer."""
        for _ in range(2):
            extender = self.rng.choice(self.extenders)
            found = await extender.filter(made, list(NODES))
            assert not found["Error"], found
            if not found["NodeNames"]:
                assert set(NODES) == found["FailedNodes"].keys() | found["FailedAndUnresolvableNodes"].keys()
                continue
            why = await extender.bind(made, self.rng.choice(found["NodeNames"]))
            if not why:
                self.bound += 1
                return
            self.refused += 1

    async def settle(self) -> None:
        """Nothing is on its way any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)
        self._check()


async def bind_once(extender: Extending, made: dict[str, Any], nodes: list[str], rng: random.Random) -> bool:
    """As kube-scheduler: ask, choose, bind. A refusal is its daily bread."""
    fits = (await extender.filter(made, nodes))["NodeNames"]
    return bool(fits) and await extender.bind(made, rng.choice(fits)) == ""


async def through_deaths(
    start: Callable[[], Awaitable[Extending]],
    waiting: list[dict[str, Any]],
    nodes: list[str],
    rng: random.Random,
    *,
    batch: Callable[[], int],
    strike: Callable[[int], bool],
    left: Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]]]],
) -> int:
    """Bind all that wait, by two replicas of which the one that leads is killed in the middle whenever ``strike``, told how many
    died before, says so; another takes its place. ``left``: which of them wait still. Returns how many died."""
    replicas, kills = [await start(), await start()], 0
    while waiting:
        leader = next((one for one in replicas if one.service.extender.cluster_cache is not None), None)
        if leader is None:
            await asyncio.sleep(0.05)
            continue
        tries = asyncio.gather(*(tried(leader, one, nodes, rng) for one in waiting[: batch()]))
        if strike(kills):
            await asyncio.sleep(rng.uniform(0, 0.05))
            kills += 1
            await leader.kill()
            replicas.remove(leader)
            replicas.append(await start())
        await tries
        waiting = await left(waiting)
    return kills


async def tried(extender: Extending, made: dict[str, Any], nodes: list[str], rng: random.Random) -> None:
    """No answer, or one that is not 200, is only a dead leader's."""
    try:
        await bind_once(extender, made, nodes, rng)
    except (aiohttp.ClientError, AssertionError):
        if not extender.killed:
            raise
        await asyncio.sleep(0.05)
