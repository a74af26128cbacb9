"""The other commands of Slurm in a task: each says what to use here. A real Slurm's would act on jobs of other ids."""

from __future__ import annotations

import sys

from .options import StepRefused
from .srun import program

INSTEAD = {
    "sacct": "tide ps --all, tide show JOB",
    "salloc": "tide run",
    "sattach": "tide logs -f JOB",
    "sbatch": "tide submit FILE",
    "sbcast": "a directory that all nodes share",
    "scancel": "tide cancel JOB",
    "sinfo": "tide nodes",
    "squeue": "tide ps",
    "sstat": "tide show JOB",
}
"""Command of Slurm to what is used here."""


def main() -> None:
    """The program named by its first argument: exit code 1."""
    name = sys.argv.pop(1)
    program(name, lambda words: refuse(name))


def refuse(name: str) -> None:
    """Raises StepRefused, with what to use."""
    raise StepRefused(f"not there under Tidewright: use {INSTEAD[name]}")
