from __future__ import annotations

from types import SimpleNamespace

import pytest

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
