"""Fixtures: an agent on a temporary state directory, cleaned away whatever the test does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_bench import Bench
from tidewright.checkpoint.store.put_worker import KINDS, PutOrder, put_all


def put_here(order: PutOrder, started: Callable[[Any], None] = lambda stop: None) -> Any:
    """What the process does that adds images to a store, in this one. The process: tests/checkpoint/store/test_put_worker.py."""
    started(lambda: None)
    answer = put_all(order)
    return list(answer.made), KINDS[answer.kind](answer.error) if answer.error else None


@pytest.fixture(autouse=True)
def no_put_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings 1 and 2 start no process for an image of some kilobytes, and wait for no reader that may come."""
    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr("tidewright.agent.checkpointing.images.put_in_worker", put_here)
        monkeypatch.setattr("tidewright.agent.checkpointing.image_leases.GRACE_S", 0.01)


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path / "s")
    made.start("--backend", "cpu", "--slots", "4")
    yield made
    made.clean()


@pytest.fixture
def play(bench: Bench):
    """Run an async test body against the agent."""

    def run(body: Callable[[Bench], Any]) -> None:
        async def whole() -> None:
            bench.fabric.watch(
                lambda node: bench.nodes.append(node.alive), lambda _, report: bench.heard.append(report)
            )
            try:
                await body(bench)
            finally:
                await bench.fabric.close()

        asyncio.run(whole())

    return run
