from __future__ import annotations

import pytest

from tidewright.kube.extender import leader_election as lead


@pytest.fixture(autouse=True)
def _replicas_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every test waits for an extender to find that it leads."""
    monkeypatch.setattr(lead, "LOOK_S", 0.02)
