"""Clients of the gateway that leave, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .gateway_process import Serving, request_bytes

pytestmark = pytest.mark.processes


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def test_a_client_that_leaves_while_its_request_waits_is_forgotten(serving: Serving, tmp_path: Path) -> None:
    serving.replica("gated", env={"GATE": str(tmp_path / "gate")}, objective_us=60_000_000)
    first = serving.connect(request_bytes("gated", 1))
    serving.until(lambda: (tmp_path / "gate.1").exists())  # it runs; the model takes one at a time
    second = serving.connect(request_bytes("gated", 2))
    serving.until(lambda: serving.waiting("gated") == 1)
    second.close()
    serving.until(lambda: serving.waiting("gated") == 0)
    assert serving.requests("gated") == {"gone": 1}
    (tmp_path / "gate").touch()
    assert first.recv(12) == b"HTTP/1.1 200"
    assert serving.infer("gated", 3)[0] == 200 and not (tmp_path / "gate.2").exists()
    assert serving.requests("gated") == {"gone": 1, "ok": 2}


def test_one_that_leaves_in_mid_batch_harms_no_other(serving: Serving, tmp_path: Path) -> None:
    serving.replica("gated", env={"GATE": str(tmp_path / "gate")}, objective_us=60_000_000)
    first = serving.connect(request_bytes("gated", 1))
    serving.until(lambda: (tmp_path / "gate.1").exists())
    first.close()
    serving.until(lambda: serving.requests("gated") == {"gone": 1})
    (tmp_path / "gate").touch()
    assert serving.infer("gated", 2)[0] == 200
    assert serving.ready("gated") == 1
    assert "Traceback" not in serving.log() and "never retrieved" not in serving.log()


def test_one_that_leaves_in_mid_body_leaves_nothing(serving: Serving) -> None:
    serving.replica("total")
    serving.connect(request_bytes("total", 1)[:-5]).close()
    assert serving.infer("total", 2)[0] == 200
    assert serving.requests("total") == {"ok": 1} and "Traceback" not in serving.log()
