"""Pods that arrive and never leave: each is placed by a score or counted as failed, and the rest is judged as FGD's authors do.

Deterministic; how long it takes is measured by the caller.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from ...placement.scores.columns import Floats, Ints, NodeColumns, ShareRequest, fits
from ...placement.scores.fgd import typical_pods
from ...placement.scores.filler import Filler
from ...placement.scores.fragments import fragmentation, typical_columns
from ...placement.scores.protocol import PlacementScore
from .openb import FillTrace

Progress = Callable[[int, int], None]
"""Called now and then with (pods so far, pods in all)."""
PERCENTS = 131
"""Points of a curve: 0 to 130 % of the devices asked for."""
_OFTEN = 512


class Fill(Struct, frozen=True):
    """What became of each arrival, in order. ``row`` is that of the node, -1 for a failed pod."""

    row: Ints
    free: Ints
    """[arrivals, G] the node's free units afterwards; only where one was found."""
    cpu: Ints
    """Its free millicores afterwards; only where one was found."""


class FillFigures(Struct, frozen=True, kw_only=True):
    """Of one filling. Curves are per cents by how much of the devices was asked for so far: means over the arrivals that round to
    0, 1, … 130 %, as in the artifact of FGD (ATC'23), the last one with all beyond; nan where none does."""

    pods: int
    placed: int
    failed: int
    refusals: dict[str, int]
    """Failed pods by reason: ``kind`` and ``size`` could never be placed, ``full`` found the nodes full."""
    allocation: Floats
    """Units given to pods, of all."""
    fragmentation: Floats
    """Fragments after FGD (section 3.2), of all units."""
    fragment_ratio: Floats
    """Fragments, of the units that are free."""


def run_fill(trace: FillTrace, score: PlacementScore, progress: Progress | None = None) -> Fill:
    """Place the arrivals of ``trace`` one after another."""
    nodes = trace.nodes.in_order(trace.arrivals.nodes)
    filler, order = Filler(nodes, score), trace.arrivals.pods
    rows = np.full(len(order), -1, dtype=np.int64)
    free, cpu = np.zeros((len(order), nodes.free.shape[1]), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    for at, pod in enumerate(order.tolist()):
        placed = filler.place(trace.pods.requests[pod])
        if placed is not None:
            rows[at], free[at], cpu[at] = placed.row, filler.nodes.free[placed.row], filler.nodes.cpu[placed.row]
        if progress is not None and not at % _OFTEN:
            progress(at, len(order))
    return Fill(rows, free, cpu)


def judge_fill(trace: FillTrace, fill: Fill) -> FillFigures:
    """Allocation, fragmentation and failed pods."""
    nodes = trace.nodes.in_order(trace.arrivals.nodes)
    requests = [trace.pods.requests[pod] for pod in trace.arrivals.pods.tolist()]
    asked = np.array([request.total for request in requests], dtype=np.int64)
    capacity, placed = max(int(nodes.idle().sum()), 1), fill.row >= 0
    used = np.cumsum(np.where(placed, asked, 0))
    lost = _fragments(trace, nodes, fill)
    idle = np.maximum(capacity - used, 1)
    percent = np.round(100 * np.minimum(np.cumsum(asked) / capacity, (PERCENTS - 1) / 100)).astype(np.int64)
    refusals = _refusals(nodes, [request for request, fine in zip(requests, placed.tolist(), strict=True) if not fine])
    return FillFigures(
        pods=len(requests), placed=int(placed.sum()), failed=sum(refusals.values()), refusals=refusals,
        allocation=_curve(percent, 100 * used / capacity), fragmentation=_curve(percent, 100 * lost / capacity),
        fragment_ratio=_curve(percent, 100 * lost / idle),
    )  # fmt: skip


def _fragments(trace: FillTrace, nodes: NodeColumns, fill: Fill) -> Floats:
    """F of all nodes together after each arrival, in units."""
    typical = typical_columns(typical_pods(trace.pods.requests))
    at = np.flatnonzero(fill.row >= 0)
    last = fragmentation(nodes.free, nodes.cpu, typical, nodes.kind)
    each = fragmentation(fill.free[at], fill.cpu[at], typical, nodes.kind[fill.row[at]])
    changes = np.zeros(len(fill.row))
    start = float(last.sum())
    for arrival, row, now in zip(at.tolist(), fill.row[at].tolist(), each.tolist(), strict=True):
        changes[arrival] = now - last[row]
        last[row] = now
    found: Floats = (start + np.cumsum(changes)) / max(typical.total, 1.0)
    return found


def _refusals(nodes: NodeColumns, failed: list[ShareRequest]) -> dict[str, int]:
    """Failed pods by reason, in the order kind, size, full; those without any are left out."""
    counts = dict.fromkeys(("kind", "size", "full"), 0)
    known: dict[ShareRequest, str] = {}
    for request in failed:
        if request not in known:
            known[request] = _reason(nodes, request)
        counts[known[request]] += 1
    return {reason: count for reason, count in counts.items() if count}


def _reason(empty: NodeColumns, request: ShareRequest) -> str:
    """Why a pod was not placed, by what the empty nodes could hold."""
    if request.kinds and not ((request.kinds >> empty.kind) & 1).any():
        return "kind"
    return "full" if fits(empty, request).any() else "size"


def _curve(percent: Ints, values: Floats) -> Floats:
    """Means of values by per cent; where none is exactly there, of its neighbours."""
    found = np.full(PERCENTS, np.nan)
    for at in range(PERCENTS):
        here = percent == at
        if not here.any():
            here = np.abs(percent - at) <= 1
        if here.any():
            found[at] = values[here].mean()
    return found
