"""Padding on a device whose clients share one worker: the option, the table that it takes, and the measurement that makes one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tidewright.base.errors import UsageError
from tidewright.runtime import Runtime, RuntimeClient
from tidewright.runtime.client import RemoteModel, TaskCancelled
from tidewright.runtime.padding import calibration
from tidewright.runtime.padding.admission import model_key
from tidewright.runtime.padding.slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable, dump_table
from tidewright.runtime.transport.messages import ModelSource
from tidewright.runtime.transport.tensors import TensorSpec
from tidewright.testing import runtime_kit

from ..conftest import Start, children_of, entry_of, until

pytestmark = pytest.mark.processes
MODELS = "tidewright.testing.runtime_models"
DAEMON = "tests.runtime.cuda.host_daemon"
HOST = DeviceFingerprint("host", 100, "")
ADMITTED = runtime_kit.ADMITTED


def table(path: Path, hold: Path, *shares: int, here: DeviceFingerprint = HOST) -> str:
    long = model_key(runtime_kit.held_model(hold))
    pairs = tuple(PairSlowdown(long, model_key(ADMITTED), share, 0.0, 10) for share in shares)
    path.write_bytes(dump_table(SlowdownTable(here, pairs)))
    return str(path)


def test_what_the_table_admits_goes_on_beside_real_time_work(start_runtime: Start, tmp_path: Path) -> None:
    """Also with a worker that has taken over from one that was killed."""
    hold = tmp_path / "hold"
    runtime = start_runtime("--padding", table(tmp_path / "t", hold, 8, 32), module=DAEMON)

    def lose_the_worker(rt: RuntimeClient, inside: RemoteModel) -> None:
        (worker,) = children_of(runtime.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: entry_of(rt)["worker_pid"] != worker)
        inside.infer(np.zeros(100), timeout_s=30)

    assert runtime_kit.only_what_is_admitted_goes_on(runtime.socket, hold, 2, lose_the_worker) == [1, 2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--padding", "always", "--padding-sms", "100"), "leave none to real-time work"),
        (("--padding", "OTHER"), "the slow-down table was made with another sms"),
    ],
)
def test_padding_that_this_device_cannot_have_is_refused(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    other = table(tmp_path / "t", tmp_path, 8, here=DeviceFingerprint("host", 132, ""))
    given = [other if option == "OTHER" else option for option in options]
    command = [sys.executable, "-m", DAEMON, "--socket", str(tmp_path / "s"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == UsageError.exit_code and why in done.stderr and "Traceback" not in done.stderr


def test_a_model_that_cannot_be_padded_does_not_use_up_its_time_beside_real_time_work(start_runtime: Start) -> None:
    runtime = start_runtime("--padding", "always", "--task-timeout", "0.6", module=DAEMON)
    with RuntimeClient(runtime.socket, "rt") as rt, RuntimeClient(runtime.socket, "be") as be:
        quick = rt.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 0.4}, slots=2)
        whole = be.load(f"{MODELS}:double", [("float32", (8,))])
        assert whole.shares == ()
        tasks = [quick.submit(np.array([1.0])) for _ in range(2)]
        until(lambda: entry_of(rt)["outstanding"] >= 1)
        waiting = whole.submit(np.ones(8, np.float32))
        tasks += [quick.submit(np.array([1.0])) for _ in range(2)]
        assert [task.result(30) for task in tasks] and waiting.result(30)
        assert be.stats()["padded"] == 0


def test_each_pair_is_measured_on_each_share(
    monkeypatch: pytest.MonkeyPatch, start_runtime: Start, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "Runtime", partial(Runtime, module=DAEMON))
    models = [
        calibration.ModelToMeasure(ModelSource(f"{MODELS}:double"), (TensorSpec("float32", (8,)),)),
        calibration.ModelToMeasure(ADMITTED, (TensorSpec("float64", (100,)),)),
    ]
    seen: list[tuple[int, int]] = []
    found = calibration.measure_gpu(models, shares=(32, 8, 100), samples=8, progress=lambda *at: seen.append(at))
    assert found.fingerprint == HOST and seen == [(number, 8) for number in range(8)]
    # The first is in one piece, and never padded; 100 multiprocessors are all that there are.
    measured = {(one.key, models[1].key, share) for one in models for share in (8, 32)}
    assert {(pair.rt, pair.be, pair.share_sms) for pair in found.pairs} == measured
    path = tmp_path / "t"
    path.write_bytes(dump_table(found))
    start_runtime("--padding", str(path), module=DAEMON)
    for shares in ((), (0,), (100, 200)):
        with pytest.raises(UsageError):
            calibration.measure_gpu(models, shares=shares)


def test_a_task_that_has_begun_is_cut_short_when_it_is_cancelled(start_runtime: Start, tmp_path: Path) -> None:
    held = tmp_path / "held"
    runtime = start_runtime(module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as client:
        model = client.load(f"{MODELS}:held", [("float64", (8,))], arguments={"path": str(held)}, slots=2)
        held.touch()
        task, behind = model.submit(np.zeros(8)), model.submit(np.ones(8))
        until(lambda: entry_of(client)["stream"] == "running")
        task.cancel()
        with pytest.raises(TaskCancelled):
            task.result(20)
        held.unlink()
        assert behind.result(20)[0].sum() == 8
