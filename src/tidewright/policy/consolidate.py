"""Migrations that make whole nodes: a row that would fit, if only the free devices lay together, has others moved for it."""

from __future__ import annotations

import numpy as np

from ..estimate.cost import victim_cost
from ..model.job import Level
from ..model.node import device_count
from ..model.table import Column
from ..model.view import JobColumns, View
from ..placement.defragment import MigrationCandidate, defragment
from ..plan.request import row_request
from .compose import Composer

_ROWS = 256
"""Running rows that are looked at, those whose pause costs least: more do not free nodes much more cheaply."""


def consolidate(composer: Composer, row: int, movable: Column, most_cost: float) -> bool:
    """Start a waiting row on devices that migrations of ``movable`` rows bring together. False where that cannot be, or
    would lose more than ``most_cost`` device-microseconds.
    """
    request, board = composer.request(row), composer.board
    if not board.free_in(request.kinds) >= request.count:
        return False
    mark = board.mark()
    found = defragment(board, request, migration_candidates(composer.view, migratable(composer, movable)))
    if found is None or not found.migrated or found.cost > most_cost:
        board.undo(mark)
        return False
    composer.start_after(row, found)
    return True


def migratable(composer: Composer, movable: Column) -> Column:
    """Of ``movable`` the rows on whole devices that come back elsewhere with all they have done, and that no step moves yet."""
    jobs = composer.jobs
    able: Column = movable & ~composer.touched & comes_back(jobs)
    return able


def comes_back(jobs: JobColumns) -> Column:
    """Rows on whole devices that a migration costs nothing of what they have done. Shape (n,), bool."""
    able: Column = (jobs.level >= int(Level.COOPERATIVE)) & (jobs.level != int(Level.FREEZE)) & ~jobs.shares
    return able


def migration_candidates(view: View, able: Column, most: int = _ROWS) -> list[MigrationCandidate]:
    """The rows of ``able`` (flags) that are on one node, of the ``most`` whose pause costs least."""
    jobs, rows = view.jobs, np.flatnonzero(able)
    cost = victim_cost(jobs)[rows]
    found = []
    for at in np.argsort(cost, kind="stable")[:most].tolist():
        row = rows.item(at)
        job = jobs.id.item(row)
        mine = view.allocations[job]
        if len(mine) == 1:
            wanted = row_request(
                view.layout, view.specs[job], jobs, row, mine, device_count(mine), view.avoid.get(job, 0)
            )
            found.append(MigrationCandidate(row, mine, wanted, cost.item(at)))
    return found
