"""Why a job cannot be placed now: the binding limit, in numbers and words."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from ..model.board import Board
from ..model.node import bits
from ..model.view import View
from ..plan.reasons import Blocked, Reason
from .facts import EVERYWHERE, facts
from .find import Ask, place

_HOLDERS = 5
_REMEMBERED = 1024


def explain(view: View, board: Board, job: int, ask: Ask) -> Blocked:
    """The limit that keeps ``job`` from starting on ``board`` (the view's, with this plan's moves made), and who holds what
    it needs.
    """
    said = limit(view, board, job, ask)
    return structs.replace(said, holders=_holders(view, _kinds(ask), ask.home))


def limit(view: View, board: Board, job: int, ask: Ask) -> Blocked:
    """The same without the holders: cheap enough for every plan."""
    kinds = _kinds(ask)
    free = board.free_in(kinds) if ask.nodes == EVERYWHERE else _free_on(board, kinds, ask.nodes)
    reason, text = _limit(view, board, ask, kinds, free, job in view.avoid)
    return Blocked(job, reason, text, ask.count, free)


def _free_on(board: Board, kinds: int, nodes: int) -> int:
    of_kind = (node for node, kind in enumerate(board.layout.node_kind) if kinds >> kind & 1)
    return sum(board.free[node].bit_count() for node in of_kind if (nodes & board.up) >> node & 1)


def _kinds(ask: Ask) -> int:
    kinds = 0
    for group in ask.groups:
        kinds |= group
    return kinds


def _limit(view: View, board: Board, ask: Ask, kinds: int, free: int, refused: bool) -> tuple[Reason, str]:
    names = "/".join(view.layout.kinds[kind] for kind in bits(kinds)) or "the kind asked for"
    if ask.home >= 0:
        return _at_home(view, board, ask)
    if free < ask.count or ask.memory:
        away = _absent(board, kinds)
        if away and _fits_empty(view, ask) and not _fits_empty(view, ask, board.up):
            return Reason.NODES_DOWN, f"needs {ask.count} {names} devices; {away} are on nodes that take no work"
        if not _fits_empty(view, ask):
            return _never(ask, names, refused)
        return Reason.NO_CAPACITY, f"needs {ask.count} {names} devices, {free} are free"
    if not _fits_empty(view, ask):
        return _never(ask, names, refused)
    if not _fits_empty(view, ask, board.up):
        return Reason.NODES_DOWN, f"needs {ask.count} {names} devices together; the nodes that have them take no work"
    most = max((count for kind in bits(kinds) for count, nodes in enumerate(board.buckets[kind]) if nodes), default=0)
    return Reason.FRAGMENTED, f"needs {ask.count} {names} devices together; {free} are free, at most {most} on one node"


def _never(ask: Ask, names: str, refused: bool) -> tuple[Reason, str]:
    if refused:
        return (
            Reason.NODES_DOWN,
            f"needs {ask.count} devices on nodes that have not just refused to launch it; there are none",
        )
    if ask.nodes != EVERYWHERE:
        return (
            Reason.NODES_DOWN,
            f"its image needs {ask.count} devices on nodes like those it was taken on; there are none",
        )
    return Reason.NEVER_FITS, f"needs {ask.count} {names} devices laid out {ask.mode}; no part of the pool has them"


def _at_home(view: View, board: Board, ask: Ask) -> tuple[Reason, str]:
    name = view.layout.nodes[ask.home].name
    if not board.up >> ask.home & 1:
        return Reason.NODES_DOWN, f"its memory is frozen on {name}, which takes no work"
    there = board.free[ask.home].bit_count()
    return (
        Reason.HOME_BUSY,
        f"its memory is frozen on {name}, where {there} of the {ask.count} devices it needs are free",
    )


def _absent(board: Board, kinds: int) -> int:
    """Devices that take no work: those of nodes that take none, and those out of service."""
    down = ((1 << len(board.free)) - 1) & ~board.up
    if not down and not board.any_closed:
        return 0
    sizes, kind_of = board.layout.node_size, board.layout.node_kind
    closed = sum(
        mask.bit_count() for node, mask in enumerate(board.closed) if kinds >> kind_of[node] & 1 & ~down >> node
    )
    return closed + sum(sizes[node] for node in bits(down) if kinds >> kind_of[node] & 1)


def _fits_empty(view: View, ask: Ask, within: int = EVERYWHERE) -> bool:
    """Whether an empty pool (of these nodes) could hold it."""
    known, ask = facts(view.layout), structs.replace(ask, near=0) if ask.near else ask
    if within.bit_count() == len(view.layout.nodes):
        within = EVERYWHERE
    if within != EVERYWHERE:
        return place(known.empty, ask, within) is not None
    found = known.fits.get(ask)
    if found is None:
        if len(known.fits) >= _REMEMBERED:
            known.fits.clear()
        found = known.fits[ask] = place(known.empty, ask) is not None
    return found


def _holders(view: View, kinds: int, home: int) -> tuple[int, ...]:
    """Ids of the jobs that hold most of these kinds (or of the home node), most first."""
    jobs = view.jobs
    rows = np.flatnonzero(jobs.active)
    if home < 0:
        rows = rows[(jobs.kinds[rows] & kinds) != 0]
    else:
        there = [any(p.node == home for p in view.allocations.get(int(job), ())) for job in jobs.id[rows]]
        rows = rows[np.array(there, dtype=bool)]
    held = jobs.held[rows]
    if len(rows) > _HOLDERS:
        rows = rows[np.argpartition(-held, _HOLDERS - 1)[:_HOLDERS]]
    rows = rows[np.lexsort((jobs.id[rows], -jobs.held[rows]))]
    return tuple(int(job) for job in jobs.id[rows])
