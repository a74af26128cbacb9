"""Finding pages, against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidewright.checkpoint.store.index import ABSENT, NO_HASHES, Runs, first_of_each

# Few different first words: pages that agree in them must be distinguished by the second.
hashes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40)


def array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


@given(st.lists(hashes, max_size=6), hashes)
def test_finds_what_was_added_first(runs: list[list[tuple[int, int]]], asked: list[tuple[int, int]]) -> None:
    model: dict[tuple[int, int], set[int]] = {}
    found, number = Runs(), 0
    for pairs in runs:
        values = np.arange(number, number + len(pairs))
        for pair, value in zip(pairs, values.tolist(), strict=True):
            model.setdefault(pair, set()).add(value)
        found, number = found.plus(array(pairs), values), number + len(pairs)
    for pair, value in zip(asked, found.find(array(asked)).tolist(), strict=True):
        assert value in model.get(pair, {ABSENT})
    assert len(found) == number == len(found.hashes)


@given(hashes)
def test_first_of_each(pairs: list[tuple[int, int]]) -> None:
    kept = first_of_each(array(pairs)).tolist()
    assert kept == sorted(pairs.index(pair) for pair in set(pairs))


def test_many_small_runs_become_few() -> None:
    runs = Runs()
    for number in range(500):
        runs = runs.plus(array([(number, 0)]))
    assert len(runs._runs) < 10 and len(runs) == 500
    assert Runs().plus(NO_HASHES).find(array([(1, 1)])).tolist() == [ABSENT]
