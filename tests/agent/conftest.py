"""Fixtures: an agent on a temporary state directory, cleaned away whatever the test does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_bench import Bench


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
