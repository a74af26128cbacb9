"""Fragmentation and its growth, against the sums of FGD's section 3.2 written out for one node."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidewright.placement.scores.columns import ABSENT, NodeColumns, ShareRequest
from tidewright.placement.scores.fgd import FragmentationDescent
from tidewright.placement.scores.fragments import AT_ONCE, fragmentation, growth, hundredths, typical_columns

PODS = (
    (ShareRequest(4, 1, 1000), 2),
    (ShareRequest(8, 1, 4000, kinds=0b10), 1),
    (ShareRequest(16, 2, 0), 1),
    (ShareRequest(0, 0, 500), 3),
)
TYPICAL = typical_columns(PODS)
FREE = st.lists(st.lists(st.integers(-2, 16), min_size=3, max_size=3), min_size=1, max_size=5)
CPU = st.lists(st.integers(-500, 9000), min_size=5, max_size=5)


def lost(free: list[int], cpu: int, kind: int) -> float:
    """F of one node, times the number of typical pods; to pods without devices all that is free is lost."""
    usable = [max(units, 0) for units in free]
    found = 0.0
    for pod, often in PODS:
        enough = [mine >= pod.units for mine in free]
        fits = (
            pod.devices and sum(enough) >= pod.devices and cpu >= pod.cpu and (not pod.kinds or pod.kinds >> kind & 1)
        )
        found += often * sum(mine for mine, good in zip(usable, enough, strict=True) if not (fits and good))
    return found


@given(FREE, st.integers(-500, 9000), st.integers(0, 1))
def test_fragmentation_is_what_typical_pods_cannot_use(free: list[list[int]], cpu: int, kind: int) -> None:
    kinds = np.full(len(free), kind)
    found = fragmentation(np.array(free, dtype=np.int64), np.full(len(free), cpu), TYPICAL, kinds)
    assert found.tolist() == [lost(row, cpu, kind) for row in free]


@given(FREE, CPU, st.integers(1, 10), st.integers(0, 3), st.integers(0, 5000), st.integers(0, 1))
def test_growth_is_after_less_before(
    free: list[list[int]], cpu: list[int], units: int, devices: int, cores: int, kind: int
) -> None:
    rows, left = np.array(free, dtype=np.int64), np.array(cpu[: len(free)], dtype=np.int64)
    request, kinds = ShareRequest(units, devices, cores), np.full(len(free), kind)
    grown = growth(rows, left, request, TYPICAL, kinds)
    for row, had, values in zip(free, left.tolist(), grown.tolist(), strict=True):
        for at, value in enumerate(values):
            taken = (
                [at]
                if devices == 1
                else sorted((device for device in range(3) if row[device] >= units), key=lambda device: row[device])[
                    :devices
                ]
            )
            if len(taken) < devices or any(row[device] < units for device in taken):
                assert value == np.inf
                continue
            after = [mine - units * (device in taken) for device, mine in enumerate(row)]
            assert value == lost(after, had - cores, kind) - lost(row, had, kind)
    times = 1 + AT_ONCE // rows.size
    many = growth(np.tile(rows, (times, 1)), np.tile(left, times), request, TYPICAL, np.tile(kinds, times))
    assert np.array_equal(many, np.tile(grown, (times, 1)))


def test_scores_are_whole_hundredths_of_a_sigmoid() -> None:
    found = hundredths(np.array([0.02, 0.01, 90.0, np.inf, -90.0]), 80)
    assert found[0] == found[1] == 49 and found[2] < 49 < found[4] and found[3] == 0
    assert hundredths(np.array([0.0]), 1).tolist() == [50]


def test_no_workload_no_fragments() -> None:
    nodes = NodeColumns(
        np.array([[8, ABSENT], [3, 3]]), *(np.zeros(2, dtype=np.int64) for _ in range(3)), np.full(2, 8), np.array([1, 2]),
        np.zeros((2, 3), dtype=np.int64), np.arange(2),
    )  # fmt: skip
    assert FragmentationDescent().score(nodes, ShareRequest(2, 1), 0).tolist() == [50, 50]
