"""Migrations that make whole nodes: a row that would fit, if only the free devices lay together, has others moved for it."""

from __future__ import annotations

import numpy as np

from ..estimate.cost import victim_cost
from ..model.job import Level
from ..model.node import device_count
from ..model.table import Column
from ..model.view import JobColumns, View
from ..placement.defragment import MigrationCandidate, defragment
from ..plan.request import Request, row_request
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
    view = composer.view
    candidates = migration_candidates(view, migratable(composer, movable))
    found = defragment(board, request, candidates, lambda one: elsewhere(view, one))
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
    order = np.argsort(cost, kind="stable")[:most]
    rows, cost = rows[order], cost[order]
    single = jobs.lone_node[rows] > 0
    picked = rows[single]
    listed = zip(picked.tolist(), jobs.id[picked].tolist(), cost[single].tolist(), strict=True)
    held = ((row, view.allocations[job], price) for row, job, price in listed)
    return [MigrationCandidate(row, mine, device_count(mine), price) for row, mine, price in held]


def elsewhere(view: View, one: MigrationCandidate) -> Request:
    """What a row may have on other nodes."""
    job = view.jobs.id.item(one.row)
    return row_request(
        view.layout, view.specs[job], view.jobs, one.row, one.allocation, one.devices, view.avoid.get(job, 0)
    )
