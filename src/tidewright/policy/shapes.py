"""Shapes: all that decides whether a waiting row can be placed, so that what failed for one row is not tried for its like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..model.table import Column
from ..model.view import View

Shape = tuple[Any, ...]
"""Numbers, and last what the row asks for besides devices and their memory: () where no job of the pool does."""


def shapes_of(view: View, rows: Column) -> list[Shape]:
    """The shape of each of ``rows``."""
    jobs = view.jobs
    return list(zip(
        jobs.floor[rows].tolist(), jobs.kinds[rows].tolist(), jobs.memory[rows].tolist(),
        jobs.placement[rows].tolist(), jobs.pinned_node[rows].tolist(), jobs.ranks[rows].tolist(),
        jobs.restore_kind[rows].tolist(), _refused(view, rows).tolist(), _resources(view, rows), strict=True,
    ))  # fmt: skip


def of_shapes(view: View, rows: Column, shapes: Iterable[Shape]) -> Column:
    """Which of ``rows`` are of one of these shapes. Shape (len(rows),), bool."""
    jobs, refused = view.jobs, _refused(view, rows)
    found = np.zeros(len(rows), bool)
    for floor, kinds, memory, placement, pinned, ranks, kind, job, resources in shapes:
        same = (jobs.floor[rows] == floor) & (jobs.placement[rows] == placement) & (jobs.ranks[rows] == ranks)
        same &= (jobs.kinds[rows] == kinds) & (jobs.memory[rows] == memory)
        for column, asked in zip((jobs.gpu_milli, jobs.cpus_milli, jobs.host_memory), resources, strict=False):
            same &= column[rows] == asked
        found |= same & (jobs.pinned_node[rows] == pinned) & (jobs.restore_kind[rows] == kind) & (refused == job)
    return found


def _resources(view: View, rows: Column) -> list[tuple[int, ...]]:
    jobs = view.jobs
    if not jobs.resourced:
        return [()] * len(rows)
    columns = (jobs.gpu_milli, jobs.cpus_milli, jobs.host_memory)
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def _refused(view: View, rows: Column) -> Column:
    """The ids of those jobs that nodes refused to launch, which have a shape of their own; 0 for all others."""
    ids, refused = view.jobs.id[rows], list(view.avoid)
    return np.where(np.isin(ids, refused), ids, 0) if refused else np.zeros(len(rows), ids.dtype)
