"""Fragmentation of the free device-time, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE
from tidewright.sim.free_share import FreeDevices
from tidewright.sim.run import Options, Simulation, simulate
from tidewright.sim.trace import make_trace

from .planners import FirstCome


def test_free_devices_that_a_larger_job_could_not_use() -> None:
    """On one node of 2, a job of 1 runs all the time: its neighbour is free, and useless to the third of jobs that ask for 2."""
    trace = make_trace("t", np.array([0.0, 0.0, 1000.0]), np.array([2000.0, 10.0, 10.0]), np.array([1, 2, 1]))
    result = simulate(trace, load_cluster("1x2"), FirstCome(), Options(costs=FREE))
    assert result.fragmentation == pytest.approx(1 / 3, abs=0.01)


def test_a_job_larger_than_a_node_counts_as_one_of_a_whole_node() -> None:
    trace = make_trace("t", np.array([0.0, 1000.0]), np.array([2000.0, 10.0]), np.array([1, 8]))
    result = simulate(trace, load_cluster("2x4"), FirstCome(), Options(costs=FREE))
    # Of 7 free devices, the 3 beside the job are lost to the half of the jobs that ask for a whole node.
    assert result.fragmentation == pytest.approx(3 / 7 / 2, abs=0.01)


def test_nothing_free_and_a_single_instant_are_no_fragmentation() -> None:
    trace = make_trace("t", np.array([0.0, 0.0]), np.array([5.0, 5.0]), np.array([1, 1]))
    assert simulate(trace, load_cluster("1x1"), FirstCome(), Options(costs=FREE)).fragmentation == 0.0


def test_a_sample_counts_the_board_once_for_each_step_that_it_lasted() -> None:
    trace = make_trace("t", np.array([0.0, 100.0]), np.array([5.0, 5.0]), np.array([1, 1]))
    nodes = load_cluster("1x2")
    free = FreeDevices(trace, nodes)
    board = Simulation(trace, nodes, FirstCome()).engine.book.phys
    free.sample(50_000_000, board)
    assert free.due == 50_100_000
    free.sample(10**12, board)
    assert free.due == 2**63
