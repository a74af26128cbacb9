"""Cells and their groups: one simulation each, named by its settings, its policy and its replicate."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..result import SimulationResult

Settings = tuple[tuple[str, str], ...]
"""(axis, value) in the order of the axes, e.g. (("load", "0.8"), ("estimates", "none"))."""


class Cell(Struct, frozen=True, kw_only=True):
    """One policy under one combination of settings. ``replicate`` names a seed or a window of the trace."""

    settings: Settings
    policy: str
    replicate: str


class CellResult(Struct, frozen=True, kw_only=True):
    """What came of a cell. Seconds of processor time; ``planning_s`` is the part that the policy took."""

    cell: Cell
    result: SimulationResult
    planning_s: float
    cpu_s: float


class CellFailure(Struct, frozen=True, kw_only=True):
    """A cell without a result, why, and the command that runs it alone."""

    cell: Cell
    cause: str
    command: str


class ComparisonGroup(Struct, frozen=True, kw_only=True):
    """Cells of the same settings. ``policies``: name to its results, one for each replicate.

    A policy that nothing of what the replicates draw can reach has one result, named ``any``.
    """

    settings: Settings
    policies: dict[str, tuple[CellResult, ...]]


ANY = "any"
"""The replicate of a result that is the same in all of them."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Groups in the order asked for, what a reader must know (``remarks``), and the cells that failed."""

    command: str
    groups: tuple[ComparisonGroup, ...]
    policies: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    failures: tuple[CellFailure, ...] = ()


def grouped(results: Sequence[CellResult], policies: Sequence[str]) -> tuple[ComparisonGroup, ...]:
    """The results by their settings in order of first appearance, policies in the order given."""
    found: dict[Settings, dict[str, list[CellResult]]] = {}
    for result in results:
        found.setdefault(result.cell.settings, {}).setdefault(result.cell.policy, []).append(result)
    return tuple(
        ComparisonGroup(settings=key, policies={name: tuple(by[name]) for name in policies if name in by})
        for key, by in found.items()
    )


def varying(groups: Sequence[ComparisonGroup]) -> list[str]:
    """The axes on which the groups differ."""
    values: dict[str, dict[str, None]] = {}
    for group in groups:
        for axis, value in group.settings:
            values.setdefault(axis, {})[value] = None
    return [axis for axis, seen in values.items() if len(seen) > 1]


def label(settings: Settings, axes: Sequence[str]) -> str:
    """``"load 0.8, estimates none"``: the values on these axes."""
    return ", ".join(f"{axis} {value}" for axis, value in settings if axis in axes)
