from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn import server

from tidewright.kube.extender import leader_election as lead


@pytest.fixture(autouse=True)
def _replicas_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every test waits for an extender to find that it leads."""
    monkeypatch.setattr(lead, "LOOK_S", 0.02)


@pytest.fixture(autouse=True)
def _replicas_leave_the_heap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica collects and freezes the heap whenever it leads. Here that heap holds every module of tests: looking through
    it took nine tenths of these tests' processor time. Replicas that are processes of their own (test_command) do it."""
    still = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, unfreeze=lambda: None)
    monkeypatch.setattr(lead, "gc", still)


class _Quick:
    """asyncio whose pauses are short."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


@pytest.fixture(autouse=True)
def _servers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test ends two or three, and each waits a tenth of a second twice before it looks whether it may end."""
    monkeypatch.setattr(server, "asyncio", _Quick())
