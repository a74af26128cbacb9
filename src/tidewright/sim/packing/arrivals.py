"""In which order pods arrive, and which node is taken among equals: as exported from FGD's own runs, or drawn by seed here.

An exported file has two lines for each seed: ``nodes_SEED p0 p1 …``, where p_i is the rank of node i among equals (nodes sorted
by name), and ``SEED id id …``, the pods in order, each by its name or by the last four characters of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

from ...base.errors import UsageError
from ...placement.scores.columns import Ints
from ..stream import open_lines
from .tables import NodeTable, PodTable

TUNED = 1.3
"""FGD's evaluation (section 6.1) lets pods arrive until they ask for so many times the cluster's devices."""
_REMEDY = "give the order file that belongs to the lists of nodes and pods, or another seed"


class Arrivals(Struct, frozen=True):
    """``pods``: indices into PodTable, in order of arrival; ``nodes``: indices into NodeTable, the first among equals first."""

    pods: Ints
    nodes: Ints
    exported: bool


def read_arrivals(path: Path, seed: int, nodes: NodeTable, pods: PodTable) -> Arrivals | None:
    """What ``path`` holds for ``seed``; None when it holds nothing for it. Raises UsageError with the line of a mistake."""
    found: dict[str, tuple[int, list[str]]] = {}
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            name, _, rest = line.partition(" ")
            if name.strip() in (str(seed), f"nodes_{seed}"):
                found[name.strip()] = number, rest.split()
    if not found:
        return None
    if len(found) < 2:
        raise UsageError(
            f"{path}: seed {seed} has no line {'for nodes' if str(seed) in found else 'for pods'}", _REMEDY
        )
    order = _pods(path, *found[str(seed)], pods)
    return Arrivals(order, _nodes(path, *found[f"nodes_{seed}"], len(nodes.names)), True)


def _pods(path: Path, line: int, ids: list[str], pods: PodTable) -> Ints:
    index = {name[-4:]: at for at, name in enumerate(pods.names)}
    if len(index) < len(pods.names):
        index = {}
    index.update((name, at) for at, name in enumerate(pods.names))
    unknown = next((name for name in ids if name not in index), None)
    if unknown is not None or not ids:
        raise UsageError(f"{path}:{line}: {f'no pod {unknown!r}' if ids else 'no pods'}", _REMEDY)
    return np.array([index[name] for name in ids], dtype=np.int64)


def _nodes(path: Path, line: int, ranks: list[str], count: int) -> Ints:
    try:
        order = np.array(ranks, dtype=np.int64)
    except (ValueError, OverflowError):
        order = np.zeros(0, dtype=np.int64)
    if len(order) != count or not np.array_equal(np.sort(order), np.arange(count)):
        raise UsageError(f"{path}:{line}: not the ranks 0 to {count - 1} of {count} nodes", _REMEDY)
    return np.argsort(order)


def draw_arrivals(seed: int, nodes: NodeTable, pods: PodTable, tuned: float = TUNED) -> Arrivals:
    """An order of our own, as theirs is made but by numpy's generator: shuffled, then pods drawn again and appended, or random
    ones left out, until all ask for ``tuned`` times the devices."""
    dice = np.random.default_rng([seed, 1])
    asked = np.array([request.total for request in pods.requests], dtype=np.int64)
    order = dice.permutation(len(asked))
    wanted = tuned * int(nodes.columns.idle().sum())
    if not asked.any() or not wanted:
        return Arrivals(order, dice.permutation(len(nodes.names)), False)
    if asked.sum() < wanted:
        # One draw too many is harmless: the cut below takes it off.
        more = dice.integers(0, len(asked), int((wanted - asked.sum()) / asked.mean() * 2) + 64)
        order = np.concatenate([order, more])
    within = max(1, int(np.searchsorted(np.cumsum(asked[order]), wanted, side="right")))
    return Arrivals(order[:within], dice.permutation(len(nodes.names)), False)
