"""Filling experiments put together: a trace of pods that arrive and never leave, placement scores by name, and orders by seed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..base.errors import UsageError
from ..base.units import counted
from ..placement.scores.registry import make_score
from ..sim.packing.experiment import judge_fill, run_fill
from ..sim.packing.openb import FillTrace, load_fills, trace_files
from ..sim.packing.summary import PackingResult, SeedResult, html, remarks, seed_result, table
from .simulate import named_with_settings

Progress = Callable[[float, str], None]
MOST_SEEDS = 1_000


def seeds_of(text: str) -> list[int]:
    """``"42-51,7"``: the numbers it names. Raises UsageError."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last - first >= MOST_SEEDS:
            raise UsageError(f"seeds: {part!r}", f"write numbers and ranges like 42-51, at most {MOST_SEEDS:,}")
        found += range(first, last + 1)
    if not found:
        raise UsageError("no seeds", "write numbers and ranges like 42-51")
    return list(dict.fromkeys(found))


def files_read(trace: str) -> list[Path]:
    """The files that ``trace`` is read from. Raises UsageError for a trace that cannot be read."""
    return list(trace_files(trace))


def pack(trace: str, placement: str, seeds: str, progress: Progress = lambda share, text: None) -> list[PackingResult]:
    """Fill the nodes of ``trace`` under each placement score, for each seed. Raises UsageError."""
    names = list(dict.fromkeys(named_with_settings(placement, "give --placement best-fit,fgd")))
    numbers = seeds_of(seeds)
    for name in names:
        make_score(name)
    fills = load_fills(trace, numbers)
    results = []
    for at, name in enumerate(names):
        done: list[SeedResult] = []
        pods, began = 0, time.process_time()
        for fill in fills:
            begun = (at * len(fills) + len(done)) / (len(names) * len(fills))
            share = 1 / (len(names) * len(fills))

            def tell(count: int, of: int, name: str = name, begun: float = begun, share: float = share) -> None:
                progress(begun + share * count / of, f"{name}: {count:,} of {counted(of, 'pod')}")

            found, took = _filled(fill, name, tell)
            done.append(found)
            pods, began = pods + found.pods, began + took
        seconds = max(time.process_time() - began, 1e-9)
        results.append(
            PackingResult(
                placement=name, trace=trace, devices=_devices(fills[0]), pods_per_s=pods / seconds, seeds=tuple(done)
            )
        )
    return results


def _filled(fill: FillTrace, name: str, progress: Callable[[int, int], None]) -> tuple[SeedResult, float]:
    """The figures, and the processor seconds of judging, which are no part of placing."""
    # Typical pods are those of the list, not of what was drawn from it.
    placed = run_fill(fill, make_score(name, fill.pods.requests), progress)
    began = time.process_time()
    found = seed_result(fill.seed, fill.arrivals.exported, judge_fill(fill, placed))
    return found, time.process_time() - began


def _devices(fill: FillTrace) -> float:
    return int(fill.nodes.columns.devices.sum())


def tables(results: list[PackingResult]) -> list[object]:
    """Rich tables of the results."""
    return [table(results)]


def notes(results: list[PackingResult]) -> list[str]:
    """What a reader of the table must know."""
    return remarks(results)


def as_json(results: list[PackingResult]) -> bytes:
    """The results as a JSON array."""
    return msgspec.json.format(msgspec.json.encode(results), indent=2)


def page(results: list[PackingResult]) -> str:
    """The page with plots. Raises UsageError when matplotlib is not installed."""
    return html(results)
