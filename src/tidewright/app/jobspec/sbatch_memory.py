"""sbatch(1)'s host resources, which it counts by task, node, CPU or GPU, as what each rank asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...base.errors import UsageError

_SIZE = re.compile(r"(\d{1,12})([kmgt]?)b?", re.IGNORECASE)
_UNITS = {"k": 2**10, "": 2**20, "m": 2**20, "g": 2**30, "t": 2**40}


def slurm_memory(text: str) -> int:
    """Bytes of sbatch(1) --mem: a bare number is megabytes, units are powers of 1024. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"not an amount of memory: {text!r}", "write it like 16G or 4000 (megabytes)")
    return int(match[1]) * _UNITS[match[2].lower()]


def host_of_rank(amounts: Mapping[str, int], cpus: int, nodes: int, ranks: int, devices: int) -> dict[str, Any]:
    """Fields of a JobSpec. ``amounts``: bytes by option; ``cpus``: of each task, 0 where none were asked for.

    ``--mem`` is of a node, whose ranks share it; ``--mem-per-cpu`` counts one CPU where no number was given.
    """
    found: dict[str, Any] = {"cpus_milli": 1000 * cpus} if cpus else {}
    shares = {"mem": (nodes, ranks), "mem-per-cpu": (cpus or 1, 1), "mem-per-gpu": (devices, ranks)}
    for name, amount in amounts.items():
        times, over = shares[name]
        found |= {"memory": amount * times // max(over, 1)} if amount else {}
    return found
