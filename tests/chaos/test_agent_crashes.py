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

from .agent import Bench, Nursery, crashes, spawning
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


def play(root: Path, nursery: Nursery, plans: list[tuple[list[int], bool]]) -> list[Bench]:
    """The scenario once for each plan, some side by side."""

    async def whole() -> list[Bench]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, cuts: list[int], after: bool) -> Bench:
            async with room:
                return await crashes(root / str(number), nursery, cuts, after)

        return list(await asyncio.gather(*(one(number, *plan) for number, plan in enumerate(plans))))

    return asyncio.run(whole())


def _around(index: int) -> range:
    """Moments close to one that was seen at this place of a list (moments are counted from one)."""
    return range(max(1, index - 4), index + 6)


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_crash_at_any_side_effect(tmp_path: Path, nursery: Nursery, both: bool) -> None:
    """Before it and after it; otherwise by turns."""
    (whole,) = play(tmp_path / "whole", nursery, [([], False)])
    effects = whole.fuses[0].effects
    assert set(effects) - {"freezer", "group made"} == KINDS and whole.suspended
    moments = [(at, after) for at in range(1, len(effects) + 1) for after in (False, True)]
    plans = [([at], after) for at, after in moments if both or (at + after) % 2 == 0]
    hit = {bench.fuses[0].blown for bench in play(tmp_path / "cut", nursery, plans)}
    # On a busy machine reports run together, and what follows them comes earlier than it did.
    late = [([at], False) for kind in KINDS - hit for at in _around(effects.index(kind))]
    hit |= {bench.fuses[0].blown for bench in play(tmp_path / "late", nursery, late)}
    assert hit >= KINDS


def test_crashes_upon_crashes(tmp_path: Path, nursery: Nursery) -> None:
    dice = random.Random(3)
    plans = [([dice.randint(1, 25) for _ in range(dice.randint(2, 8))], dice.random() < 0.5) for _ in range(24)]
    for (cuts, _), bench in zip(plans, play(tmp_path / "cut", nursery, plans), strict=True):
        assert bench.fuses[0].at == cuts[0] and bench.fuses[0].blown
