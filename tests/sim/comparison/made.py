"""Cells with chosen figures, made of one real result."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from tests.sim.planners import FirstCome
from tidewright.sim.clusters import load_cluster
from tidewright.sim.comparison.cells import Cell, CellResult, Comparison, Settings, grouped
from tidewright.sim.result import SimulationResult
from tidewright.sim.run import Options, simulate
from tidewright.sim.traces import load_trace

LOAD_1: Settings = (("trace", "made"), ("load", "1"))
LOAD_2: Settings = (("trace", "made"), ("load", "2"))


@cache
def _one() -> SimulationResult:
    trace = load_trace("synthetic:jobs=30,load=1.2,max=1h", 8)
    return simulate(trace, load_cluster("2x4"), FirstCome(), Options(cluster="2x4", label="made"))


def cell(
    policy: str, replicate: str = "seed 1", *, kept: float = 0.5, settings: Settings = LOAD_1, **changes: Any
) -> CellResult:
    """``kept``: the share of promises kept, by count and by work; ``changes``: fields of the result."""
    result = msgspec.structs.replace(_one(), **changes)
    tiers = tuple(msgspec.structs.replace(tier, attained=kept, attained_by_work=kept) for tier in result.tiers)
    result = msgspec.structs.replace(result, tiers=tiers)
    named = Cell(settings=settings, policy=policy, replicate=replicate)
    return CellResult(cell=named, result=result, planning_s=0.25, cpu_s=1.0)


def comparison(*cells: CellResult, **changes: Any) -> Comparison:
    policies = tuple(dict.fromkeys(each.cell.policy for each in cells))
    return Comparison(command="tide compare", groups=grouped(cells, policies), policies=policies, **changes)
