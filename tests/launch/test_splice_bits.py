"""A data-parallel job that shares cores in every way, changing while it runs, computes the bits of one that never did."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.full]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sharing_changes_no_bit(monkeypatch, ranks):
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import splice as bench

    cores = sorted(os.sched_getaffinity(0))[:2]
    shared = bench.job("small", ranks, cores, 2, False, plain=False, steps=6)
    plain = bench.job("small", ranks, cores, 2, False, plain=True, steps=6)
    assert len(shared) == ranks
    assert len({rank["digest"] for rank in shared + plain}) == 1
