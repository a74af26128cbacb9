"""The file of pods that were allocated GPUs on this node. The API server removes a pod that is deleted with grace period 0 at
once, while its containers run on. The file lies beside the CDI files under a name that no runtime reads, and like them is
removed when the node boots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import UsageError, WorldError
from ..node.atomic_files import remove_drafts, write_whole
from ..objects.quantity import whole

NAME = ".tidewright-allocations"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """Units by GPU index of one pod, as of its first container. ``name``: with its namespace."""

    uid: str
    name: str
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """By uid. ``candidates``: pods of the kubelet's checkpoint, read where there was no record, of which it is not known yet
    whether they are deleted and run on."""

    allocated: dict[str, PodAllocation] = field(default_factory=dict)
    candidates: dict[str, PodAllocation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocationFile:
    """``path``: absent while there is nothing to record. ``unit_mib``: MiB of one unit, in the file perhaps another."""

    path: Path
    unit_mib: int = 1024

    def load(self) -> AllocationRecord:
        """In units of this run: a part of one counts as a whole. Raises WorldError when the file exists and cannot be read."""
        try:
            return _parsed(json.loads(self.path.read_text()), self.unit_mib)
        except FileNotFoundError:
            return AllocationRecord()
        except (OSError, UsageError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WorldError(f"{self.path} cannot be read: {type(error).__name__} {error}") from error

    def save(self, allocated: Iterable[PodAllocation], candidates: Iterable[PodAllocation] = ()) -> None:
        """Atomically; two empty sets remove the file. Raises WorldError."""
        pods, unverified = _written(allocated), _written(candidates)
        found = {"format": FORMAT, "unit_mib": self.unit_mib, "pods": pods}
        try:
            if pods or unverified:
                # A key of its own, which earlier versions pass over: they must not take these for admitted pods.
                text = json.dumps(found | ({"orphan_candidates": unverified} if unverified else {}))
                write_whole(self.path, text, f"{NAME}-")
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise WorldError(f"{self.path} cannot be written: {error}") from error

    def sweep(self) -> None:
        """Remove what a run that was killed left half written. Raises WorldError."""
        try:
            remove_drafts(self.path.parent, f"{NAME}-")
        except OSError as error:
            raise WorldError(f"{self.path.parent} cannot be cleaned up: {error}") from error


def _written(allocations: Iterable[PodAllocation]) -> dict[str, Any]:
    return {one.uid: {"name": one.name, "units": {str(gpu): n for gpu, n in one.units.items()}} for one in allocations}


def _parsed(found: Any, unit_mib: int) -> AllocationRecord:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']!r} is unknown")
    if not (was_mib := whole(found.get("unit_mib", unit_mib), "unit_mib")):
        raise ValueError("a unit of 0 MiB")
    parts = (found["pods"], found.get("orphan_candidates", {}))
    return AllocationRecord(*(_read(pods, was_mib, unit_mib) for pods in parts))


def _read(pods: Any, was_mib: int, unit_mib: int) -> dict[str, PodAllocation]:
    return {
        str(uid): PodAllocation(
            str(uid), str(one["name"]),
            {whole(gpu, "GPU index"): -(-whole(n, "units") * was_mib // unit_mib) for gpu, n in one["units"].items()},
        )
        for uid, one in pods.items()
    }  # fmt: skip
