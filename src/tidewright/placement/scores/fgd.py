"""Fragmentation gradient descent: each pod where it makes the least of what is free useless (Weng et al., ATC'23, section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from .columns import Floats, Ints, NodeColumns, ShareRequest, fullest
from .fragments import TypicalColumns, growth, hundredths, typical_columns

COVER = 0.95
"""Section 4.1: the typical pods are the most frequent ones that make up this share of all."""


def typical_pods(workload: Iterable[ShareRequest], cover: float = COVER) -> tuple[tuple[ShareRequest, int], ...]:
    """The most frequent requests of a workload until they make up ``cover`` of it, and how often each comes.

    Memory does not matter. Among equally frequent ones the larger come first, as in the artifact.
    """
    return typical_of(Counter(request._replace(memory=0) for request in workload), cover)


def typical_of(
    counts: Counter[ShareRequest], cover: float = COVER, most: int | None = None
) -> tuple[tuple[ShareRequest, int], ...]:
    """The same of requests without memory by how often each came; at most ``most`` of them."""
    found: list[tuple[ShareRequest, int]] = []
    covered = 0
    for request, often in sorted(counts.items(), key=_frequent_first)[:most]:
        if covered >= cover * counts.total():
            break
        found.append((request, often))
        covered += often
    return tuple(found)


def _frequent_first(item: tuple[ShareRequest, int]) -> tuple[int, ...]:
    request, often = item
    return -often, -request.cpu, -request.units, -request.devices, -request.kinds


class FragmentationDescent:
    """The score of a node is what its fragmentation grows by, as whole hundredths of a sigmoid; of one device alike."""

    name = "fgd"
    repeatable = True

    def __init__(
        self, workload: Sequence[ShareRequest] = (), cover: Annotated[float, Meta(gt=0, le=1)] = COVER
    ) -> None:
        """``workload``: requests as they usually come. Without any, nothing is a fragment and all nodes are alike."""
        self._set(typical_pods(workload, cover))

    @classmethod
    def by(cls, typical: Sequence[tuple[ShareRequest, int]]) -> FragmentationDescent:
        """With these typical pods, and how often each comes."""
        made = cls()
        made._set(typical)
        return made

    def _set(self, typical: Sequence[tuple[ShareRequest, int]]) -> None:
        self.typical: TypicalColumns = typical_columns(typical)
        self._unit = max(self.typical.total, 1.0)

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """0 to 100; 50 where nothing changes."""
        found: Floats = self._each(nodes, request).max(axis=1)
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The device with the highest score, the first among equals; of several, the fullest that have enough."""
        if request.devices == 1:
            return (int(self._each(nodes, request)[0].argmax()),)
        return fullest(nodes.free[0], request.units, request.devices)

    def _each(self, nodes: NodeColumns, request: ShareRequest) -> Floats:
        # Shares are counts, so that sums are exact, and are made shares here.
        grown = growth(nodes.free, nodes.cpu, request, self.typical, nodes.kind)
        return hundredths(grown / self._unit, nodes.size[:, None])
