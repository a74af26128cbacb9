"""Steps of the GPU bench, without a GPU: how they judge, what they need, and their programs as far as a CPU can run them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.criu_here import criu_here
from tidewright.checkpoint.criu.program import Criu
from tidewright.checkpoint.cuda.fake import FakeCuda
from tidewright.kube.node.gpus import Gpu

ROOT = Path(__file__).parents[3]
BARE = """
import sys
for name in {packages!r}:
    sys.modules[name] = None
sys.path[:0] = [{source!r}, {bench!r}]
import gpu_runtime, gpu_steps, gpu_checkpoint, gpu_splice_rank
print(len(gpu_steps.STEPS))
"""
MISSING = (
    "aiohttp", "blake3", "click", "cuda", "google", "grpc", "h11", "msgspec", "numpy", "prometheus_client", "psutil", "pynvml",
    "rich", "starlette", "torchvision", "transformers", "uvicorn", "uvloop", "yaml", "zstandard",
)  # fmt: skip
"""What a bare checkout may be without: all that pyproject.toml lists, cuda-bindings as well."""


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the bench."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    return importlib.import_module


def test_steps_need_no_package_of_the_project() -> None:
    program = BARE.format(packages=MISSING, source=str(ROOT / "src"), bench=str(ROOT / "bench"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_programs_given_as_text_compile(step: Any) -> None:
    for name in ("gpu_isolation.PROGRAM", "gpu_suspend.TRAIN", "gpu_checkpoint.PROGRAM"):
        module, _, constant = name.partition(".")
        compile(getattr(step(module), constant), name, "exec")


# -- judgements ---------------------------------------------------------------------------------------------------------


def test_an_undisturbed_program_is_what_a_suspended_one_is_held_to(step: Any) -> None:
    suspend = step("gpu_suspend")
    assert suspend.differing([{"gib": 1.0, "same_bits": True}]) == []
    assert len(suspend.differing([{"gib": 1.0, "same_bits": True}, {"gib": 4.0, "same_bits": False}])) == 1
    rows = {
        "driver": {"same_bits": True, "why": ""},
        "plugin": {"not_tried": "no plugin"},
        "other": {"same_bits": False, "why": ""},
        "last": {"same_bits": False, "why": "criu dump ended with 1"},
    }
    assert [text.split(":")[0] for text in suspend.unlike(rows)] == ["other", "last"]


def turns(**changed: Any) -> dict[str, Any]:
    found = {"digests": ["a"] * 4, "slices": 20, "steps": 10, "timeouts": 0, "over_ideal": 0.05, "swaps": 18}
    return {**found, **changed}


def test_turns_are_held_to_bits_to_the_ideal_and_to_having_been_taken(step: Any) -> None:
    splice = step("gpu_splice")
    assert splice.judged("lock", turns()) == splice.judged("swap", turns(over_ideal=9.0)) == []
    for missed, changed in (
        ("bits", {"digests": ["a", "a", "a", "b"]}),
        ("turns", {"slices": 19}),
        ("waits", {"timeouts": 1}),
        ("time", {"over_ideal": 0.061}),
    ):
        assert [text.split()[0].strip(":") for text in splice.judged("lock", turns(**changed))] == [missed]
    assert [text.split(":")[0] for text in splice.judged("swap", turns(swaps=4))] == ["swaps"]
    assert splice.judged("lock", turns(swaps=0)) == []


def test_the_ideal_is_both_ranks_one_after_the_other(step: Any) -> None:
    splice = step("gpu_splice")
    base = {"solo_s": [1.0, 2.0], "collective_s": 1.0, "slices": 4, "timeouts": 0}
    rounds = [{**base, "step_s": 4.2}, {**base, "step_s": 4.4}, {**base, "step_s": 44.0, "solo_s": [10.0, 29.0]}]
    found = splice.summary(rounds)
    assert found["ideal_s"] == 4.0 and found["slices"] == 12
    assert found["over_ideal"] == pytest.approx(0.1), "a round is not held to its own ideal"
    assert found["over_computing"] == pytest.approx(0.4)


SHARE = 2**30
HELD = {"share": SHARE, "one_byte_more": "oom", "raw": "oom", "taken": SHARE - 2**28, "unharmed": True}


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 0),
        ({"taken": SHARE}, 0),
        ({"one_byte_more": "ok"}, 1),
        ({"raw": "ok"}, 1),
        ({"taken": SHARE + 1}, 1),
        ({"taken": SHARE // 4}, 1),
        ({"unharmed": False}, 1),
    ],
)
def test_a_level_is_held_to_its_share_to_the_byte(step: Any, changed: dict[str, Any], count: int) -> None:
    isolation = step("gpu_isolation")
    assert len(isolation.memory_misses({**HELD, **changed}, True)) == count
    assert isolation.memory_misses({**HELD, "raw": "ok"}, False) == [], "who listens keeps nobody else to it"


def test_throughput_is_split_as_the_multiprocessors_are(step: Any) -> None:
    isolation = step("gpu_isolation")
    for split, good in ((0.251, True), (0.349, True), (0.249, False), (0.351, False), (0.5, False)):
        assert (isolation.compute_misses({"percents": [30, 70], "split": split}) == []) is good
    assert isolation.compute_misses({"not_tried": "no MPS"}) == []
    assert len(isolation.compute_misses({"failed": "it has ended"})) == 1


def test_isolation_is_skipped_where_nothing_enforces_it(step: Any) -> None:
    isolation = step("gpu_isolation")
    absent = {"not_tried": "not here"}
    rows = {level.title: absent for level in isolation.LEVELS}
    rows |= {"none": {**HELD, "one_byte_more": "ok", "raw": "ok"}, "L1 cooperative": {**HELD, "raw": "ok"}}
    found = isolation.judged(rows, absent)
    assert found["missed"] == [] and found["skipped"].count("not here") == 3
    found = isolation.judged({**rows, "L3 MPS": HELD}, {"percents": [30, 70], "split": 0.3})
    assert found["missed"] == [] and "skipped" not in found
    found = isolation.judged({**rows, "L3 MPS": {"failed": "a client has ended"}}, absent)
    assert len(found["missed"]) == 1 and "skipped" not in found
    for control in (HELD, {**HELD, "raw": "ok"}, {**HELD, "one_byte_more": "ok"}, {"failed": "it has ended"}):
        found = isolation.judged({**rows, "none": control}, absent)
        assert len(found["missed"]) == 1, "a level is credited with what the device does anyway"


SEEN = {"uuid": "GPU-1", "name": "a GPU", "total": 80 << 30, "grown": 2**30, "mine": 2**30 + 1, "own_namespace": False}
TOLD = {"uuids": ["GPU-1"], "torch": {"uuid": "GPU-1", "name": "a GPU", "total": 79 << 30}}


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 0),
        ({"uuid": ""}, 1),
        ({"name": "another"}, 1),
        ({"total": 40 << 30}, 1),
        ({"grown": 2**30 - 1}, 1),
        ({"mine": None}, 1),
        ({"mine": None, "own_namespace": True}, 0),
        ({"mine": 2**20, "own_namespace": True}, 1),
    ],
)
def test_nvml_and_pytorch_are_held_to_each_other(step: Any, changed: dict[str, Any], count: int) -> None:
    assert len(step("gpu_nvml").judged({**SEEN, **TOLD, **changed})) == count


def library(asked: list[str]) -> Any:
    """NVML with two devices, as ctypes calls it; one has no name."""

    def count(found: Any) -> int:
        found._obj.value = 2
        return 0

    def handle(at: Any, found: Any) -> int:
        found._obj.value = 100 + at.value
        return 0

    def uuid(device: Any, buffer: Any, size: Any) -> int:
        buffer.value = f"GPU-{device.value}".encode()
        return 0

    def memory(device: Any, found: Any) -> int:
        found._obj.total, found._obj.used = 10, 3
        return 0

    def processes(device: Any, most: Any, found: Any) -> int:
        assert most._obj.value == len(found)
        most._obj.value = 1
        found[0].pid, found[0].used = 42, 2**33
        return 0

    return SimpleNamespace(
        nvmlInit_v2=lambda: asked.append("init"),
        nvmlDeviceGetCount_v2=count,
        nvmlDeviceGetHandleByIndex_v2=handle,
        nvmlDeviceGetUUID=uuid,
        nvmlDeviceGetName=lambda device, buffer, size: 2,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses_v3=processes,
    )


def test_nvml_is_called_as_its_header_says(step: Any) -> None:
    nvml = step("gpu_nvml")
    asked: list[str] = []
    found = nvml.Nvml(library(asked))
    first, second = found.devices()
    assert asked == ["init"] and (found.uuid(first), found.uuid(second)) == ("GPU-100", "GPU-101")
    assert found.memory(second) == (10, 3) and found.processes(first) == {42: 2**33}
    with pytest.raises(nvml.WorldError):
        found.name(first)
    assert ctypes.sizeof(nvml._Process) == 24 and nvml._Process.used.offset == 8


# -- programs and daemons -----------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_program_that_ends_or_hangs_is_noticed(step: Any) -> None:
    lines = step("gpu_lines")
    gone = lines.Lines(["-c", "print('ready', flush=True)"])
    assert gone.answer() == "ready"
    with pytest.raises(EOFError):
        gone.told("anything")
    stuck = lines.Lines(["-c", "import sys; sys.stdin.read()"])
    with pytest.raises(TimeoutError):
        stuck.told("anything", 0.1)
    for each in (gone, stuck):
        each.end()
        assert each.process.returncode == 0, "its input has not ended before it was killed"


@pytest.mark.full
@pytest.mark.processes
def test_two_ranks_take_turns_by_lock_and_compute_the_same_bits(step: Any) -> None:
    pytest.importorskip("torch")
    splice = step("gpu_splice")
    found = splice.measured("lock", splice.Size(64, 2, 16, 5, 2, device="cpu"))
    assert splice.judged("lock", {**found, "over_ideal": 0.0}) == []
    assert len(found["digests"]) == 4 and found["slices"] >= 20


@pytest.mark.full
@pytest.mark.processes
def test_two_ranks_take_turns_by_swapping_against_a_driver_of_paper(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and calls are real, device memory is not."""
    pytest.importorskip("torch")
    splice, cuda = step("gpu_splice"), FakeCuda()

    class Job(splice.Job):
        def __enter__(self) -> Any:
            super().__enter__()
            for rank in self.ranks:
                cuda.start(rank.pid)
            return self

    monkeypatch.setattr(splice, "open_api", lambda: cuda)
    monkeypatch.setattr(splice, "Job", Job)
    found = splice.measured("swap", splice.Size(64, 2, 16, 4, 1, device="cpu"))
    assert splice.judged("swap", found) == []
    assert [name for name, _ in cuda.calls].count("checkpoint") == found["swaps"]


@pytest.mark.full
@pytest.mark.processes
def test_what_isolation_tries_runs_without_a_gpu_as_well(step: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    isolation = step("gpu_isolation")
    with isolation.programs(place(isolation, tmp_path), [{}, {"X": "1"}], "cpu") as both:
        assert both[0].told("digest") == both[1].told("digest")
        assert (both[0].told("take 1000"), both[0].told("fill 10 100"), both[0].told("free")) == ("ok", "100", "ok")
        assert float(both[1].told("work 0.05 16")) > 0


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.skipif(not isinstance(criu_here(), Criu), reason=f"no full images here: {criu_here()}")
def test_a_program_comes_back_from_its_image(step: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By CRIU without plugins, and without a device: what is around the driver's calls."""
    pytest.importorskip("torch")
    suspend, seen = step("gpu_suspend"), list[int]()
    monkeypatch.setattr(suspend, "STEPS", 30)
    monkeypatch.setattr(suspend, "IMAGED_AT", 5)
    way = suspend.Way(seen.append, seen.append, tmp_path)
    found = suspend.imaged(criu_here(), way, tmp_path / "images", "cpu")
    assert found["same_bits"] is True, found["why"]
    assert len(seen) == 2 and seen[0] == seen[1]
    bad = Criu(("/bin/false",), "4.2")
    found = suspend.imaged(bad, way, tmp_path / "refused", "cpu")
    assert found["same_bits"] is False and found["why"]


def place(isolation: ModuleType, folder: Path, **changed: Any) -> Any:
    gpu = Gpu(0, "GPU-1", 80_000, "a GPU", physical=0)
    return isolation.Place(gpu, folder, 8 << 30, **changed)


def test_levels_set_what_the_product_sets(step: Any, tmp_path: Path) -> None:
    isolation = step("gpu_isolation")
    with isolation.cooperative(place(isolation, tmp_path)) as both:
        assert [each["PYTORCH_ALLOC_CONF"] for each in both] == ["per_process_memory_fraction:0.102"] * 2
    with isolation.nothing(place(isolation, tmp_path)) as both:
        assert both == [{}, {}]


DAEMON = """#!{python}
import os, signal, socket, sys
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if "-f" in sys.argv:
    if {fails!r}:
        sys.exit("it cannot start")
    server = socket.socket(socket.AF_UNIX)
    server.bind(folder + "/control")
    server.listen()
    open({pid!r}, "w").write(str(os.getpid()))
    while server.accept():
        pass
elif {quits!r} and sys.stdin.read().startswith("quit"):
    os.kill(int(open({pid!r}).read()), signal.SIGTERM)
"""


@pytest.mark.processes
@pytest.mark.parametrize("quits", [True, False])
def test_the_mps_daemon_ends_with_its_trial_however_that_ends(
    step: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quits: bool
) -> None:
    isolation = step("gpu_isolation")
    monkeypatch.setattr(isolation, "DAEMON_S", 5.0 if quits else 1.0)
    daemon(monkeypatch, tmp_path, quits=quits)
    folder = tmp_path / "own"
    folder.mkdir()
    with pytest.raises(ZeroDivisionError), isolation.mps(place(isolation, folder, percents=(30, 70))) as both:
        assert [each["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for each in both] == ["30", "70"]
        assert {each["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for each in both} == {"0=8192M"}
        assert {each["CUDA_MPS_PIPE_DIRECTORY"] for each in both} == {str(folder / "mps")}
        1 / 0  # noqa: B018
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() and not (folder / "mps").exists()


@pytest.mark.processes
def test_an_mps_daemon_that_cannot_start_is_a_reason(
    step: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    isolation = step("gpu_isolation")
    daemon(monkeypatch, tmp_path, fails=True)
    found = isolation._row(isolation.LEVELS[1], place(isolation, tmp_path))
    assert "it cannot start" in found["not_tried"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with contextlib.ExitStack() as stack, pytest.raises(isolation.NotHere):
        stack.enter_context(isolation.mps(place(isolation, tmp_path)))


def daemon(monkeypatch: pytest.MonkeyPatch, folder: Path, *, quits: bool = True, fails: bool = False) -> None:
    """A control daemon of paper, in PATH."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "nvidia-cuda-mps-control"
    script.write_text(DAEMON.format(python=sys.executable, fails=fails, quits=quits, pid=str(folder / "pid")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
