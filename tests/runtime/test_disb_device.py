"""DISB on cores: every row runs, real clients are counted, and what is written can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidewright.app import disb
from tidewright.base.errors import UsageError
from tidewright.runtime.disb import device_run
from tidewright.runtime.disb.architectures import TORCHVISION, small
from tidewright.runtime.disb.device_run import CPU_ROWS
from tidewright.runtime.disb.networks import source
from tidewright.runtime.disb.workload import NAMES, load_workload
from tidewright.runtime.transport.messages import ModelSource
from tidewright.runtime.transport.tensors import TensorSpec


def test_every_network_of_every_workload_is_there() -> None:
    names = {task.client.model_name for name in NAMES for task in load_workload(name).tasks}
    assert names == {*TORCHVISION, "distilbert"}
    for name in names:
        made, inputs = source(name, True)
        assert made.arguments == {"name": name} and inputs
    with pytest.raises(UsageError, match="vgg19-imagenet"):
        source("alexnet", True)


def test_rows_are_found_by_name_and_explained() -> None:
    assert [row.label for row in disb.rows_of(())] == [row.label for row in CPU_ROWS]
    on_gpu = [row.label for row in disb.rows_of((), "cuda")]
    assert on_gpu == ["RT-only", "SEQ", "STREAM", "PRIO", "REEF-N", "Orion", "ours", "ours+padding"]
    assert {*on_gpu, *(row.label for row in CPU_ROWS)} == set(disb.ABOUT)
    with pytest.raises(UsageError, match="ours"):
        disb.rows_of(["theirs"])


@pytest.mark.full
@pytest.mark.processes
def test_the_small_networks_compute() -> None:
    torch = pytest.importorskip("torch")
    for name in (*TORCHVISION, "distilbert"):
        (spec,) = source(name, True)[1]
        with torch.inference_mode():
            assert torch.isfinite(small(name).eval()(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)))).all()


@pytest.mark.processes
def test_a_row_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With arrays in the place of networks, which take seconds to import."""
    model = ModelSource("tidewright.testing.runtime_models:chain", {"operators": 100})
    monkeypatch.setattr(device_run, "source", lambda name, small: (model, (TensorSpec("float64", (2000,)),)))
    matrix = disb.run_disb(["A"], disb.rows_of(["ours"]), seconds=1)
    (found,) = matrix.results
    assert (found.row, found.source) == ("ours", "measurement")
    assert found.rt_per_second > 20 and found.be_per_second > 0 and found.preemption.latency.count > 0


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.timeout(900)  # ten clients load their models in each of seven rows, beside other tests
@pytest.mark.parametrize("workload", NAMES)
@pytest.mark.parametrize("loop", [[], ["--open"]])
def test_every_workload_in_every_row(workload: str, loop: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [
        sys.executable,
        "-c",
        "from tidewright.cli import main; main()",
        "bench",
        "disb",
        "-w",
        workload,
        "--seconds",
        "2",
    ]
    output = [] if loop else ["-o", "json"]
    command += [*loop, *output, "--report", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    if output:
        results = json.loads(done.stdout)["results"]
        assert [one["row"] for one in results] == [row.label for row in CPU_ROWS]
    assert all(row.label in done.stdout for row in CPU_ROWS) and "<svg" in page.read_text()


def test_a_gpu_is_refused_with_what_is_missing() -> None:
    with pytest.raises(UsageError, match="CUDA device"):
        disb.run_disb(["A"], disb.rows_of((), "cuda"), seconds=1, device="cuda")
