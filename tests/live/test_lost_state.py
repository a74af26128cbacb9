"""A controller whose state directory is replaced acknowledges nothing from then on, writes nothing there, and ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidewright.app import start
from tidewright.base.errors import Conflict, TideError, UsageError
from tidewright.model.job import JobSpec
from tidewright.wire import own_directory
from tidewright.wire.own_directory import DirectoryLost

pytestmark = pytest.mark.processes


def test_a_request_after_it_is_not_acknowledged(
    running: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_directory, "LOOK_EVERY_S", 600.0)  # what a request finds, not what the watch finds
    server = running()
    server.__enter__()
    with server.client() as client:
        (job,) = client.submit([JobSpec(command=("sleep", "9"))]).ids
        server.state.rename(tmp_path / "away")
        server.state.mkdir(mode=0o700)
        with pytest.raises(Conflict, match="another directory has been put in the place") as refused:
            client.cancel(job)
        assert "rename it back" in refused.value.remedy
        server._thread.join(60)
        assert isinstance(server.error, DirectoryLost) and "rename it back" in server.error.remedy
        assert list(server.state.iterdir()) == []
    server.state.rmdir()
    (tmp_path / "away").rename(server.state)
    with running() as again, again.client() as client:
        assert client.job(job).state != "cancelled", "what was refused did not happen"


def answering(*pids: int) -> SimpleNamespace:
    """A client: who answers each question; 0: it fails."""
    left = list(pids)

    def info() -> SimpleNamespace:
        pid = left.pop(0) if len(left) > 1 else left[0]
        if not pid:
            raise TideError("no answer")
        return SimpleNamespace(pid=pid, agent="connected")

    return SimpleNamespace(info=info, close=lambda: None)


def test_up_waits_for_its_own_controller_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starting = start.Starting(SimpleNamespace(pid=7, poll=lambda: None), 0)  # type: ignore[arg-type]
    found = start.wait_until_up(answering(5, 0, 5, 7), tmp_path, starting, lambda: None)  # type: ignore[arg-type]
    assert found.pid == 7
    monkeypatch.setattr(start, "START_LIMIT_S", 0.2)
    with pytest.raises(UsageError, match=r"pid 5\) is not the one that holds its lock \(pid 7\)") as refused:
        start.wait_until_up(answering(5), tmp_path, starting, lambda: None)  # type: ignore[arg-type]
    assert "kill 5" in refused.value.remedy


def test_up_takes_no_other_controller_for_the_one_that_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start.answer_of(answering(5, 7), tmp_path, 7).pid == 7  # type: ignore[arg-type]
    assert start.answer_of(answering(5), tmp_path, -1).pid == 5, "on a full disk the pid may not be known"  # type: ignore[arg-type]
    monkeypatch.setattr(start, "OTHER_LIMIT_S", 0.1)
    with pytest.raises(UsageError, match="removed or replaced") as refused:
        start.answer_of(answering(5), tmp_path, 7)  # type: ignore[arg-type]
    assert "kill 5" in refused.value.remedy
