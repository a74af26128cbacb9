"""What is said of a device's worker that was lost, without a device: workers and clients are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidewright.runtime.daemon.model_requests import ModelRequests
from tidewright.runtime.models import ModelState
from tidewright.runtime.transport import messages as ms


def test_a_worker_killed_for_another_client_says_so_however_late_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host it has closed its connection long before it can be reaped."""
    refused: list[ms.RequestRefused] = []
    worker = SimpleNamespace(
        killed_for_another=True, shared=True, exit_status=None, connection=SimpleNamespace(fileno=lambda: 9),
        flush=lambda: None, reap=lambda: False, kill=lambda: None, close=lambda: None,
    )  # fmt: skip
    session = SimpleNamespace(
        worker=worker,
        cut_off_ns=1,
        losses=0,
        queue=1,
        making=0,
        hello=None,
        remaking=set(),
        stop_asked_ns=0,
        running=None,
    )
    model = SimpleNamespace(id=3, name="double", state=ModelState.LOADING)
    monkeypatch.setattr(ModelRequests, "__abstractmethods__", frozenset())
    requests = ModelRequests()  # type: ignore[abstract]
    requests.sessions = {1: session}  # type: ignore[dict-item]
    requests.settings = SimpleNamespace(load_timeout_s=1e9, task_timeout_s=1e9, worker_memory=0)  # type: ignore[assignment]
    requests.pool = SimpleNamespace(of=lambda queue: [model] * (not refused), drop=lambda key: None)  # type: ignore[assignment]
    fresh = SimpleNamespace(killed_for_another=False)
    requests.workers = SimpleNamespace(look_after=lambda: None, spawn=lambda hello, placed: fresh)  # type: ignore[assignment]
    for name in ("unwatch", "retire", "watch_worker", "step", "_check_time"):
        monkeypatch.setattr(ModelRequests, name, lambda *given: None)
    monkeypatch.setattr(ModelRequests, "_tell", lambda self, session, message: refused.append(message))
    requests.look_after_workers(10**12)
    assert "because of another client" in refused[0].message and session.losses == 0
