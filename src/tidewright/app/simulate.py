"""Simulations put together: a trace, a cluster and policies by name, and a journal run again under other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import UsageError
from ..engine.settings import EngineSettings
from ..model.node import NodeSpec
from ..policy.registry import make
from ..sim import report
from ..sim.clusters import load_cluster
from ..sim.faults import parse_faults
from ..sim.rate_files import load_rates
from ..sim.result import SimulationResult as SimulationResult
from ..sim.result import to_json
from ..sim.run import Options, simulate
from ..sim.trace import Trace, head, with_estimates
from ..sim.traces import load_trace
from .recorded import Recording, read

Progress = Callable[[str, int, int], None]
"""Called with (policy, jobs settled, jobs in all)."""


def policies(text: str) -> list[str]:
    """Policy names separated by commas; a part like ``a=1`` belongs to the settings of the policy before it."""
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    if not found:
        raise UsageError("no policy named", "give --policy fifo,sla")
    for name in found:
        make(name)
    return found


def run_trace(
    trace: str, cluster: str, policy: str, *, seed: int = 1, jobs: int = 0, estimate_error: float = 0.0,
    faults: str = "", checkpoints: bool | None = None, rates: str = "", progress: Progress | None = None,
) -> list[SimulationResult]:  # fmt: skip
    """Simulate a trace on a cluster under each policy. ``jobs`` above 0 takes only so many from the start.

    ``rates``: how fast jobs run where, as ``sim.rate_files.load_rates`` reads it.
    ``faults`` as in ``sim.faults.parse_faults``; ``checkpoints``: whether running jobs are imaged (None: when something fails).
    """
    names = policies(policy)
    nodes = load_cluster(cluster)
    loaded = load_trace(_seeded(trace, seed), sum(node.devices for node in nodes))
    if jobs:
        loaded = head(loaded, jobs)
    loaded = with_estimates(loaded, estimate_error, seed)
    options = Options(cluster=cluster, faults=parse_faults(faults, seed), checkpoints=checkpoints)
    if rates:
        options = msgspec.structs.replace(
            options, engine=msgspec.structs.replace(options.engine, rates=load_rates(rates))
        )
    return _each(names, loaded, nodes, options, progress)


def rerun(
    journal: Path, policy: str, cluster: str | None = None, progress: Progress | None = None
) -> tuple[list[SimulationResult], Recording]:
    """Simulate a recorded journal's jobs under each policy, on its own nodes or on another cluster."""
    names = policies(policy)
    recording = read(journal)
    nodes = load_cluster(cluster) if cluster else recording.nodes
    engine: EngineSettings = msgspec.structs.replace(recording.settings, history_length=0)
    options = Options(cluster=cluster or "its own nodes", engine=engine, costs=recording.costs)
    return _each(names, recording.trace, nodes, options, progress), recording


def _each(
    names: Iterable[str], trace: Trace, nodes: tuple[NodeSpec, ...], options: Options, progress: Progress | None
) -> list[SimulationResult]:
    results = []
    for name in names:

        def report_progress(settled: int, total: int, _: int, name: str = name) -> None:
            if progress is not None:
                progress(name, settled, total)

        results.append(
            simulate(trace, nodes, make(name), msgspec.structs.replace(options, label=name), report_progress)
        )
    return results


def _seeded(trace: str, seed: int) -> str:
    """A generated trace follows ``seed`` unless it names its own."""
    if trace.partition(":")[0] != "synthetic" or "seed=" in trace:
        return trace
    return f"{trace}{',' if ':' in trace else ':'}seed={seed}"


def tables(results: list[SimulationResult]) -> list[Any]:
    """Rich tables of the results."""
    return [report.table(results), report.tier_table(results)]


def remarks(results: list[SimulationResult]) -> list[str]:
    """What a reader of the tables must know."""
    return report.notes(results)


def as_json(results: list[SimulationResult]) -> bytes:
    """The results as a JSON array."""
    return to_json(results)


def write_report(results: list[SimulationResult], path: Path) -> None:
    """A self-contained HTML page with plots. Raises UsageError when matplotlib is not installed or the disk refuses."""
    text = report.html(results)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "give another path with --report") from None
