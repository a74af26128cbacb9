"""A runtime as a job of a pool: started, listed, watched, suspended, brought back and ended by the command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidewright.runtime import RuntimeClient

from .conftest import until
from .pool import Pool

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="tide-") as folder:  # a socket's path is short
        pool = Pool(Path(folder))
        pool.tide("up")
        yield pool
        pool.tide("down", "--jobs")


def test_a_runtime_lives_as_a_job(pool: Pool) -> None:
    said = pool.tide("runtime", "up", "--name", "vision", "--task-timeout", "30")
    socket = pool.state / "runtimes" / "vision" / "socket"
    assert str(socket) in said
    until(pool.up)
    with RuntimeClient(socket, "rt", name="web") as client:
        model = client.load("tidewright.testing.runtime_models:double", [("float32", (4,))])
        assert model.infer(np.ones(4, np.float32))[0][0] == 2
        assert len(client.stats()["cores"]) == 1, "it took more than its job's device"
        text = pool.tide("runtime", "top", "vision", "--once")
        assert "web" in text and "1 real-time" in text
        found = json.loads(pool.tide("runtime", "top", "vision", "-o", "json"))
        assert found["clients"][0]["done"] == 1
    pool.tide("runtime", "up", "--name", "vision", code=4)
    pool.tide("suspend", "1")
    until(lambda: not pool.up())
    pool.tide("resume", "1")
    until(pool.up)
    assert pool.job()["state"] == "running", "a runtime that was preempted does not come back"
    pool.tide("runtime", "down", "vision")
    until(lambda: pool.job()["state"] == "completed")
    assert not pool.up()
    pool.tide("runtime", "down", "vision", code=3)


def test_a_runtime_that_is_ended_hard_is_listed_as_down(pool: Pool) -> None:
    folder = pool.state / "runtimes" / "gone"
    folder.mkdir(parents=True)
    (folder / "socket").touch()
    assert "down" in pool.tide("runtime", "ls")
    (folder / "socket").unlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ["runtime", "up", "--name", "No Name"],
        ["runtime", "up", "--name", "x", "--stop", "kill"],
        ["runtime", "inspect", "nonsense", "--input", "float32:4"],
        ["runtime", "inspect", "torch.nn:Linear", "--input", "float32"],
        ["runtime", "inspect", "torch.nn:Linear", "--input", "float33:4"],
        ["runtime", "inspect", "torch.nn:Linear", "--input", "float32:4", "--arguments", "[1]"],
        ["runtime", "inspect", "torch.nn:Linear", "--input", "float32:4x-1"],
    ],
)
def test_what_cannot_be_is_refused(pool: Pool, arguments: list[str]) -> None:
    assert "Traceback" not in pool.tide(*arguments, code=2)


def test_inspect_says_how_a_model_can_be_stopped(pool: Pool) -> None:
    model = ["runtime", "inspect", "tidewright.testing.runtime_models:layers", "--input", "float32:4x64"]
    found = json.loads(pool.tide(*model, "--arguments", '{"depth": 3}', "-o", "json"))
    assert found["signature"] == "(float32[4, 64]) -> (float32[4, 64])"
    assert [level["possible"] for level in found["levels"]] == [True, True]
    assert "8 operators" in found["levels"][1]["why"]
    text = pool.tide("runtime", "inspect", "tidewright.testing.runtime_models:double", "--input", "float32:4")
    assert "one piece" in text
