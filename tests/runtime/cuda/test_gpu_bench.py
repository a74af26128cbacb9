"""The runner of the GPU bench, without a GPU: what it runs again, and what a step that fails costs."""

from __future__ import annotations

import json
import lzma
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
        self.lanes: list[Any] = ["all"]
        self.launches: list[Any] = []

    def step(self) -> bool:
        self.complete = self.device.now >= self.ends
        return self.complete

    def launch(self, lane: Any) -> None:
        self.launches.append(lane)
        self.ends = self.device.now + 3e-3


def test_disb_counts_requests_drops_and_what_is_done_beside(bench: ModuleType) -> None:
    import gpu_disb

    device = _Device()
    clients = [gpu_disb.RealTimeClient(_Graph(device), 0.01), gpu_disb.RealTimeClient(_Graph(device), 0.0005)]
    found = gpu_disb.run(clients, gpu_disb.between([_Chain(device)]), 1.0, clock=device.clock)
    assert len(clients[0].latencies_us) == 100 and clients[0].dropped == 0
    assert clients[1].launched == len(clients[1].latencies_us) < 1000 and clients[1].dropped > 900
    assert 0 < found["be_per_s"] < 300, "best-effort work is launched in the gaps alone"
    idle = gpu_disb.run([], gpu_disb.between([_Chain(device)]), 1.0, clock=device.clock)
    assert 320 < idle["be_per_s"] < 340
    busy = [gpu_disb.RealTimeClient(_Graph(device), 0.0005)]
    assert gpu_disb.run(busy, gpu_disb.always([_Chain(device)]), 1.0, clock=device.clock)["be_per_s"] > 320
    busy = [gpu_disb.RealTimeClient(_Graph(device), 0.0005)]
    assert gpu_disb.run(busy, gpu_disb.nothing, 1.0, clock=device.clock)["be_per_s"] == 0


def test_a_padded_chain_has_its_lane_beside_requests_and_the_device_between_them(bench: ModuleType) -> None:
    import gpu_disb

    device = _Device()
    guest, other = _Chain(device), _Chain(device)
    gate: list[bool] = []
    padded = gpu_disb.Padded([other, guest], 1, "share", gate.append)
    for real_time in (False, True, False):
        padded(real_time)
        padded(real_time)
        device.now += 0.01
    padded(False)
    assert guest.launches == ["all", "share", "all", "all"] and other.launches == ["all", "all", "all"]
    padded.chains = [guest]
    padded.index = 0
    device.now += 0.01
    padded(True)
    padded(False)  # it runs on its share still
    padded(False)
    assert gate == [True]
    device.now += 0.01
    padded(False)
    assert gate == [True, False] and guest.launches[-1] == "all"


def test_kernels_are_launched_one_by_one_until_requests_come(bench: ModuleType) -> None:
    import gpu_disb
    from tidewright.runtime.cuda.throttle import RealTimeProgress, ThrottledChain
    from tidewright.runtime.padding.nvidia_rule import GridKernel

    device = _Device()
    progress = RealTimeProgress(100, lambda: int(1e9 * device.now))
    free_at = [0.0]

    def launch(at: int) -> Any:
        assert not progress.active
        free_at[0] = ends = max(free_at[0], device.now) + 1e-4
        return lambda: device.now >= ends

    chain = ThrottledChain([GridKernel(1, 1, 100_000, 100_000)] * 30, launch, progress)
    chain.begin()
    advance = gpu_disb.one_by_one([chain])
    hooks = {"launched": lambda graph: progress.begin([GridKernel(1, 1, 1, 1)]), "ended": progress.end}
    idle = gpu_disb.run([], advance, 1.0, clock=device.clock, **hooks)
    assert 300 < idle["be_per_s"] < 334
    clients = [gpu_disb.RealTimeClient(_Graph(device), 0.002)]
    beside = gpu_disb.run(clients, advance, 1.0, clock=device.clock, **hooks)
    assert 100 < beside["be_per_s"] < 200 and beside["rt_per_s"] == 500


def test_rounds_are_chosen_for_the_length_that_is_asked_for(bench: ModuleType) -> None:
    import gpu_spin
    from tidewright.runtime.cuda.gate import PARAMETERS, gate_source

    rounds, took = gpu_spin.calibrated(lambda n: 3 + 0.02 * n, 100)
    assert rounds == 4850 and took == 100
    assert gpu_spin.calibrated(lambda n: 3 + 0.02 * n, 1)[0] == 1
    assert f"def spin({', '.join(PARAMETERS)}" in gate_source(gpu_spin.SOURCE)


def test_the_largest_share_that_slows_nothing_down_is_taken(bench: ModuleType) -> None:
    import gpu_rows

    measured = {("x", 8): (0.0, 0.01), ("x", 16): (0.0, 0.03), ("y", 8): (0.0, 0.0), ("y", 32): (0.5, 0.0)}
    table = [
        {"rt": rt, "be": be, "sms": sms, "slowdown": slowdown}
        for (be, sms), both in measured.items()
        for rt, slowdown in zip("rs", both, strict=True)
    ]
    assert gpu_rows.admitted(table, ["x", "y"]) == (0, 8)
    assert gpu_rows.admitted(table, ["y", "x"]) == (0, 8)
    assert gpu_rows.admitted([one for one in table if one["rt"] == "r"], ["x", "y"]) == (0, 16)
    assert gpu_rows.admitted([one for one in table if one["sms"] == 32], ["x", "y"]) == (0, 0)


def test_disb_names_the_bars_that_were_missed(bench: ModuleType) -> None:
    import gpu_disb

    def row(p50: float, p99: float, be: float) -> dict[str, float]:
        return {"rt_per_s": 100.0, "be_per_s": be, "rt_p50_us": p50, "rt_p99_us": p99}

    rows = {"RT-only": row(1000, 1100, 0), "PRIO": row(2000, 3000, 300), "REEF-N": row(1010, 1150, 100)}
    rows["ours"] = row(1010, 1150, 250)
    found = gpu_disb.judged(rows, 3.0)
    assert found["missed"] == [] and found["over_reef_n"] == 1.75
    rows["ours+padding"] = row(1030, 1300, 150)
    assert [text.split()[0] for text in gpu_disb.judged(rows, 3.0)["missed"]] == ["p50", "p99", "throughput", "over"]
    del rows["REEF-N"]
    assert gpu_disb.judged(rows, 0.0)["over_reef_n"] is None


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


def test_choices_measured_elsewhere_are_taken_on_the_same_device_alone(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codecache import CacheBase

    kept, place = tmp_path / "kept.xz", tmp_path / "cache" / "here"
    kept.write_bytes(lzma.compress(json.dumps({"system": {"hash": "one"}, "cache": {}}).encode()))
    monkeypatch.setattr(CacheBase, "get_local_cache_path", staticmethod(lambda: place))
    for here, taken in (("another", False), ("one", True)):
        monkeypatch.setattr(CacheBase, "get_system", staticmethod(lambda here=here: {"hash": here}))
        bench.seed_choices(kept)
        assert place.exists() is taken
    place.write_text("measured here")
    bench.seed_choices(kept)
    bench.seed_choices(tmp_path / "nothing")
    assert place.read_text() == "measured here"


def test_steps_that_run_together_all_run_and_failures_are_counted(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(bench, "run_one", lambda step: ran.append(step) or int(step == "probe"))
    assert bench.run_together(["probe", "hint"]) == 1 and ran == ["probe", "hint"]
