"""Simulations put together: a trace, a cluster and policies by name, and a journal run again under other policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.units import counted, parse_duration
from ..engine.engine import Engine
from ..engine.events import NodeUp
from ..engine.requests.admission import refuse
from ..engine.settings import EngineSettings
from ..model.node import NodeSpec
from ..policy.registry import make
from ..sim import report
from ..sim.clusters import load_cluster
from ..sim.costs import Costs, parse_costs
from ..sim.faults import parse_faults
from ..sim.jobs_out import JobsTable as JobsTable
from ..sim.jobs_out import job_rows
from ..sim.profile import load_profile
from ..sim.rate_files import load_rates
from ..sim.result import SimulationResult as SimulationResult
from ..sim.result import to_json
from ..sim.run import Options, Simulation
from ..sim.stream import Reading
from ..sim.synthetic import draw_tiers, tier_shares
from ..sim.trace import Trace, as_asked, changed, check_load, head, window, with_estimates, with_load, without_estimates
from ..sim.traces import load_trace
from .recorded import Recording, read

Progress = Callable[[str, int, int], None]
"""Called with (policy, jobs settled, jobs in all)."""


def named_with_settings(text: str, remedy: str) -> list[str]:
    """Names separated by commas; a part like ``a=1`` belongs to the settings of the one before it. Raises UsageError for none."""
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    if not found:
        raise UsageError("nothing is named", remedy)
    return found


def policies(text: str) -> list[str]:
    """Policies by name, with settings. Raises UsageError for one that does not exist."""
    found = named_with_settings(text, "give --policy fifo,sla")
    for name in found:
        make(name)
    return found


def _each_once(text: str) -> list[str]:
    """The policies of ``text``; one that is named twice is run once."""
    return list(dict.fromkeys(policies(text)))


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to simulate, in the words of ``tide simulate``: each field is the option of its name, empty for its default."""

    trace: str
    cluster: str
    policy: str
    seed: int = 1
    jobs: int = 0
    load: float | None = None
    """Device-time asked by the jobs that the cluster admits over the cluster's until the last submission; None: as the trace
    has it."""
    tiers: str = ""
    estimates: str = "exact"
    """``exact``, ``none``, or the sigma of a log-normal error."""
    profile: str = "default"
    costs: str = ""
    rates: str = ""
    """How fast jobs run where, as ``sim.rate_files.load_rates`` reads it."""
    faults: str = ""
    checkpoints: bool | None = None
    """None: when something fails."""
    window: str = ""
    """``K/N``: only the K-th of N equal parts of the trace's jobs."""
    horizon: str = ""
    """When the simulation ends at the latest, counted from the first submission, like ``30d``; empty: after ten years."""


def run_trace(
    question: Question, progress: Progress | None = None, reading: Reading | None = None, jobs: JobsTable | None = None
) -> list[SimulationResult]:
    """Simulate a trace on a cluster under each policy. ``reading`` hears how much of the trace's file is read, ``jobs`` gets
    what became of each job."""
    names = _each_once(question.policy)
    nodes = load_cluster(question.cluster)
    if question.load is not None:
        check_load(question.load)
    trace = shaped(load_trace_of(question, nodes, reading), question, nodes)
    return _each(names, trace, nodes, options_of(question), progress, jobs)


def options_of(question: Question) -> Options:
    """How to simulate what is asked. Raises UsageError for what is not understood."""
    profile = load_profile(question.profile, question.seed)
    options = Options(
        cluster=question.cluster, profile=profile, costs=costs_of(question.costs, profile.costs),
        faults=parse_faults(question.faults, question.seed), checkpoints=question.checkpoints,
        horizon_us=_horizon_us(question.horizon),
    )  # fmt: skip
    return msgspec.structs.replace(options, engine=_engine_of(question))


def _engine_of(question: Question) -> EngineSettings:
    """The engine's settings, with the rates that are asked for."""
    known = Options().engine
    return msgspec.structs.replace(known, rates=load_rates(question.rates)) if question.rates else known


def _horizon_us(text: str) -> int:
    if not text:
        return Options().horizon_us
    try:
        horizon = parse_duration(text)
    except UsageError as error:
        raise UsageError(f"horizon: {error.message}", "write --horizon like 12h, 30d or 1-12:00:00") from error
    if not horizon:
        raise UsageError(
            "a horizon of 0 leaves no time to simulate", "write --horizon like 12h or 30d, at most 100 years"
        )
    return horizon


def costs_of(text: str, base: Costs) -> Costs | None:
    """The costs that ``--costs`` names, and ``base``'s for what it does not; None for an empty text. Raises UsageError."""
    how, _, journal = text.partition(":")
    if how == "learn":
        if not journal:
            raise UsageError(
                "costs: learn needs a journal", "write learn:JOURNAL, a state directory or an exported journal"
            )
        return read(Path(journal)).costs
    return parse_costs(text, base) if text else None


def load_trace_of(question: Question, nodes: tuple[NodeSpec, ...], reading: Reading | None = None) -> Trace:
    """The trace as its source has it."""
    return load_trace(seeded_trace(question.trace, question.seed), sum(node.devices for node in nodes), reading)


def shaped(trace: Trace, question: Question, nodes: tuple[NodeSpec, ...]) -> Trace:
    """The jobs that are asked for, with the tiers, load and estimates that are. Raises UsageError."""
    if question.jobs:
        trace = head(trace, question.jobs)
    if question.window:
        trace = window(trace, *_window(question.window))
    if question.tiers:
        trace = changed(trace, tier=draw_tiers(tier_shares(question.tiers), len(trace), question.seed))
    if question.load is not None:
        trace = _with_load(trace, question, nodes, question.load)
    if question.estimates == "none":
        return without_estimates(trace)
    return with_estimates(trace, sigma(question.estimates), question.seed)


def _with_load(trace: Trace, question: Question, nodes: tuple[NodeSpec, ...], load: float) -> Trace:
    """At this load of the jobs that the cluster admits, with a remark where it refuses some."""
    admitted = ~refused_rows(trace, question, nodes)
    loaded = with_load(trace, load, sum(node.devices for node in nodes), admitted)
    if admitted.all():
        return loaded
    of = f"{int(admitted.sum()):,} of {counted(len(trace), 'job')}"
    text = f"the load of {load:g} is that of {of}, without those that the cluster refuses"
    return changed(loaded, remarks=(*loaded.remarks, text))


def refused_rows(trace: Trace, question: Question, nodes: tuple[NodeSpec, ...]) -> NDArray[np.bool_]:
    """Whether each job of the trace is one that no state of the cluster could hold, so that it is refused."""
    profile = load_profile(question.profile, question.seed)
    engine = Engine(_engine_of(question))
    engine.step(0, [NodeUp(node, node.name) for node in nodes])
    asked = as_asked(trace, profile.placement, profile.splice)
    columns = [
        column.tolist()
        for column in (
            asked.devices, asked.floor, asked.gpu_memory, asked.cpus_milli, asked.memory, asked.kinds, asked.workloads,
            np.arange(len(asked)) if asked.specs else None,
        )
        if column is not None
    ]  # fmt: skip
    known: dict[tuple[int, ...], bool] = {}
    refused = np.zeros(len(asked), np.bool_)
    for row, shape in enumerate(zip(*columns, strict=True)):
        if shape not in known:
            spec = msgspec.structs.replace(asked.spec(row), after=())
            known[shape] = refuse(engine.book, spec) is not None
        refused[row] = known[shape]
    return refused


def _window(text: str) -> tuple[int, int]:
    at, _, of = text.partition("/")
    if not (at.isdecimal() and of.isdecimal()):
        raise UsageError(f"window {text!r}", "write K/N with K from 1 to N, e.g. 2/5")
    return int(at), int(of)


def sigma(text: str) -> float:
    """Of the log-normal error that ``--estimates`` asks for; 0 for ``exact``. Raises UsageError."""
    if text == "exact":
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"estimates: {text!r}", "write exact, none, or a sigma like 0.5") from None


def rerun(
    journal: Path, policy: str, cluster: str | None = None, progress: Progress | None = None, *, profile: str = "",
    costs: str = "", horizon: str = "", jobs: JobsTable | None = None,
) -> tuple[list[SimulationResult], Recording]:  # fmt: skip
    """Simulate a recorded journal's jobs under each policy, on its own nodes or on another cluster.

    Operations take as long as they did in the recording, unless a profile or costs are named.
    """
    names = _each_once(policy)
    recording = read(journal)
    nodes = load_cluster(cluster) if cluster else recording.nodes
    engine: EngineSettings = msgspec.structs.replace(recording.settings, history_length=0)
    model = load_profile(profile or "default")
    base = model.costs if profile else recording.own_costs
    options = Options(
        cluster=cluster or "its own nodes",
        engine=engine,
        profile=model,
        costs=costs_of(costs, base) or base,
        horizon_us=_horizon_us(horizon),
    )
    return _each(names, recording.trace, nodes, options, progress, jobs), recording


def _each(
    names: Iterable[str], trace: Trace, nodes: tuple[NodeSpec, ...], options: Options, progress: Progress | None,
    jobs: JobsTable | None,
) -> list[SimulationResult]:  # fmt: skip
    results = []
    for name in names:

        def report_progress(settled: int, total: int, _: int, name: str = name) -> None:
            if progress is not None:
                progress(name, settled, total)

        simulation = Simulation(trace, nodes, make(name), msgspec.structs.replace(options, label=name))
        results.append(simulation.run(report_progress))
        if jobs is not None:
            jobs.add(job_rows(simulation, name))
    return results


def seeded_trace(trace: str, seed: int) -> str:
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


def page(results: list[SimulationResult]) -> str:
    """A self-contained HTML page with plots. Raises UsageError when matplotlib is not installed."""
    return report.html(results)
