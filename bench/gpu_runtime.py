"""What this project can do on this GPU, step by step, each in a process of its own and in less than nine minutes: a device
runtime, suspending, taking turns, isolation.

Steps whose results are there for the same GPU and software are not run again: a run that was cut off goes on where it was. A step
that lacks something on this machine is skipped: the reason is kept as its result, and it is tried again the next time.
Needs PyTorch >= 2.11 with Triton and nothing of this project but its sources: python3 bench/gpu_runtime.py [--again] [STEP ...]
Where time on a GPU is short, --together runs the steps in one process, which compiles each network once, and TIDEWRIGHT_GPU_ROW_S
makes the rows of DISB so many seconds long.
Results go to bench/results/gpu-STEP.json. Exits with 1 where a step failed or missed a bar, 0 (with a reason) where there is no
GPU.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import lzma
import os
import platform
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]
LIMIT_S = 530
CHOICES = ROOT / "bench" / "results" / "gpu-autotune.json.xz"
"""What Inductor measured of the templates it may choose from: its own file, packed. Keys hold the settings and the device."""
RUNTIME = (
    "src/tidewright/runtime/cuda/*.py",
    "src/tidewright/runtime/padding/nvidia_rule.py",
    "bench/gpu_disb.py",
    "bench/gpu_rows.py",
    "bench/gpu_steps.py",
    "bench/gpu_timing.py",
)
"""What a step is about whose module does not say (``SOURCES``)."""


def results(step: str) -> Path:
    """Where a step's figures are kept; TIDEWRIGHT_GPU_RESULTS names another folder."""
    folder = os.environ.get("TIDEWRIGHT_GPU_RESULTS")
    return (Path(folder) if folder else ROOT / "bench" / "results") / f"gpu-{step}.json"


def machine() -> dict[str, Any]:
    """GPU and software: figures of others are not taken for these."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def code(step: str) -> str:
    """A hash of the code that the step is about, for the same reason."""
    from gpu_steps import STEPS

    function = STEPS[step]
    module = sys.modules[getattr(function, "func", function).__module__]
    named = getattr(module, "SOURCES", RUNTIME)
    sources = sorted({path for pattern in named for path in ROOT.glob(pattern)})
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def unavailable() -> str:
    """Why nothing can be measured here; empty where it can."""
    from tidewright.base.errors import UsageError
    from tidewright.runtime.cuda.compile import require_device

    try:
        require_device()
    except UsageError as error:
        return str(error)
    return ""


def kept(step: str) -> dict[str, Any]:
    """What is kept of a step; nothing where that is damaged."""
    try:
        found: dict[str, Any] = json.loads(results(step).read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return found


def done(step: str, here: dict[str, Any]) -> bool:
    """Whether the step was measured on this machine, and met its bars."""
    found = kept(step)
    wanted = {**here, "code": code(step)}
    same = {name: found.get("machine", {}).get(name) for name in wanted} == wanted
    measured = found.get("measured", {})
    return same and not measured.get("missed") and not measured.get("skipped")


def run_one(step: str) -> int:
    """In this process: measure and keep. Returns 1 where it failed, or missed a bar."""
    from gpu_steps import STEPS

    try:
        measured = STEPS[step]()
    except Exception:
        traceback.print_exc()
        return 1
    path = results(step)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {**machine(), "code": code(step), "date": datetime.date.today().isoformat()}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"machine": facts, "measured": measured}, indent=2) + "\n")
    partial.rename(path)
    missed = measured.get("missed", ())
    if measured.get("skipped"):
        print(f"{step}: SKIPPED: {measured['skipped']}")
    print(f"kept in {path}" + "".join(f"; MISSED: {text}" for text in missed))
    return 1 if missed else 0


def run_all(steps: list[str], again: bool, here: dict[str, Any]) -> int:
    """Each in a process of its own; a failure does not keep the others from being run. Returns how many failed. Those that
    were skipped are named at the end."""
    failed, skipped = 0, []
    for step in steps:
        if not again and done(step, here):
            print(f"{step}: measured already, see {results(step)}", flush=True)
            continue
        print(f"{step} ...", flush=True)
        try:
            ended = subprocess.run(
                [sys.executable, __file__, "--in-process", step], timeout=LIMIT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            print(f"{step}: not done within {LIMIT_S} s", flush=True)
            ended = 1
        failed += bool(ended)
        if not ended and kept(step).get("measured", {}).get("skipped"):
            skipped.append(step)
    if skipped:
        print(f"skipped, nothing is known of them: {', '.join(skipped)}", flush=True)
    return failed


def seed_choices(kept: Path = CHOICES) -> None:
    """Autotuning takes minutes a network: begin with what was measured on the same device and software, if anything was."""
    from torch._inductor.codecache import CacheBase

    place = CacheBase.get_local_cache_path()
    if place.exists() or not kept.exists():
        return
    text = lzma.decompress(kept.read_bytes())
    if json.loads(text)["system"]["hash"] == CacheBase.get_system()["hash"]:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)


def run_together(steps: list[str]) -> int:
    """In this process: what the device refuses after a fault, it refuses to all steps that follow. Returns how many failed."""
    failed = 0
    for step in steps:
        print(f"{step} ...", flush=True)
        failed += run_one(step)
    return failed


def main(arguments: list[str]) -> int:
    from gpu_steps import STEPS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    parser.add_argument("--again", action="store_true", help="also those that were measured here already")
    parser.add_argument("--together", action="store_true", help="in one process, whether measured already or not")
    parser.add_argument("--in-process", metavar="STEP", choices=list(STEPS), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.in_process:
        return run_one(given.in_process)
    unknown = sorted(set(given.steps) - set(STEPS))
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if why := unavailable():
        print(f"nothing is measured: {why}")
        return 0
    seed_choices()
    steps = given.steps or list(STEPS)
    return 1 if (run_together(steps) if given.together else run_all(steps, given.again, machine())) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
