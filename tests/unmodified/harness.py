"""Runs a program plain, reads what it printed, and compares two runs bit for bit and line for line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.unmodified.programs import Program

LIMIT_S = 180.0
SLOTS_IN_ALL = 8
"""Of the hosts of a pool together; they share the cores of this machine."""
PORT_TRIES = 3
PORT_TAKEN = re.compile("address already in use|EADDRINUSE", re.IGNORECASE)
LINE = re.compile(r"^(?:\[\S+\]:)?(step \d+ loss \S+ rank \d+|sha256 [0-9a-f]{64} rank \d+)$")
LEFT_OUT = re.compile(r"^(TIDE|RANK|LOCAL_|WORLD_SIZE|GROUP_|ROLE_|MASTER_|NODE_RANK|TORCHELASTIC)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ranks of a run printed, by rank: the step lines in order, and the digest ("" when there was none)."""

    steps: dict[int, list[str]]
    digests: dict[int, str]


def read(logs: Mapping[str, str] | list[str]) -> Outcome:
    """Sort the lines of some logs by rank."""
    steps: dict[int, list[str]] = {}
    digests: dict[int, str] = {}
    for text in logs.values() if isinstance(logs, Mapping) else logs:
        for line in text.splitlines():
            if not (found := LINE.match(line)):
                continue
            words = found[1].split()
            rank = int(words[-1])
            if words[0] == "step":
                steps.setdefault(rank, []).append(" ".join(words[:4]))
            else:
                digests[rank] = digests.get(rank, "") + words[1]
    return Outcome(steps, digests)


def differences(plain: Outcome, other: Outcome) -> list[str]:
    """What differs, said so that a person sees at once whether lines were lost, doubled or wrong; empty: nothing."""
    found = []
    for rank in sorted(plain.digests.keys() | other.digests.keys()):
        if plain.digests.get(rank) != other.digests.get(rank):
            found.append(f"rank {rank}: digest {other.digests.get(rank)!r}, not {plain.digests.get(rank)!r}")
        found += [f"rank {rank}: {said}" for said in lines(plain.steps.get(rank, []), other.steps.get(rank, []))]
    return found if plain.digests else ["the plain run printed no digest"]


def lines(expected: list[str], seen: list[str]) -> list[str]:
    """How two lists of step lines differ."""
    if expected == seen:
        return []
    names, counts = [line.split(" loss")[0] for line in expected], Counter(line.split(" loss")[0] for line in seen)
    found = [f"{name} is lost" for name in names if not counts[name]]
    found += [f"{name} came {count} times" for name, count in counts.items() if count > 1]
    wrong = [f"{new!r} instead of {old!r}" for old, new in zip(expected, seen, strict=False) if old != new]
    return [*found[:5], *wrong[:3]] or ["lines are missing at the end"]


def user_environment(scratch: Path) -> dict[str, str]:
    """What the user's shell has: nothing of ours, one thread, caches below ``scratch``."""
    kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "HF_HOME": str(scratch / "hf"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def rank_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables of torchrun(1), as a user without a launcher would set them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "plain",
    }


def pin(pid: int, rank: int) -> None:
    """Confine a process to as many cores as a slot of the pool has: XLA divides its work, and so rounds, by their number."""
    cores = sorted(os.sched_getaffinity(0))
    size = max(1, len(cores) // SLOTS_IN_ALL)
    first = rank * size % len(cores)
    os.sched_setaffinity(pid, cores[first : first + size])


def launch_plain(program: Program, world: int, directory: Path, steps: int = 0) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of a program with nothing of ours around them; rank R writes to ``directory``/R.log."""
    directory.mkdir(parents=True)
    port, environment = free_port(), user_environment(directory.parent)
    started = []
    for rank in range(world):
        own = {} if program.workers > 1 else rank_environment(rank, world, port)
        with open(directory / f"{rank}.log", "ab") as log:
            started.append(
                subprocess.Popen(
                    program.argv(steps),
                    env={**environment, **own},
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        pin(started[-1].pid, rank)
    return started


def run_plain(program: Program, world: int, directory: Path, steps: int = 0) -> Outcome:
    """A whole plain run. Raises AssertionError with the end of the logs when a rank fails.

    A port that another program has taken since it was found free is no fault of this one: another try is made.
    """
    for _ in range(PORT_TRIES):
        codes, logs = _run_ranks(program, world, directory, steps)
        if not any(code and PORT_TAKEN.search(text) for code, text in zip(codes, logs, strict=True)):
            break
        shutil.rmtree(directory)
    assert codes == [0] * world, "\n".join(text[-1500:] for text in logs)
    outcome = read(logs)
    assert len(outcome.digests) == world * program.workers, logs
    return outcome


def _run_ranks(program: Program, world: int, directory: Path, steps: int) -> tuple[list[int | None], list[str]]:
    """Exit codes and logs of all ranks; once one has failed the others are killed."""
    ranks = launch_plain(program, world, directory, steps)
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline and not any(rank.poll() for rank in ranks):
            if all(rank.poll() == 0 for rank in ranks):
                break
            time.sleep(0.02)
        codes = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    return codes, [(directory / f"{rank}.log").read_text() for rank in range(world)]
