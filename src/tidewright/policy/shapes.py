"""Shapes: all that decides whether a waiting row can be placed, so that what failed for one row is not tried for its like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..model.table import RESOURCES, Column
from ..model.view import View

Shape = tuple[int, ...]
"""Where a job of the pool asks for more than devices and their memory, what the row asks of that comes last."""


_FEW = 16
"""Rows whose shapes are read one by one: most plans end before they ask for more."""


def shapes_of(view: View, rows: Column) -> Iterator[Shape]:
    """The shape of each of ``rows``, worked out as they are asked for."""
    jobs, avoid = view.jobs, view.avoid
    if jobs.resourced:
        yield from _shapes_of(view, rows)
        return
    columns = (jobs.floor, jobs.kinds, jobs.memory, jobs.placement, jobs.pinned_node, jobs.ranks, jobs.restore_kind)
    read = [column.item for column in columns]
    for row in rows[:_FEW].tolist():
        job = jobs.id.item(row) if avoid else 0
        yield (*[item(row) for item in read], job if job in avoid else 0)
    if len(rows) > _FEW:
        yield from _shapes_of(view, rows[_FEW:])


def _shapes_of(view: View, rows: Column) -> list[Shape]:
    """The same for many rows at once."""
    jobs = view.jobs
    columns = [
        jobs.floor[rows].tolist(), jobs.kinds[rows].tolist(), jobs.memory[rows].tolist(),
        jobs.placement[rows].tolist(), jobs.pinned_node[rows].tolist(), jobs.ranks[rows].tolist(),
        jobs.restore_kind[rows].tolist(), _refused(view, rows).tolist(),
    ]  # fmt: skip
    if jobs.resourced:
        columns += [getattr(jobs, name)[rows].tolist() for name in RESOURCES]
    return list(zip(*columns, strict=True))


def of_shapes(view: View, rows: Column, shapes: Iterable[Shape]) -> Column:
    """Which of ``rows`` are of one of these shapes. Shape (len(rows),), bool."""
    jobs, refused = view.jobs, _refused(view, rows)
    found = np.zeros(len(rows), bool)
    for floor, kinds, memory, placement, pinned, ranks, kind, job, *resources in shapes:
        same = (jobs.floor[rows] == floor) & (jobs.placement[rows] == placement) & (jobs.ranks[rows] == ranks)
        same &= (jobs.kinds[rows] == kinds) & (jobs.memory[rows] == memory)
        for name, asked in zip(RESOURCES, resources, strict=False):
            same &= getattr(jobs, name)[rows] == asked
        found |= same & (jobs.pinned_node[rows] == pinned) & (jobs.restore_kind[rows] == kind) & (refused == job)
    return found


def _refused(view: View, rows: Column) -> Column:
    """The ids of those jobs that nodes refused to launch, which have a shape of their own; 0 for all others."""
    ids, refused = view.jobs.id[rows], list(view.avoid)
    return np.where(np.isin(ids, refused), ids, 0) if refused else np.zeros(len(rows), ids.dtype)
