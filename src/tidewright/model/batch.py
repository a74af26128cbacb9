"""Variables by which a job from a Slurm batch script says so: what its submission, the controller and the agents add to them.

They travel in ``JobSpec.env``, so that agents of earlier versions run such a job as any other.
"""

from __future__ import annotations

from collections.abc import Mapping

NODES = "TIDE_SLURM_NODES"
"""Set at submission: the nodes it asked for; 0: it did not say."""
GPUS = "TIDE_SLURM_GPUS"
"""Set at submission where the script asks for GPUs."""
PER_TASK = "SLURM_GPUS_PER_TASK"
"""Set at submission where the script asks for so many GPUs of each task's own."""
HOSTS = "TIDE_SLURM_HOSTS"
"""Set at launch: ``name:tasks`` of each node of the attempt, in rank order, joined by commas."""


def is_batch(env: Mapping[str, str]) -> bool:
    """Whether a job's variables say that it comes from a batch script."""
    return NODES in env


def is_placed(env: Mapping[str, str]) -> bool:
    """Whether they are those of a batch script's attempt: its nodes are known."""
    return is_batch(env) and HOSTS in env
