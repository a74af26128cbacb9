"""Steps of ``bench/gpu_runtime.py``: a training process leaves the device and comes back, in memory or by way of CRIU's image.

Needs no package but PyTorch and cuda-bindings.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_checkpoint
from tidewright.base.errors import WorldError
from tidewright.checkpoint.criu.program import ENVIRON, VARIABLE, Criu, find_criu
from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, open_api

SOURCES = (
    "bench/gpu_suspend.py",
    "bench/gpu_checkpoint.py",
    "bench/gpu_lines.py",
    "src/tidewright/checkpoint/cuda/*.py",
    "src/tidewright/checkpoint/criu/program.py",
)
"""What the figures of these steps depend on."""
GIB, ROUNDS = (1, 4), 3


def checkpoint() -> dict[str, Any]:
    """Seconds of suspend and resume by the driver, and whether the program computes the same bits. No bar for the times."""
    if why := gpu_checkpoint.unavailable():
        return {"skipped": why}
    found = []
    for gib in GIB:
        found.append(gpu_checkpoint.measure(gib * 2**30, ROUNDS))
        gpu_checkpoint.show(found[-1])
    return {"driver": gpu_checkpoint.driver_version(), "rounds": ROUNDS, "found": found, "missed": differing(found)}


def differing(found: list[dict[str, Any]]) -> list[str]:
    """The sizes after which a program computed something else."""
    return [f"bits differ after {each['gib']:g} GiB" for each in found if not each["same_bits"]]


# -- CRIU ---------------------------------------------------------------------------------------------------------------

CARRIED = Path(__file__).resolve().parents[2] / "criu"
"""A private prefix as ``tide setup criu`` makes one, brought along beside the checkout."""
PLUGIN, HELPER = "cuda_plugin.so", "cuda-checkpoint"
STEPS, IMAGED_AT = 80, 20
LIMIT_S, CRIU_S, LOOK_S = 120.0, 90.0, 0.02
TRAIN = """
import ctypes, hashlib, sys, time
import torch
path, steps, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(device)
best = torch.optim.AdamW(net.parameters())
rows = torch.randn(64, 512, device=device)
def bits():
    made = hashlib.sha256()
    for tensor in net.state_dict().values():
        there = tensor.cpu().contiguous()
        made.update(ctypes.string_at(there.data_ptr(), there.nbytes))
    return made.hexdigest()
with open(path, "a", buffering=1) as out:
    for step in range(steps):
        loss = net(rows).square().mean()
        loss.backward()
        best.step()
        best.zero_grad()
        out.write(f"{step} {float(loss.detach()).hex()}\\n")
        time.sleep(0.05)
    out.write(f"end {bits()}\\n")
"""
"""Writes the loss of each step to a file and at the end a hash of all weights. It has no pipe to us: an image has no other end
for one. No numpy, which a bare PyTorch does without."""


@dataclass(frozen=True)
class Way:
    """How device memory gets into the image. ``before`` a dump and ``after`` a restore get the pid; ``libraries``: where CRIU
    looks for plugins."""

    before: Callable[[int], object]
    after: Callable[[int], object]
    libraries: Path


def criu() -> dict[str, Any]:
    """A program on the device is imaged, ended and restored: by the product's way, the driver's calls around a CRIU without
    plugins, and by CRIU's own plugin, each where it can be had."""
    tool = find_criu(CARRIED if CARRIED.is_dir() and not os.environ.get(VARIABLE) else None)
    if isinstance(tool, str):
        return {"skipped": tool}
    with tempfile.TemporaryDirectory(prefix="tidewright-criu-") as name:
        folder = Path(name)
        rows: dict[str, Any] = {}
        for title, find in (("driver", driver_way), ("plugin", lambda place: plugin_way(tool, place))):
            way = find(folder)
            rows[title] = {"not_tried": way} if isinstance(way, str) else imaged(tool, way, folder / title, "cuda")
            print(f"CRIU {tool.version}, {title}: {rows[title]}", flush=True)
    if all("not_tried" in row for row in rows.values()):
        return {"skipped": "; ".join(f"{title}: {row['not_tried']}" for title, row in rows.items()), "rows": rows}
    return {"criu": tool.version, "rows": rows, "missed": unlike(rows)}


def unlike(rows: dict[str, Any]) -> list[str]:
    """The ways that did not bring back the program they saved."""
    tried = {title: row for title, row in rows.items() if "not_tried" not in row}
    return [f"{title}: {row['why'] or 'bits differ'}" for title, row in tried.items() if not row["same_bits"]]


def driver_way(folder: Path) -> Way | str:
    """The product's: device memory is in the host's before CRIU looks, and CRIU loads no plugin."""
    if why := gpu_checkpoint.unavailable():
        return why
    cuda, none = CudaCheckpoint(open_api()), folder / "no-plugins"
    none.mkdir(exist_ok=True)
    return Way(lambda pid: cuda.suspend([pid]), lambda pid: cuda.resume([pid]), none)


def plugin_way(tool: Criu, folder: Path) -> Way | str:
    """CRIU's plugin calls the driver by way of NVIDIA's program cuda-checkpoint, which it finds in PATH."""
    places = [Path("/usr/lib/criu"), Path("/usr/local/lib/criu"), *plugin_places(tool)]
    place = next((each for each in places if (each / PLUGIN).is_file()), None)
    if place is None:
        return f"this CRIU has no {PLUGIN}"
    if shutil.which(HELPER, path=ENVIRON["PATH"]) is None and not (place / HELPER).is_file():
        return f"{HELPER} is neither in {ENVIRON['PATH']} nor beside {PLUGIN}"
    return Way(lambda pid: None, lambda pid: None, place)


def plugin_places(tool: Criu) -> list[Path]:
    """Below the prefix that the program lies in: PREFIX/usr/sbin/criu."""
    prefix = Path(tool.command[-1]).resolve().parents[1]
    return [prefix / "lib/criu", *sorted((prefix / "lib").glob("*/criu"))]


def imaged(tool: Criu, way: Way, folder: Path, device: str) -> dict[str, Any]:
    """Whether a program that was imaged, ended and restored half-way writes what an undisturbed one does."""
    folder.mkdir()
    try:
        expected = undisturbed(folder / "plain", device)
        took, found = disturbed(tool, way, folder, device)
    except (RuntimeError, TimeoutError, WorldError, subprocess.TimeoutExpired) as error:
        return {"same_bits": False, "why": str(error)}
    return {"same_bits": found == expected, "why": "", **took}


def started(path: Path, device: str) -> subprocess.Popen[bytes]:
    """In a session of its own and with no descriptor that is open elsewhere. Its messages go to PATH.err. Not killed with its
    parent: CRIU brings that back too, and is its parent for a moment."""
    with open(f"{path}.err", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(path), str(STEPS), device],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )


def undisturbed(path: Path, device: str) -> list[str]:
    """All that the program writes."""
    process = started(path, device)
    try:
        return written(path, STEPS + 1)
    finally:
        process.kill()
        process.wait()


def disturbed(tool: Criu, way: Way, folder: Path, device: str) -> tuple[dict[str, float], list[str]]:
    """Seconds of both halves, and all that the program writes. Raises RuntimeError with the end of CRIU's log."""
    path, images = folder / "imaged", folder / "images"
    images.mkdir()
    process = started(path, device)
    pid, environment = process.pid, {"CRIU_LIBS_DIR": str(way.libraries)}
    with contextlib.ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.kill)
        written(path, IMAGED_AT)
        began = time.perf_counter()
        way.before(pid)
        run_criu(tool, ["dump", "--tree", str(pid), "--file-locks"], images, environment)
        process.wait(LIMIT_S)
        suspended = time.perf_counter() - began
        lines = path.read_text().splitlines()
        if lines[-1].startswith("end"):
            raise RuntimeError("the program had ended before its image was made")
        stack.enter_context(ending(pid, images))
        began = time.perf_counter()
        run_criu(tool, ["restore", "--restore-detached", "--pidfile", str(images / "pid")], images, environment)
        way.after(pid)
        resumed = time.perf_counter() - began
        return {"suspend_s": suspended, "resume_s": resumed}, written(path, STEPS + 1)


def run_criu(tool: Criu, arguments: list[str], images: Path, environment: dict[str, str]) -> None:
    """Raises RuntimeError with its last errors."""
    log = f"{arguments[0]}.log"
    places = [environment["CRIU_LIBS_DIR"], ENVIRON["PATH"]]
    done = subprocess.run(
        [*tool.command, *arguments, "--images-dir", str(images), "--log-file", log, "-v2", "--manage-cgroups=ignore",
         "--ghost-limit", str(2**30)],
        env={**ENVIRON, **environment, "PATH": ":".join(places)}, timeout=CRIU_S, check=False,
    )  # fmt: skip
    if done.returncode:
        text = (images / log).read_text(errors="replace") if (images / log).exists() else "no log"
        errors = [line for line in text.splitlines() if "Error" in line] or text.splitlines()[-3:]
        raise RuntimeError(f"criu {arguments[0]} ended with {done.returncode}: {' | '.join(errors[-3:])}")


@contextlib.contextmanager
def ending(pid: int, images: Path) -> Iterator[None]:
    """Ends what CRIU restored: it is no child of ours, and has no parent that would."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if TRAIN.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def written(path: Path, count: int) -> list[str]:
    """The lines of a program once there are ``count``. Raises TimeoutError."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(LOOK_S)
    errors = Path(f"{path}.err").read_text(errors="replace")[-500:]
    raise TimeoutError(f"{path.name} has not come to line {count} within {LIMIT_S:.0f} s: {errors}")
