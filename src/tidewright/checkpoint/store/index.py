"""Finding pages by hash, many at a time: columns sorted and searched by the first eight bytes, decided by all sixteen."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .keys import Hashes

Values = NDArray[np.int64]
ABSENT = -1
NO_HASHES: Hashes = np.empty((0, 2), dtype=np.uint64)


class Run:
    """Hashes in order of their first halves, and a number (>= 0) for each. Never changes."""

    def __init__(self, hashes: Hashes, values: Values) -> None:
        order = np.argsort(hashes[:, 0], kind="stable")  # merges two runs, one after the other, in linear time
        self.first, self.rest, self.values = hashes[order, 0], hashes[order, 1], values[order]

    def __len__(self) -> int:
        return len(self.values)

    def find(self, hashes: Hashes) -> Values:
        """The number of each hash, ABSENT where it is unknown. Of equal hashes the first in order of insertion wins."""
        found = np.full(len(hashes), ABSENT, dtype=np.int64)
        at = np.searchsorted(self.first, hashes[:, 0])
        asked = np.arange(len(hashes))
        while len(asked):
            inside = at < len(self.first)
            asked, at = asked[inside], at[inside]
            near = self.first[at] == hashes[asked, 0]
            asked, at = asked[near], at[near]
            hit = self.rest[at] == hashes[asked, 1]
            found[asked[hit]] = self.values[at[hit]]
            asked, at = asked[~hit], at[~hit] + 1
        return found

    @property
    def hashes(self) -> Hashes:
        """All hashes, in order."""
        return np.column_stack((self.first, self.rest))


class Runs:
    """Runs of very different sizes: adding is cheap, as in a log-structured merge tree (O'Neil et al. 1996)."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = tuple(runs)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def hashes(self) -> Hashes:
        """All hashes."""
        return np.vstack([NO_HASHES, *(run.hashes for run in self._runs)])

    def plus(self, hashes: Hashes, values: Values | None = None) -> Runs:
        """These runs and one more; neighbours of like size become one."""
        if not len(hashes):
            return self
        runs = [*self._runs, Run(hashes, np.zeros(len(hashes), np.int64) if values is None else values)]
        while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
            new, old = runs.pop(), runs.pop()
            runs.append(Run(np.vstack((old.hashes, new.hashes)), np.concatenate((old.values, new.values))))
        return Runs(runs)

    def find(self, hashes: Hashes) -> Values:
        """The number of each hash, ABSENT where no run knows it."""
        found = np.full(len(hashes), ABSENT, dtype=np.int64)
        for run in self._runs:
            open_ = np.flatnonzero(found == ABSENT)
            if not len(open_):
                break
            found[open_] = run.find(hashes[open_])
        return found

    def knows(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these are known."""
        known: NDArray[np.bool_] = self.find(hashes) != ABSENT
        return known


def first_of_each(hashes: Hashes) -> NDArray[np.intp]:
    """Positions of the first occurrence of each different hash, ascending."""
    halves = np.sort(hashes[:, 0])
    if (halves[1:] != halves[:-1]).all():  # as a rule, and a tenth of the time
        return np.arange(len(hashes))
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.sort(order[new])
