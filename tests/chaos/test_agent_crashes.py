"""The agent is killed before and after each of its side effects; each rank runs once, and its end is told right."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint.cgroup import detect, remove, wait_until
from tidewright.checkpoint.processes import send
from tidewright.testing.crash import AGENT, counting, task_factory

from ..sizes import examples
from .agent import Bench, Nursery, Plan, crashes, spawning
from .site import processes

pytestmark = [
    pytest.mark.processes,
    # Deeds that a dead agent had not begun.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

AT_ONCE = 6
KINDS = {
    "attempt", "file", "memo", "renamed", "shim", "shim asked for", "report", "signal", "group removed",
    "records removed", "tree removed",
}  # fmt: skip


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery()
    with spawning(made), counting(AGENT):
        yield made
    made.close()
    left = processes(str(tmp_path))
    send(left, signal.SIGKILL)
    for state in tmp_path.glob("*/*/state"):
        for group in detect().made(f"tidewright-{AgentLayout(state).tag}-"):
            wait_until(lambda group=group: remove((group,)), 5)  # type: ignore[misc]
    assert left == []


def play(root: Path, nursery: Nursery, plans: list[Plan]) -> list[Bench]:
    """The scenario once for each plan, some side by side."""

    async def whole() -> list[Bench]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, plan: Plan) -> Bench:
            async with room:
                return await crashes(root / str(number), nursery, plan)

        return list(await asyncio.gather(*(one(number, plan) for number, plan in enumerate(plans))))

    return asyncio.run(whole())


def test_a_crash_at_each_kind_of_side_effect(tmp_path: Path, nursery: Nursery) -> None:
    """At the first one of its kind, before it and after it."""
    plans = [Plan((1,), after, kind) for kind in sorted(KINDS) for after in (False, True)]
    assert [bench.fuses[0].blown for bench in play(tmp_path / "cut", nursery, plans)] == [plan.kind for plan in plans]


@pytest.mark.full
def test_a_crash_at_any_side_effect(tmp_path: Path, nursery: Nursery) -> None:
    """Before it and after it."""
    (whole,) = play(tmp_path / "whole", nursery, [Plan()])
    effects = whole.fuses[0].effects
    assert set(effects) - {"freezer", "group made"} == KINDS and whole.suspended
    play(
        tmp_path / "cut", nursery, [Plan((at,), after) for at in range(1, len(effects) + 1) for after in (False, True)]
    )


def test_crashes_upon_crashes(tmp_path: Path, nursery: Nursery) -> None:
    dice = random.Random(3)
    cuts = [
        (tuple(dice.randint(1, 25) for _ in range(dice.randint(2, 8))), dice.random() < 0.5)
        for _ in range(examples(24))
    ]
    for bench in play(tmp_path / "cut", nursery, [Plan(*cut) for cut in cuts]):
        assert bench.fuses[0].at == bench.plan.cuts[0] and bench.fuses[0].blown
