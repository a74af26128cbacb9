"""A batch script's job: the variables that its submission knows, what runs before its first line, and its calls of Slurm."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ...launch.environment import RANK_VARIABLES
from ...launch.inject._tidewright.slurm.others import INSTEAD
from ...launch.inject._tidewright.slurm.step import SlurmTask
from ...model.batch import GPUS, NODES, PER_TASK
from ...model.job import JobSpec
from .loaded import Submitter
from .slurm_calls import ScriptFinding, findings

_TASK_VARIABLES = sorted(name for name in RANK_VARIABLES if name.split("_")[0] not in ("MASTER", "CUDA", "NVIDIA"))
_GIVEN = {
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-task": PER_TASK,
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "mem": "SLURM_MEM_PER_NODE",
    "mem-per-cpu": "SLURM_MEM_PER_CPU",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
}
"""Variables that are there when the option is given (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"). Memory is in MiB."""


def prelude(shell: str, steps: bool) -> str:
    """What runs before a shell script, on its first line so that line numbers stay. ``shell``: its program; ``steps``: it calls
    srun, so that its programs find what Slurm sets, not what torchrun would.

    ``srun`` and the other commands learn the line that calls them. A login shell has set PATH anew. RANDOM starts alike in all
    tasks: rendezvous ids are drawn from it.
    """
    names = " ".join(sorted(("srun", "scontrol", *INSTEAD)))
    if shell == "bash":
        made = '$TIDE_CALL() { TIDE_SLURM_LINE=\\${BASH_LINENO[0]} \\"${TIDE_SLURM_BIN:-}/$TIDE_CALL\\" \\"\\$@\\"; }'
        calls = f'for TIDE_CALL in {names}; do eval "{made}"; done; unset TIDE_CALL; '
    else:
        calls = f"for TIDE_CALL in {names}; do alias $TIDE_CALL='TIDE_SLURM_LINE=$LINENO '$TIDE_CALL; done; unset TIDE_CALL; "
    unset = f"unset {' '.join(_TASK_VARIABLES)}; " if steps else ""
    return (
        'PATH="${TIDE_SLURM_BIN:-}:$PATH"; RANDOM=$((${SLURM_JOB_ID:-0} * 31 + ${SLURM_RESTART_COUNT:-0})); '
        + unset
        + calls
    )


def of_array(array: Sequence[JobSpec]) -> list[JobSpec]:
    """The members of an array with what sbatch(1) has them find."""
    indices = [member.array.index for member in array if member.array is not None]
    steps = {after - before for before, after in itertools.pairwise(indices)}
    common = {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(indices[0]),
        "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
        "SLURM_ARRAY_TASK_STEP": str(steps.pop()) if len(steps) == 1 else "1",
    }
    return [
        replace(member, env={**member.env, **common, "SLURM_ARRAY_TASK_ID": str(index)})
        for index, member in zip(indices, array, strict=True)
    ]


@dataclass(frozen=True)
class Batch:
    """What the options of a script add up to. ``counts`` and ``amounts`` (bytes): by option."""

    counts: Mapping[str, int]
    amounts: Mapping[str, int]
    ranks: int
    partition: str
    submitter: Submitter

    def variables(self, file: str) -> dict[str, str]:
        """What its tasks find, as far as it is known before they are placed; ``file`` is the script."""
        return {
            NODES: str(self.counts.get("nodes", 0)),
            "TIDE_SLURM_SCRIPT": Path(file).name,
            "SLURM_NTASKS": str(self.ranks),
            "SLURM_SUBMIT_DIR": self.submitter.workdir,
            "SLURM_SUBMIT_HOST": socket.gethostname(),
            "SLURM_JOB_PARTITION": self.partition or "default",
            **({GPUS: "1"} if self._gpus() else {}),
            **{_GIVEN[name]: str(count) for name, count in self.counts.items() if name in _GIVEN},
            **{_GIVEN[name]: str(size >> 20) for name, size in self.amounts.items()},
        }

    def findings(self, text: str) -> list[ScriptFinding]:
        """What the script's lines call that its tasks would refuse."""
        nodes = self.counts.get("nodes", 0)
        size = self.ranks // nodes if nodes and self.ranks % nodes == 0 else 0
        known = {"SLURM_NTASKS": self.ranks, "SLURM_NPROCS": self.ranks}
        if size:
            known |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
        per_node = self._gpus() // nodes if nodes else 0
        task = SlurmTask(
            self.ranks, nodes if size else 0, [size], gpus_per_node=per_node, cpus=self.counts.get("cpus-per-task", 0)
        )
        known |= {_GIVEN[name]: count for name, count in self.counts.items() if name in _GIVEN}
        return findings(text, task, {name: str(value) for name, value in known.items()})

    def _gpus(self) -> int:
        """GPUs asked for in all."""
        counts = self.counts
        return (
            counts.get("gpus-per-node", 0) * max(1, counts.get("nodes", 0))
            or counts.get("gpus", 0)
            or counts.get("gpus-per-task", 0) * self.ranks
        )
