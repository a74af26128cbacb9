"""How badly the free devices lie for the jobs that come."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.board import Board


def fragmentation(board: Board, demands: Mapping[int, float]) -> float:
    """Share of the free devices that a typical job cannot use because too few lie on one node; 0 (good) to 1.

    ``demands`` maps devices asked for on one node to how often such jobs come. This is the measure of FGD (ATC'23,
    section 3) with whole devices: a node's free devices count as lost for every demand larger than they are.
    """
    weight = sum(demands.values())
    free = sum(board.free_total)
    if not weight or not free:
        return 0.0
    lost = 0.0
    for bucket in board.buckets:
        for count, nodes in enumerate(bucket):
            too_big = sum(often for devices, often in demands.items() if devices > count)
            lost += too_big * count * nodes.bit_count()
    return lost / (weight * free)
