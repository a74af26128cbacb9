"""``python -m tests.runtime.cuda.codegen [MODEL ...]``: the five models, one process each, a table, and
bench/results/codegen.json.

What is done is kept in build/codegen, so that a run that was interrupted, or in which a model took too long, goes on where
it was.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from .check import check, failures, fingerprint, versions
from .models import NAMES

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "bench" / "results" / "codegen.json"
LIMIT_S = 530
TRIES = 3
COLUMNS = (
    "model",
    "launches",
    "kernels",
    "G4",
    "G2",
    "CTAs",
    "largest grid",
    "compiled",
    "registers",
    "occupancy -/+",
    "new local",
    "errors",
)


def main(arguments: list[str]) -> int:
    folder = ROOT / "build" / "codegen" / fingerprint()
    if arguments[:1] == ["--one"]:
        result = check(arguments[1], folder)
        (folder / f"{arguments[1]}.json").write_text(json.dumps(result))
        return 0
    unknown = sorted(set(arguments) - set(NAMES))
    if unknown:
        print(f"no model is called {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    bad = []
    for name in arguments or NAMES:
        bad += [f"{name}: {one}" for one in _run(name, folder)]
    results = {name: json.loads(file.read_text()) for name in NAMES if (file := folder / f"{name}.json").exists()}
    print(_table(results))
    _keep(results)
    print("\n".join(bad) if bad else f"{RESULTS.relative_to(ROOT)} written", file=sys.stderr if bad else sys.stdout)
    return 1 if bad else 0


def _run(name: str, folder: Path) -> list[str]:
    """The failures of one model, in a process of its own: what a pretended device leaves behind ends with it."""
    done = folder / f"{name}.json"
    if not done.exists():
        print(f"{name}: generating and compiling", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        # Shared by all fingerprints: their entries are named by what they were made of.
        caches = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        environment = os.environ | {variable: str(folder.parent / cache) for variable, cache in caches.items()}
        command = [sys.executable, "-m", __package__, "--one", name]
        with (folder / f"{name}.log").open("a") as log:
            code = _attempts(command, environment, log)
        if code is None:
            return [f"not done within {TRIES} times {LIMIT_S} s; run it again, it goes on where it was"]
        if code:
            return [f"exit {code}; see {(folder / f'{name}.log').relative_to(ROOT)}"]
    return failures(json.loads(done.read_text()))


def _attempts(command: list[str], environment: dict[str, str], log: TextIO) -> int | None:
    """The exit code, None where time was up at each try. A try goes on where the one before was."""
    for _ in range(TRIES):
        with contextlib.suppress(subprocess.TimeoutExpired):
            run = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=LIMIT_S, check=False
            )
            return run.returncode
    return None


def _table(results: dict[str, Any]) -> str:
    rows = [COLUMNS, *(_row(name, result) for name, result in results.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for name, result in results.items():
        lines += [
            f"{name}: {one['level']} {one['kernel']} x{one['launches']}: {one.get('reason')} ({one.get('where')})"
            for one in result["below_the_gate"]
        ]
    return "\n".join(lines)


def _row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    cost = result["gate_cost"]
    registers = cost["registers"]
    return (
        name,
        str(result["launches"]),
        str(result["kernels"]),
        str(result["levels"]["G4"]),
        str(result["levels"]["G2"]),
        str(result["ctas"]["chain"]),
        str(result["ctas"]["largest_grid"]),
        str(cost["compiled_both"]),
        f"{registers['least']:+d}..{registers['most']:+d} mean {registers['mean']:+.2f}",
        f"{cost['occupancy_lower']}/{cost['occupancy_higher']}",
        str(cost["local_memory_new"]),
        str(len(result["errors"])),
    )


def _keep(results: dict[str, Any]) -> None:
    machine = {"date": datetime.date.today().isoformat(), "python": platform.python_version(), **versions()}
    about = "compiled for sm_90 without a GPU, first autotuning choice of each kernel; nothing was run or timed"
    RESULTS.write_text(json.dumps({"machine": machine, "about": about, "measured": results}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
