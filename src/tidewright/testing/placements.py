"""Conformance kit for placement scores: run ``check_score(factory)`` in a test of yours. Every built-in score passes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..placement.scores.columns import ABSENT, WHOLE, NodeColumns, ShareRequest, fits
from ..placement.scores.filler import Filler
from ..placement.scores.protocol import PlacementScore

REQUESTS = (
    ShareRequest(250, 1, 2_000, 1_024), ShareRequest(600, 1, 500), ShareRequest(1_000, 1, 8_000, 4_096),
    ShareRequest(1_000, 2, 4_000), ShareRequest(1_000, 8, 16_000), ShareRequest(0, 0, 4_000, 2_048),
    ShareRequest(400, 2, 1_000), ShareRequest(1_000, 1, 1_000, kinds=0b10), ShareRequest(100, 1, 0),
)  # fmt: skip
"""Parts of a device, whole ones, several of either, none, and a certain kind."""


def random_nodes(seed: int, count: int = 30) -> NodeColumns:
    """Nodes of two kinds with none to eight devices, some of them partly in use."""
    dice = np.random.default_rng(seed)
    devices = dice.choice([0, 1, 2, 4, 8], count)
    free = np.where(np.arange(8) < devices[:, None], dice.choice([WHOLE, WHOLE, 700, 250, 0], (count, 8)), ABSENT)
    return NodeColumns(
        free.astype(np.int64), dice.integers(0, 64_000, count), dice.integers(0, 256_000, count),
        dice.integers(0, 2, count), np.full(count, WHOLE, dtype=np.int64), devices.astype(np.int64),
        dice.integers(0, 3, (count, 9)), np.arange(count, dtype=np.int64),
    )  # fmt: skip


def check_score(factory: Callable[..., PlacementScore], rounds: int = 20, **settings: Any) -> None:
    """Raises AssertionError where ``factory(**settings)`` breaks the contract of docs/placement.md.

    Checked on random nodes: finite scores where a request fits; the same from a fresh score, in other company and in another
    order; nodes are not written; devices that have room, so many as asked for, ascending; and a filling that keeps scores places
    as one that works each out anew.
    """
    assert factory(**settings).name, "a score has a name"
    for seed in range(rounds):
        nodes = random_nodes(seed)
        for request in REQUESTS:
            _check_scores(factory, settings, nodes, request)
        _check_filling(factory, settings, nodes, seed)


def _check_scores(
    factory: Callable[..., PlacementScore], settings: dict[str, Any], nodes: NodeColumns, request: ShareRequest
) -> None:
    rows = nodes.take(fits(nodes, request))
    if not len(rows.row):
        return
    before = [column.copy() for column in rows]
    score = factory(**settings)
    found = np.asarray(score.score(rows, request, 1), dtype=np.float64)
    assert found.shape == rows.row.shape and np.isfinite(found).all(), "one finite number for each node where it fits"
    again = np.asarray(factory(**settings).score(rows, request, 1), dtype=np.float64)
    assert np.array_equal(found, again), "the same nodes and request, another score"
    turned = np.asarray(score.score(rows.take(np.arange(len(found))[::-1]), request, 1), dtype=np.float64)
    assert np.array_equal(found, turned[::-1]), "a node's score depends on the order of the others"
    alone = np.array([float(score.score(rows.take(np.array([at])), request, 1)[0]) for at in range(len(found))])
    assert np.array_equal(found, alone), "a node's score depends on the others"
    for at in range(len(found)) if request.devices else ():
        _check_pick(score, rows.take(np.array([at])), request)
    assert all(np.array_equal(one, other) for one, other in zip(rows, before, strict=True)), "nodes were written"


def _check_pick(score: PlacementScore, node: NodeColumns, request: ShareRequest) -> None:
    picked = score.pick(node, request, 1)
    assert len(picked) == request.devices and list(picked) == sorted(set(picked)), (
        f"{request.devices} devices, ascending"
    )
    assert all(node.free[0, device] >= request.units for device in picked), "a device without room"


def _check_filling(
    factory: Callable[..., PlacementScore], settings: dict[str, Any], nodes: NodeColumns, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    filler, score = Filler(nodes, factory(**settings)), factory(**settings)
    for draw, which in enumerate(dice.integers(0, len(REQUESTS), 60).tolist(), 1):
        request, there = REQUESTS[which], NodeColumns(*(column.copy() for column in filler.nodes))
        placed = filler.place(request)
        room = fits(there, request)
        if not room.any():
            assert placed is None, "placed where it does not fit"
            continue
        anew = np.where(room, score.score(there, request, draw), -np.inf)
        assert placed is not None and placed.row == int(anew.argmax()), "what is kept of a score is not what it is now"
