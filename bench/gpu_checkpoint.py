"""Device memory of a PyTorch program to the host and back, on a real GPU. Skips, and says why, where there is none.

Measures suspend (lock and checkpoint, until the device is free) and resume (restore and unlock) over sizes of device
memory, and compares what the program computes with an undisturbed one, bit by bit. There is no bar: nobody has measured
this on the project's hardware yet. The step ``checkpoint`` of ``bench/gpu_runtime.py`` does the same with two sizes.

Run: python bench/gpu_checkpoint.py [--rounds 5] [--gib 1,4,16]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu_lines import Lines
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, open_api

STEPS = 50
PROGRAM = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(1024, 1024, bias=False).cuda()
ballast = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda").random_(0, 255)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
batch = torch.randn(64, 1024, device="cuda")
print("ready", torch.cuda.get_device_name(), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
    print(float(loss.detach().double()).hex(), int(ballast.sum(dtype=torch.int64)), flush=True)
"""
"""Trains as many steps as each line of its input says, and prints what would change if a byte of memory did."""


class Program(Lines):
    """A PyTorch program that holds ``ballast`` bytes of device memory and does what it is told."""

    def __init__(self, ballast: int) -> None:
        super().__init__(["-c", PROGRAM, str(ballast)])
        try:
            self.device = self.answer().removeprefix("ready").strip()
        except (EOFError, TimeoutError):
            self.end()
            raise


def unavailable() -> str:
    """Why nothing can be measured here; empty when it can."""
    try:
        verdict = CudaCheckpoint(open_api()).can()
        torch: Any = import_module("torch")
    except (WorldError, ImportError) as error:
        return str(error)
    if not verdict.ok:
        return verdict.reason
    return "" if torch.cuda.is_available() else "this PyTorch was built without CUDA, or sees no device"


def driver_version() -> str:
    """Of the kernel module, e.g. 580.65.06."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return "unknown"


def measure(ballast: int, rounds: int) -> dict[str, Any]:
    """Medians in seconds, and whether the program computed what an undisturbed one did."""
    cuda = CudaCheckpoint(open_api())
    disturbed = Program(ballast)
    with contextlib.ExitStack() as stack:
        stack.callback(disturbed.end)
        plain = Program(ballast)
        stack.callback(plain.end)
        took: dict[str, list[float]] = {"suspend": [], "resume": []}
        same = True
        for _ in range(rounds):
            for program in (disturbed, plain):
                program.ask(str(STEPS))
            began = time.perf_counter()
            cuda.suspend([disturbed.pid])
            halfway = time.perf_counter()
            cuda.resume([disturbed.pid])
            took["suspend"].append(halfway - began)
            took["resume"].append(time.perf_counter() - halfway)
            same &= disturbed.answer() == plain.answer()
        medians = {f"{name}_s": statistics.median(values) for name, values in took.items()}
        return {"gib": ballast / 2**30, "device": plain.device, "same_bits": same, **medians}


def show(found: dict[str, Any]) -> None:
    """Print a row."""
    print(
        f"{found['gib']:5.1f} GiB on {found['device']}: suspend {found['suspend_s']:.2f} s, "
        f"resume {found['resume_s']:.2f} s, bits {'the same' if found['same_bits'] else 'DIFFER'}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", default="1,4,16")
    args = parser.parse_args()
    if why := unavailable():
        print(f"skipped: {why}")
        return 0
    found = [measure(int(float(gib) * 2**30), args.rounds) for gib in args.gib.split(",")]
    for each in found:
        show(each)
    from facts import keep  # needs packages of the project, which a step of gpu_runtime.py does without

    print(f"kept in {keep('gpu_checkpoint', {'driver': driver_version(), 'rounds': args.rounds, 'found': found})}")
    return 0 if all(each["same_bits"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
