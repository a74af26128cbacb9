"""A step of ``bench/gpu_runtime.py``: what keeps two processes on one GPU to their shares, level by level.

Memory: a process takes one byte more than its share at once, and then all that it gets; the other must compute on as before.
Compute: multiprocessors by MPS at 30 and 70 %, both at once. The levels, and what each sets in a process, are
the product's own (``kube.isolation``). Needs no package but PyTorch; the driver's limits need pynvml.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_lines import Lines, end_with_parent
from gpu_nvml import uuid_of
from tidewright.base.errors import WorldError
from tidewright.kube.isolation.isolation_levels import Cooperative, Hami, IsolationSettings, Mps
from tidewright.kube.isolation.ladder import ALL_SMS, Grant, Tenant
from tidewright.kube.node.gpus import Gpu

SOURCES = ("bench/gpu_isolation.py", "bench/gpu_lines.py", "bench/gpu_nvml.py", "src/tidewright/kube/isolation/*.py")
SPLIT, WITHIN = (30, 70), 0.05
"""Percent of the multiprocessors, and how far the split of throughput may be from that."""
MOST_SHARE, USABLE = 8 * 2**30, 0.5
"""The share of each in the trial of memory: an eighth of the device, at most this. So much of it at least must be usable: CUDA's
own 300 to 500 MiB a process may count (docs/kubernetes-isolation.md)."""
WORK_S, WARM_S, DAEMON_S = 10.0, 1.0, 15.0
CONTROL = "nvidia-cuda-mps-control"
CGROUPS, LIMITED_BY = Path("/sys/fs/cgroup"), "BENCH_CGROUP"
PROGRAM = """
import ctypes, hashlib, os, sys, time
if os.environ.get("BENCH_CGROUP"):
    with open(os.environ["BENCH_CGROUP"] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
import torch
taken, device = [], sys.argv[1]
torch.manual_seed(0)
matrix = torch.randn(1024, 1024, device=device)
def take(count):
    try:
        taken.append(torch.empty(int(count), dtype=torch.uint8, device=device).fill_(1))
    except torch.OutOfMemoryError:
        return "oom"
    return "ok"
def fill(chunk, most):
    had = len(taken)
    while (len(taken) - had) * int(chunk) < int(most) and take(chunk) == "ok":
        pass
    return (len(taken) - had) * int(chunk)
def free():
    taken.clear()
    torch.cuda.empty_cache()
    return "ok"
def raw(count):
    library, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    code = library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(count)))
    if code == 0:
        library.cuMemFree_v2(pointer)
    return {0: "ok", 2: "oom"}.get(code, f"CUresult {code}")
def digest():
    value = matrix
    for _ in range(20):
        value = (value @ matrix).mul_(0.03)
    there = value.cpu().contiguous()
    return hashlib.sha256(ctypes.string_at(there.data_ptr(), there.nbytes)).hexdigest()[:16]
def work(seconds, side):
    factor = torch.randn(int(side), int(side), device=device, dtype=torch.half)
    product, count, began = torch.empty_like(factor), 0, time.monotonic()
    while (now := time.monotonic()) - began < float(seconds):
        for _ in range(8):
            torch.mm(factor, factor, out=product)
        if device != "cpu":
            torch.cuda.synchronize()
        count += 8
    return count / (now - began)
orders = {each.__name__: each for each in (take, fill, free, raw, digest, work)}
print("ready", flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    print(orders[name](*arguments), flush=True)
"""
"""Does what each line of its input says. ``raw`` goes past PyTorch's allocator, as a program does that listens to nobody."""


class NotHere(Exception):
    """A level that this host does not allow, and why."""


@dataclass(frozen=True)
class Place:
    """Where levels are tried: the device, a folder of our own, bytes of each share, percent of the multiprocessors of each."""

    gpu: Gpu
    folder: Path
    share: int
    percents: tuple[int, int] = (ALL_SMS, ALL_SMS)

    def tenants(self) -> list[Tenant]:
        """The two containers that the processes stand for."""
        grants, listens = (Grant(self.gpu, self.share >> 20),), frozenset({"torch"})
        return [Tenant(f"bench{at}", "main", grants, each, cooperates=listens) for at, each in enumerate(self.percents)]


Environments = list[Mapping[str, str]]


# -- levels: each gives the variables of both processes, or raises NotHere ----------------------------------------------


@contextlib.contextmanager
def nothing(place: Place) -> Iterator[Environments]:
    """No level at all. A trial that holds here would prove nothing elsewhere."""
    yield [{}, {}]


@contextlib.contextmanager
def cooperative(place: Place) -> Iterator[Environments]:
    """L1: PyTorch keeps to it, raw allocations do not."""
    yield [Cooperative().edits(tenant).env for tenant in place.tenants()]


@contextlib.contextmanager
def hami(place: Place) -> Iterator[Environments]:
    """L2: with the library of the node by LD_PRELOAD instead of a mount over /etc/ld.so.preload."""
    there = IsolationSettings().hami
    if why := Hami(there).why_not():
        raise NotHere(f"{why}: HAMi-core is not part of this project")
    library = str(there / "libvgpu.so")
    (place.folder / "hami").mkdir()
    made = []
    for tenant in place.tenants():
        env = dict(Hami(place.folder / "hami").edits(tenant).env)
        cache = str(place.folder / "hami" / f"{tenant.uid}.cache")
        made.append({**env, "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache, "LD_PRELOAD": library})
    yield made


@contextlib.contextmanager
def mps(place: Place) -> Iterator[Environments]:
    """L3: under a control daemon of our own, in the foreground so that its end is ours to see to."""
    if shutil.which(CONTROL) is None:
        raise NotHere(f"{CONTROL} is not installed")
    pipes = place.folder / "mps"
    pipes.mkdir(mode=0o700)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    # With this the daemon would number the devices anew, and clients that have it too would miss theirs.
    every = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with open(pipes / "out", "wb") as out:
        daemon = subprocess.Popen(
            [CONTROL, "-f"], env={**every, **own}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        ends = time.monotonic() + DAEMON_S
        while why := Mps(pipes).why_not():
            if daemon.poll() is not None or time.monotonic() > ends:
                said = (pipes / "out").read_text(errors="replace").strip()[-300:]
                raise NotHere(f"{why} after {CONTROL} was started: {said or 'it said nothing'}")
            time.sleep(0.1)
        # The containers' mount of the folder is the folder itself here.
        yield [{**Mps(pipes).edits(tenant).env, **own} for tenant in place.tenants()]
    finally:
        _end_mps(daemon, own)
        shutil.rmtree(pipes, ignore_errors=True)


def _end_mps(daemon: subprocess.Popen[bytes], own: Mapping[str, str]) -> None:
    """Asked first: it ends its server, which would keep the device."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if daemon.poll() is None:
            subprocess.run(
                [CONTROL], input=b"quit -t 5\n", env={**os.environ, **own}, timeout=DAEMON_S, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            daemon.wait(DAEMON_S)
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait()


@contextlib.contextmanager
def driver_limits(place: Place) -> Iterator[Environments]:
    """L4: by a cgroup for each process, as the device plugin does it for pods."""
    from tidewright.kube.node.nvidia import NvidiaGpus

    try:
        gpus = NvidiaGpus()
        at = next((one.index for one in gpus.found() if one.uuid == place.gpu.uuid), None)
    except WorldError as error:
        raise NotHere(str(error)) from error
    if at is None:
        raise NotHere(f"NVML knows no GPU {place.gpu.uuid}")
    if not (CGROUPS / "cgroup.controllers").exists():
        raise NotHere(f"no cgroup v2 at {CGROUPS}")
    folders = [CGROUPS / f"tidewright-bench-{os.getpid()}-{tenant.uid}" for tenant in place.tenants()]
    with contextlib.ExitStack() as stack:
        try:
            for folder in folders:
                folder.mkdir()
                stack.callback(_remove, folder)
                gpus.limit(at, folder, place.share >> 20)
        except (OSError, WorldError) as error:
            raise NotHere(str(error)) from error
        yield [{LIMITED_BY: str(folder)} for folder in folders]


def _remove(folder: Path) -> None:
    """A cgroup is busy until its last process is reaped."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


@dataclass(frozen=True)
class Level:
    """``enforced``: also for a program that does not listen."""

    title: str
    enter: Callable[[Place], contextlib.AbstractContextManager[Environments]]
    enforced: bool


CONTROL_ROW = Level("none", nothing, False)
LEVELS = (
    Level("L4 driver limits", driver_limits, True),
    Level("L3 MPS", mps, True),
    Level("L2 HAMi-core", hami, True),
    Level("L1 cooperative", cooperative, False),
)
NEVER = {
    "L5 MIG": "needs instances, which are made beforehand and take the GPU away from all that use it",
    "L0 watchdog": "evicts pods of a Kubernetes cluster; it keeps nobody from taking memory",
}
"""Levels of the ladder that a bench on one GPU does not try, and why."""


# -- trials -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def programs(place: Place, environments: Environments, device: str = "cuda") -> Iterator[list[Lines]]:
    """Both processes. An MPS daemon that the host may have is kept out, except for the one that an environment names."""
    nowhere = {"CUDA_MPS_PIPE_DIRECTORY": str(place.folder / "no-mps")}
    with contextlib.ExitStack() as stack:
        found = []
        for environment in environments:
            found.append(Lines(["-c", PROGRAM, device], {**nowhere, **environment}))
            stack.callback(found[-1].end)
        for one in found:
            one.answer()
        yield found


def memory_trial(greedy: Lines, other: Lines, share: int) -> dict[str, Any]:
    """What one process gets beyond its share, and whether the other computes as before and can have memory of its own."""
    before = other.told("digest")
    found: dict[str, Any] = {"share": share, "one_byte_more": greedy.told(f"take {share + 1}")}
    greedy.told("free")
    found["raw"] = greedy.told(f"raw {share + 1}")
    found["taken"] = int(greedy.told(f"fill {share // 64} {2 * share}"))
    found["other_takes"] = other.told(f"take {share // 4}")
    found["unharmed"] = other.told("digest") == before and found["other_takes"] == "ok"
    return found


def compute_trial(place: Place) -> dict[str, Any]:
    """Throughput of both at once, products of matrices per second."""
    with mps(place) as environments, programs(place, environments) as both:
        for seconds in (WARM_S, WORK_S):
            for one in both:
                one.ask(f"work {seconds} 4096")
            rates = [float(one.answer()) for one in both]
    return {"percents": list(place.percents), "per_s": rates, "split": rates[0] / sum(rates)}


def isolation() -> dict[str, Any]:
    """Each level that this host allows; the step is skipped where none of them would hold a program that does not listen."""
    with tempfile.TemporaryDirectory(prefix="tidewright-mps-") as name:
        place = here(Path(name))
        rows = {level.title: _row(level, place) for level in (CONTROL_ROW, *LEVELS)}
        rows |= {title: {"not_tried": why} for title, why in NEVER.items()}
        for title, row in rows.items():
            print(f"{title}: {row}", flush=True)
        compute = _tried(lambda: compute_trial(Place(place.gpu, place.folder, place.gpu.memory_mib << 19, SPLIT)))
        print(f"compute by MPS at {SPLIT} %: {compute}", flush=True)
    return judged(rows, compute)


def here(folder: Path) -> Place:
    """The first device."""
    import torch

    found = torch.cuda.get_device_properties(0)
    gpu = Gpu(0, uuid_of(found), found.total_memory >> 20, found.name, physical=0)
    return Place(gpu, folder, min(MOST_SHARE, (gpu.memory_mib // 8) << 20))


def _row(level: Level, place: Place) -> dict[str, Any]:
    def trial() -> dict[str, Any]:
        with level.enter(place) as environments, programs(place, environments) as both:
            return memory_trial(*both, place.share)

    return _tried(trial)


def _tried(trial: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Its figures; or why it was not tried, or how it failed: other levels are tried all the same."""
    try:
        return trial()
    except NotHere as error:
        return {"not_tried": str(error)}
    except (EOFError, TimeoutError, ValueError, WorldError) as error:
        return {"failed": str(error)}


# -- judgement ----------------------------------------------------------------------------------------------------------


def judged(rows: dict[str, Any], compute: dict[str, Any]) -> dict[str, Any]:
    """All figures, what was missed, and why the step counts as skipped if it does."""
    missed = [f"{level.title}: {text}" for level in LEVELS for text in memory_misses(rows[level.title], level.enforced)]
    control = rows[CONTROL_ROW.title]
    if "failed" in control or not control["one_byte_more"] == control["raw"] == "ok":
        missed.append("none: without any level a process does not get more than its share, so the trials prove nothing")
    missed += compute_misses(compute)
    enforcing = [level.title for level in LEVELS if level.enforced]
    found = {"levels": rows, "compute": compute, "missed": missed}
    if all("not_tried" in rows[title] for title in enforcing):
        return {**found, "skipped": "; ".join(f"{title}: {rows[title]['not_tried']}" for title in enforcing)}
    return found


def memory_misses(row: dict[str, Any], enforced: bool) -> list[str]:
    """What a level did not hold, in words; nothing for one that was not tried."""
    if "not_tried" in row:
        return []
    if "failed" in row:
        return [row["failed"]]
    missed = []
    if row["one_byte_more"] != "oom":
        missed.append(f"one byte over the share: {row['one_byte_more']} instead of out of memory")
    if enforced and row["raw"] != "oom":
        missed.append(f"past the allocator of PyTorch: {row['raw']} instead of out of memory")
    if row["taken"] > row["share"]:
        missed.append(f"took {row['taken']} bytes of {row['share']}")
    if row["taken"] < USABLE * row["share"]:
        missed.append(f"only {row['taken']} bytes of {row['share']} can be used")
    if not row["unharmed"]:
        missed.append("the other process was harmed")
    return missed


def compute_misses(compute: dict[str, Any]) -> list[str]:
    """Whether throughput was split as the multiprocessors were."""
    if "failed" in compute:
        return [f"compute: {compute['failed']}"]
    if "not_tried" in compute:
        return []
    wanted = compute["percents"][0] / sum(compute["percents"])
    if abs(compute["split"] - wanted) <= WITHIN:
        return []
    return [f"compute: split {compute['split']:.1%}, wanted {wanted:.0%} within {100 * WITHIN:.0f} points"]
