"""How many processes a job has when its user did not say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ...model.job import JobSpec

_LAUNCHERS = frozenset(
    ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun", "mpiexec")
)
"""Programs that start one process per device themselves."""


def default_ranks(command: Sequence[str], devices: int) -> int:
    """Processes of a job whose user did not say: one for each device, or one if the program starts its ranks itself."""
    words = [PurePath(word).name for text in command for word in text.split()]
    return 1 if any(word in _LAUNCHERS for word in words) else devices


def ranks_note(spec: JobSpec) -> str:
    """What became of a choice left open, for a job of several devices; empty when there is nothing to say."""
    if spec.devices < 2:
        return ""
    if spec.ranks == 1:
        return f"the command starts its own ranks: one process gets all {spec.devices} devices"
    return f"{spec.ranks} ranks are started, as torchrun would; for one process with all devices add --ranks 1"
