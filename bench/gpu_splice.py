"""Steps of ``bench/gpu_runtime.py``: two ranks of one job on one GPU, taking turns by lock or by swapping their memory.

The ideal is the time that both ranks need one after the other, each alone on the device, and their collective, with nothing
lost by taking turns. Bits are compared with those of the same two ranks without turns. Needs no package but
PyTorch and, for swapping, cuda-bindings.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_checkpoint
from gpu_lines import Lines
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, open_api
from tidewright.checkpoint.cuda.swap import DeviceSharer, SwapTimeSlicer

SOURCES = (
    "bench/gpu_splice*.py",
    "bench/gpu_lines.py",
    "src/tidewright/checkpoint/cuda/*.py",
    "src/tidewright/launch/inject/_tidewright/splice.py",
)
BAR = 0.06
"""docs/why/splice.md. Of turns by lock; nobody has set one for swapping, which moves all memory at every turn."""
WORLD = 2
LONGEST_S = 200.0
"""Of one run of either kind; an answer that takes longer is a failure, and the ranks are ended."""


@dataclass(frozen=True)
class Size:
    """Of the job: ``rows`` make a step long, ``width`` and ``depth`` make its collective long. ``rounds`` of ``steps``."""

    width: int
    depth: int
    rows: int
    steps: int
    rounds: int
    device: str = "cuda"


SIZES = {"lock": Size(512, 8, 262_144, 20, 3), "swap": Size(1024, 8, 8_192, 6, 2)}
"""By lock: 3.3 TFLOP a step and rank on 6 GB of each, and a short collective (2 M parameters), in which what turns lose could
hide. For swapping: 0.5 GB to move."""
WARM = 3


class Job:
    """Two ranks, ended with the ``with``."""

    def __init__(self, size: Size, folder: Path) -> None:
        (folder / "slots").mkdir(parents=True)
        self.boxes = [folder / f"box{rank}" for rank in range(WORLD)]
        self.ranks: list[Lines] = []
        given = {**vars(size), "world": WORLD, "store": f"{folder}/store", "slots": f"{folder}/slots"}
        self._given = [{**given, "rank": rank, "box": str(box)} for rank, box in enumerate(self.boxes)]

    def __enter__(self) -> Job:
        program = str(Path(__file__).with_name("gpu_splice_rank.py"))
        try:
            for box, given in zip(self.boxes, self._given, strict=True):
                box.mkdir()
                self.ranks.append(Lines([program, json.dumps(given)]))
            self._answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.end()

    def every(self, do: str, **values: Any) -> list[dict[str, Any]]:
        """All ranks at once."""
        for rank in self.ranks:
            rank.ask(json.dumps({"do": do, **values}))
        return self._answers()

    def each(self, do: str, **values: Any) -> list[dict[str, Any]]:
        """One rank after the other, alone on the device."""
        return [json.loads(rank.told(json.dumps({"do": do, **values}), LONGEST_S)) for rank in self.ranks]

    def _answers(self) -> list[dict[str, Any]]:
        return [json.loads(rank.answer(LONGEST_S)) for rank in self.ranks]


def splice(turns: str) -> dict[str, Any]:
    """Two ranks by turns: seconds per step over the ideal, and their bits."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return {"skipped": "this PyTorch has no gloo, and NCCL refuses two ranks on one device"}
    if turns == "swap" and (why := gpu_checkpoint.unavailable()):
        return {"skipped": why}
    found = measured(turns, SIZES[turns])
    over = f"{found['over_ideal']:+.1%} over {found['ideal_s'] * 1e3:.1f} ms"
    bar = f"bar {BAR:.0%}" if turns == "lock" else "no bar"
    print(
        f"{turns}: {found['step_s'] * 1e3:.1f} ms a step, {over} ({bar}); without turns {found['at_once_s'] * 1e3:.1f}"
    )
    return {**found, "missed": judged(turns, found)}


STEPS = {f"splice-{turns}": partial(splice, turns) for turns in SIZES}


def measured(turns: str, size: Size) -> dict[str, Any]:
    """Ideal and turns in each round of one job; then the same job, without turns."""
    with tempfile.TemporaryDirectory(prefix="tidewright-splice-") as name:
        with Job(size, Path(name) / "turns") as job:
            rounds, swaps = taking_turns(turns, size, job)
            digests = job.every("digest")
        with Job(size, Path(name) / "plain") as job:
            job.every("run", steps=WARM)
            at_once = [job.every("run", steps=size.steps)[0]["step_s"] for _ in range(size.rounds)]
            digests += job.every("digest")
    return {
        **summary(rounds),
        "at_once_s": statistics.median(at_once),
        "steps": size.steps * size.rounds,
        "swaps": swaps,
        "digests": [each["digest"] for each in digests],
        "rounds": rounds,
    }


def taking_turns(turns: str, size: Size, job: Job) -> tuple[list[dict[str, Any]], int]:
    """Figures of each round, and how often a rank was swapped out."""
    rounds, swaps = [], 0
    job.every("run", steps=WARM)
    for _ in range(size.rounds):
        solo = [each["step_s"] for each in job.each("solo", steps=size.steps)]
        collective = max(each["step_s"] for each in job.every("collective", steps=size.steps))
        job.every("share", turns=turns)
        with swapping(job) if turns == "swap" else contextlib.nullcontext([0]) as counted:
            ran = job.every("run", steps=size.steps)
        job.every("share", turns="")
        swaps += counted[0]
        total = {name: sum(each[name] for each in ran) for name in ("slices", "timeouts")}
        rounds.append({"solo_s": solo, "collective_s": collective, "step_s": max(r["step_s"] for r in ran), **total})
    return rounds, swaps


class _Counting(CudaCheckpoint):
    """Counts how often memory is moved out."""

    count = 0

    def suspend(self, pids: Any) -> None:
        self.count += 1
        super().suspend(pids)


@contextlib.contextmanager
def swapping(job: Job) -> Iterator[list[int]]:
    """The agent's part: it grants the slices, with room for one rank on the device. How often one was swapped out is known at the
    end. Raises WorldError when a swap failed."""
    cuda, swaps = _Counting(open_api()), [0]
    pids = [rank.pid for rank in job.ranks]
    sharers = [DeviceSharer(rank, (pid,), job.boxes[rank], 1) for rank, pid in enumerate(pids)]
    slicer = SwapTimeSlicer(cuda, sharers, 1, lambda: time.monotonic_ns() // 1000)
    stop, failed = threading.Event(), list[WorldError]()

    def grant() -> None:
        try:
            slicer.run(stop)
        except WorldError as error:
            failed.append(error)

    thread = threading.Thread(target=grant)
    thread.start()
    try:
        yield swaps
    finally:
        stop.set()
        thread.join()
        swaps[0] = cuda.count
        if failed:
            raise failed[0]
        cuda.resume(pids)


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds, and the median of what each is over its own ideal: so a clock that drifts is in both."""
    ideals = [ideal_s(each["solo_s"], each["collective_s"]) for each in rounds]
    ratios = [over(each["step_s"], best) for each, best in zip(rounds, ideals, strict=True)]
    return {
        "step_s": statistics.median(each["step_s"] for each in rounds),
        "ideal_s": statistics.median(ideals),
        "collective_s": statistics.median(each["collective_s"] for each in rounds),
        "over_ideal": statistics.median(ratios),
        "over_computing": statistics.median(over(each["step_s"], sum(each["solo_s"])) for each in rounds),
        "slices": sum(each["slices"] for each in rounds),
        "timeouts": sum(each["timeouts"] for each in rounds),
    }


def ideal_s(solo_s: list[float], collective_s: float) -> float:
    """Seconds of a step when the ranks compute one after the other and taking turns costs nothing. Generous by what of the
    collective can be done beside computing."""
    return sum(solo_s) + collective_s


def over(step_s: float, best_s: float) -> float:
    """By which part of the ideal a step takes longer."""
    return step_s / best_s - 1


def judged(turns: str, found: dict[str, Any]) -> list[str]:
    """What was missed, in words. Slices and swaps are counted, for ranks that took no turns would be fast and right."""
    missed = ["bits differ"] if len(set(found["digests"])) != 1 else []
    if found["slices"] < WORLD * found["steps"]:
        missed.append(f"turns: {found['slices']} in {found['steps']} steps of {WORLD} ranks")
    if found["timeouts"]:
        missed.append(f"waits: {found['timeouts']} ended without a turn")
    if turns == "lock" and found["over_ideal"] > BAR:
        missed.append(f"time: {found['over_ideal']:+.1%} over the ideal")
    # A rank that gets the device finishes one step and computes the next, so there are about as many swaps as steps.
    if turns == "swap" and 2 * found["swaps"] < found["steps"]:
        missed.append(f"swaps: {found['swaps']} in {found['steps']} steps")
    return missed
