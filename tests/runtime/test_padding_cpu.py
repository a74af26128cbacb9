"""Padding on CPU cores: which pairs a table admits, the option that takes it, and what the command that measures one writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tidewright.app.runtime import calibrate
from tidewright.base.errors import UsageError
from tidewright.runtime import RuntimeClient
from tidewright.runtime.padding import admission
from tidewright.runtime.padding.admission import KnownModel
from tidewright.runtime.padding.slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable, dump_table
from tidewright.runtime.transport import messages as ms
from tidewright.runtime.transport.messages import ModelSource
from tidewright.testing import runtime_kit

from .conftest import Start, entry_of, until

MODELS = "tidewright.testing.runtime_models"
CORES = len(os.sched_getaffinity(0))


def table(path: Path, *pairs: tuple[str, str, float], cores: int = CORES) -> Path:
    rows = tuple(PairSlowdown(rt, be, cores - 1, slowdown, 10) for rt, be, slowdown in pairs)
    path.write_bytes(dump_table(SlowdownTable(admission.fingerprint(cores, 1), rows)))
    return path


def test_a_table_admits_the_pairs_that_it_has_below_the_bound(tmp_path: Path) -> None:
    file = str(table(tmp_path / "t", ("a", "b", 0.01), ("a", "c", 0.05), cores=4))
    keys = {1: KnownModel("a"), 2: KnownModel("b"), 3: KnownModel("c")}
    here = admission.fingerprint(4, 1)
    rule = admission.rule(file, here, 3, keys, 0.02)
    assert rule(1, (2,)) == 3 and not rule(1, (3,)) and not rule(1, (2, 3)) and not rule(2, (1,)) and not rule(1, (9,))
    assert admission.rule(file, here, 3, keys, 0.1)(1, (2, 3)) == 3
    assert admission.rule("never", here, 3, keys, 0.02)(1, (2,)) == 0
    assert admission.rule("always", here, 3, keys, 0.02)(1, (3,)) == 3


def test_of_several_shares_the_largest_on_which_all_are_admitted_is_given(tmp_path: Path) -> None:
    here = DeviceFingerprint("GPU", 132, "580.65.06", (("torch", "2.13.0"),))
    measured = {("b", 8): 0.0, ("b", 16): 0.01, ("b", 32): 0.2, ("c", 8): 0.02, ("c", 16): 0.03}
    pairs = tuple(PairSlowdown("a", be, share, slowdown, 10) for (be, share), slowdown in measured.items())
    path = tmp_path / "t"
    path.write_bytes(dump_table(SlowdownTable(here, pairs)))
    models = {
        1: KnownModel("a"),
        2: KnownModel("b"),
        3: KnownModel("c"),
        4: KnownModel("b", (8, 32)),
        5: KnownModel("b", ()),
    }
    rule = admission.rule(str(path), here, 16, models, 0.02)
    assert [rule(1, be) for be in ((2,), (3,), (2, 3), (4,), (5,), (2, 5))] == [16, 8, 8, 8, 0, 0]
    always = admission.rule("always", here, 16, models, 0.02)
    assert [always(1, (be,)) for be in (2, 4, 5, 9)] == [16, 0, 0, 0]
    assert admission.shares(str(path), 5) == (8, 16, 32)
    assert (admission.shares("always", 5), admission.shares("never", 5)) == ((5,), ())
    with pytest.raises(UsageError, match="another driver"):
        admission.rule(str(path), DeviceFingerprint("GPU", 132, "600", here.software), 16, {}, 0.02)


@pytest.mark.parametrize("cores", [2, 8])
def test_the_table_of_another_device_is_refused(tmp_path: Path, cores: int) -> None:
    with pytest.raises(UsageError, match="measure the pairs again"):
        file = str(table(tmp_path / "t", ("a", "b", 0.0), cores=4))
        admission.rule(file, admission.fingerprint(cores, 1), cores - 1, {}, 0.02)
    with pytest.raises(UsageError, match="tide runtime calibrate"):
        admission.rule(str(tmp_path / "nothing"), admission.fingerprint(4, 1), 3, {}, 0.02)


def test_a_model_is_known_by_its_factory_and_arguments() -> None:
    one, other = ModelSource("m:f", {"a": 1, "b": 2}), ModelSource("m:f", {"b": 2, "a": 1})
    assert (
        admission.model_key(one)
        == admission.model_key(other)
        != admission.model_key(ModelSource("m:f", {"a": 2, "b": 2}))
    )


@pytest.mark.processes
@pytest.mark.skipif(CORES < 2, reason="padding takes two cores")
def test_only_what_the_table_admits_runs_beside_real_time_work(start_runtime: Start, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    pair = (admission.model_key(runtime_kit.held_model(hold)), admission.model_key(runtime_kit.ADMITTED), 0.0)
    runtime = start_runtime("--padding", str(table(tmp_path / "t", pair)))
    assert runtime_kit.only_what_is_admitted_goes_on(runtime.socket, hold)[-1] >= 1


@pytest.mark.processes
@pytest.mark.parametrize("padding", ["always", "/nowhere"])
def test_padding_is_refused_where_no_core_is_left(tmp_path: Path, padding: str) -> None:
    options = ["--cores", str(min(os.sched_getaffinity(0))), "--padding", padding]
    command = [sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(tmp_path / "s"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == UsageError.exit_code and "leave none beside real-time work" in done.stderr


@pytest.mark.processes
@pytest.mark.skipif(CORES < 2, reason="padding takes two cores")
def test_a_client_that_reads_no_answers_is_shut_out_alone(start_runtime: Start, tmp_path: Path) -> None:
    """It is shut out by an action of the scheduler while others that concern it are still to be carried out."""
    runtime = start_runtime("--padding", "always")
    held = {name: tmp_path / name for name in ("rt", "be")}
    with RuntimeClient(runtime.socket, "rt") as rt, RuntimeClient(runtime.socket, "be") as other:
        deaf = RuntimeClient(runtime.socket, "be")
        models = {
            name: client.load(f"{MODELS}:held", [("float64", (1,))], arguments={"path": str(held[name])})
            for name, client in (("rt", rt), ("be", deaf))
        }
        for path in held.values():
            path.touch()
        task = models["rt"].submit(np.array([1.0]))
        until(lambda: entry_of(rt)["outstanding"] == 1)
        models["be"].submit(np.array([1.0]))
        until(lambda: other.stats()["padded"] == 1)
        ms.send(deaf._connection, ms.UnloadModel(models["be"].key))  # answered when the task has ended
        deaf._connection.setblocking(False)
        refused = sent = 0
        while refused < 20 and sent < 3000:  # answers that nothing reads
            try:
                ms.send(deaf._connection, ms.GetStats())
                refused, sent = 0, sent + 1
            except BlockingIOError:
                refused += 1
                time.sleep(0.01)
        held["be"].unlink()
        until(lambda: len(other.stats()["clients"]) == 2)
        held["rt"].unlink()
        task.result(30)
        assert runtime.process.poll() is None


@pytest.mark.processes
@pytest.mark.skipif(CORES < 2, reason="padding takes two cores")
def test_calibrate_writes_a_table_that_a_runtime_takes(start_runtime: Start, tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(
        f'- factory: "{MODELS}:double"\n  inputs: ["float32:8"]\n- factory: "{MODELS}:chain"\n  inputs: ["float64:100"]\n'
    )
    command = [sys.executable, "-c", "from tidewright.cli import main; main()", "runtime", "calibrate"]
    done = subprocess.run(
        [*command, str(models), "--to", str(tmp_path / "t"), "--samples", "8"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pairs = json.loads((tmp_path / "t").read_bytes())["pairs"]
    assert len(pairs) == 4 and done.stdout.count(" beside ") == 4
    start_runtime("--padding", str(tmp_path / "t"))


@pytest.mark.parametrize("text", ["[]", "- 3", "- factory: x\n", "- {factory: x, inputs: ['float99:1']}", "{"])
def test_a_file_that_lists_no_models_is_refused(tmp_path: Path, text: str) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(text)
    with pytest.raises(UsageError):
        calibrate(models, "", 1, 8, lambda done, of: None)
