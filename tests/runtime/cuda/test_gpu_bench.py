"""The runner of the GPU bench, without a GPU: what it runs again, and what a step that fails costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = str(Path(__file__).parents[3] / "bench")
HERE = {"gpu": "a GPU", "torch": "2.11.0", "python": "3.12", "system": "Linux"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "path", [BENCH, *sys.path])
    monkeypatch.setenv("TIDEWRIGHT_GPU_RESULTS", str(tmp_path))
    import gpu_runtime

    return gpu_runtime


def test_steps_that_were_measured_on_this_machine_are_not_run_again(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(command[-1])
        if command[-1] == "slow":
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, command[-1] == "latencies")

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setattr(bench, "code", lambda step: "changed" if step == "old" else "the same")
    kinds = {
        "probe": ("a GPU", []),
        "exact": ("another GPU", []),
        "short": ("a GPU", ["too slow"]),
        "old": ("a GPU", []),
    }
    for step, (gpu, missed) in kinds.items():
        kept = {"machine": {**HERE, "gpu": gpu, "code": "the same"}, "measured": {"missed": missed}}
        (tmp_path / f"gpu-{step}.json").write_text(json.dumps(kept))
    (tmp_path / "gpu-preemption.json").write_text('{"machine":')  # cut off
    steps = ["probe", "latencies", "slow", "preemption", "exact", "short", "old"]
    assert bench.run_all(steps, False, HERE) == 2, "a step that fails, or takes too long, is not counted"
    assert ran == ["latencies", "slow", "preemption", "exact", "short", "old"]
    ran.clear()
    assert bench.run_all(["probe"], True, HERE) == 0
    assert ran == ["probe"]


def test_a_step_that_fails_keeps_nothing(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_steps

    monkeypatch.setattr(bench, "machine", lambda: HERE)
    monkeypatch.setitem(gpu_steps.STEPS, "probe", lambda: {"sms": 132})
    monkeypatch.setitem(gpu_steps.STEPS, "latencies", lambda: 1 // 0)
    assert bench.run_one("latencies") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert bench.run_one("probe") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpu-probe.json"]
    assert bench.done("probe", HERE)
    monkeypatch.setitem(gpu_steps.STEPS, "preemption", lambda: {"missed": ["70 us above the floor"]})
    assert bench.run_one("preemption") == 1, "a missed bar looks like a success"
    assert not bench.done("preemption", HERE)


def test_a_skipped_step_keeps_its_reason_and_is_run_again(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_steps

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, bench.run_one(command[-1]))

    monkeypatch.setattr(bench, "machine", lambda: HERE)
    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setitem(gpu_steps.STEPS, "criu", lambda: {"skipped": "there is no CRIU"})
    monkeypatch.setitem(gpu_steps.STEPS, "probe", lambda: {"sms": 132})
    assert bench.run_all(["criu", "probe"], False, HERE) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": criu"), "what is not known is not named at the end"
    assert json.loads((tmp_path / "gpu-criu.json").read_text())["measured"] == {"skipped": "there is no CRIU"}
    assert bench.done("probe", HERE) and not bench.done("criu", HERE)
    monkeypatch.setitem(gpu_steps.STEPS, "criu", lambda: {"missed": ["bits differ"], "skipped": "half of it"})
    assert bench.run_all(["criu"], False, HERE) == 1, "a step that is skipped in part is a success"


def test_what_a_step_is_about_is_there(bench: ModuleType) -> None:
    from gpu_steps import STEPS

    root = Path(BENCH).parent
    for step, function in STEPS.items():
        module = sys.modules[getattr(function, "func", function).__module__]
        for pattern in getattr(module, "SOURCES", bench.RUNTIME):
            assert list(root.glob(pattern)), f"{step}: {pattern}"
    codes = {step: bench.code(step) for step in STEPS}
    assert codes["probe"] == codes["disb-A"] and codes["splice-lock"] == codes["splice-swap"]
    assert len({codes[step] for step in ("probe", "nvml", "checkpoint", "splice-lock", "isolation")}) == 5


def test_every_network_has_its_steps(bench: ModuleType) -> None:
    from gpu_steps import NETWORKS, STEPS

    assert {f"{kind}-{name}" for kind in ("overhead", "exactness") for name in NETWORKS} <= set(STEPS)
    assert {"disb-A", "disb-D"} <= set(STEPS)
    assert {"nvml", "checkpoint", "splice-lock", "splice-swap", "isolation", "criu"} <= set(STEPS)


class _Device:
    """In virtual time: a request takes a millisecond, a chain three, and one that is cut short goes on where it was."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        self.now += 2e-6
        return self.now


class _Graph:
    def __init__(self, device: _Device) -> None:
        self.device, self.ends, self.event = device, 0.0, self

    def launch(self) -> None:
        self.ends = self.device.now + 1e-3

    def query(self) -> bool:
        return self.device.now >= self.ends


class _Chain:
    def __init__(self, device: _Device) -> None:
        self.device, self.ends, self.complete = device, 0.0, True

    def step(self) -> bool:
        self.complete = self.device.now >= self.ends
        return self.complete

    def launch(self) -> None:
        self.ends = self.device.now + 3e-3

    def finish(self) -> None:
        pass


def test_disb_counts_requests_drops_and_what_is_done_beside(bench: ModuleType) -> None:
    import gpu_disb

    device = _Device()
    clients = [gpu_disb.RealTimeClient(_Graph(device), 0.01), gpu_disb.RealTimeClient(_Graph(device), 0.0005)]
    found = gpu_disb.run(clients, [_Chain(device)], 1.0, stops=True, clock=device.clock)
    assert len(clients[0].latencies_us) == 100 and clients[0].dropped == 0
    assert clients[1].launched == len(clients[1].latencies_us) < 1000 and clients[1].dropped > 900
    assert 0 < found["be_per_s"] < 300, "best-effort work is launched in the gaps alone"
    idle = gpu_disb.run([], [_Chain(device)], 1.0, stops=True, clock=device.clock)
    assert 320 < idle["be_per_s"] < 340


def test_disb_names_the_bars_that_were_missed(bench: ModuleType) -> None:
    import gpu_disb

    def row(p50: float, p99: float, be: float) -> dict[str, float]:
        return {"rt_per_s": 100.0, "be_per_s": be, "rt_p50_us": p50, "rt_p99_us": p99}

    rows = {"RT-only": row(1000, 1100, 0), "PRIO": row(2000, 3000, 300), "ours": row(1010, 1150, 250)}
    assert gpu_disb.judged(rows, 3.0)["missed"] == []
    rows["ours"] = row(1030, 1300, 150)
    assert [text.split()[0] for text in gpu_disb.judged(rows, 3.0)["missed"]] == ["p50", "p99", "throughput"]


def test_without_a_gpu_it_says_why_and_measures_nothing(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    if not bench.unavailable():
        pytest.skip("there is a GPU")
    assert bench.main([]) == 0
    assert "nothing is measured" in capsys.readouterr().out


def test_an_unknown_step_is_named(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["nonsense"])
    assert end.value.code == 2
    assert "no step nonsense; there are probe" in capsys.readouterr().err
