"""The leaderboard: policies side by side on the same tiered workloads, averaged over seeds, as Markdown and as a plot.

It refuses to know the policies; results are handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from msgspec import Struct

from ..report.figure import draw
from .plots import COLOURS
from .report import duration, percent
from .result import SimulationResult, TierResult

LOADS = (0.8, 1.0, 1.2)
SEEDS = (1, 2, 3)
POLICIES = ("sla", "fifo", "fifo-backfill", "srtf", "las", "static")
CLUSTER = "60x8"
JOBS = 2_000
# More gangs than Philly's 93 % of single devices, so that fragmentation and preemption matter; runs are capped at four
# hours, well below the day over which jobs arrive, so that the load is really there. Arrivals swing over the day, as they
# do everywhere: a flat load of 0.8 never queues, and then every policy is as good as any.
SHAPE = "diurnal=yes,max=4h,sizes=1:0.6/2:0.1/4:0.15/8:0.13/16:0.02"

PHILLY = ("philly:10000", "philly:10000,tiers=premium:0.2/standard:0.3/basic:0.5")
"""Real arrivals and run times, whose bursts ask for more than the pool has: all of one tier, and of three."""
PHILLY_CLUSTER = "philly-480"
PHILLY_POLICIES = ("sla", "fifo", "srtf", "las", "static")
"""Without fifo-backfill, which needs minutes for its reservations under so long a queue."""


class LeaderboardEntry(Struct, frozen=True, kw_only=True):
    """One policy at one load: the results of several seeds."""

    load: float
    policy: str
    results: tuple[SimulationResult, ...]


def trace_name(load: float, seed: int) -> str:
    """The workload of one run."""
    return f"synthetic:jobs={JOBS},load={load},seed={seed},{SHAPE}"


def entries(results: Sequence[tuple[float, str, SimulationResult]]) -> list[LeaderboardEntry]:
    """Results by (load, policy), in order of first appearance."""
    groups: dict[tuple[float, str], list[SimulationResult]] = {}
    for load, policy, result in results:
        groups.setdefault((load, policy), []).append(result)
    return [
        LeaderboardEntry(load=load, policy=policy, results=tuple(group)) for (load, policy), group in groups.items()
    ]


def tier_of(result: SimulationResult, name: str) -> TierResult:
    """One tier of a result."""
    return next(tier for tier in result.tiers if tier.tier == name)


def attainment(result: SimulationResult) -> float:
    """Share of premium and standard jobs that got what their tier promises."""
    promised = [tier for tier in result.tiers if tier.target]
    return sum(tier.attained * tier.jobs for tier in promised) / max(sum(tier.jobs for tier in promised), 1)


def promises_kept(result: SimulationResult) -> tuple[float, float]:
    """Share of premium and standard jobs that got what their tier promises, by count and by device-time."""
    promised = [tier for tier in result.tiers if tier.target and tier.jobs]
    work = sum(tier.work_s for tier in promised)
    return attainment(result), sum(tier.attained_by_work * tier.work_s for tier in promised) / max(work, 1e-9)


def attainable(result: SimulationResult) -> float:
    """The same for a cluster that each job has to itself."""
    promised = [tier for tier in result.tiers if tier.target]
    return sum(tier.attainable * tier.jobs for tier in promised) / max(sum(tier.jobs for tier in promised), 1)


_HEADS = (
    "policy", "tier attainment", "premium", "standard", "premium by work", "standard by work", "basic fraction", "JCT mean",
    "JCT p99", "utilisation", "preemptions",
)  # fmt: skip


def _row(entry: LeaderboardEntry) -> tuple[str, ...]:
    runs = entry.results

    def mean(tier: str, field: str) -> float:
        return fmean(getattr(tier_of(run, tier), field) for run in runs)

    overall = [attainment(run) for run in runs]
    return (
        f"`{entry.policy}`",
        f"**{percent(fmean(overall))}** ({percent(min(overall))}–{percent(max(overall))})",
        percent(mean("premium", "attained")),
        percent(mean("standard", "attained")),
        percent(mean("premium", "attained_by_work")),
        percent(mean("standard", "attained_by_work")),
        f"{mean('basic', 'fraction_mean'):.2f}",
        duration(fmean(run.jct_mean_s for run in runs)),
        duration(fmean(run.jct_p99_s for run in runs)),
        percent(fmean(run.utilisation_arriving for run in runs)),
        f"{fmean(run.preemptions for run in runs):,.0f}",
    )


_PHILLY_HEADS = (
    "policy", "standard", "standard by work", "premium", "premium by work", "basic fraction", "JCT mean", "JCT p99", "ρ p99",
    "utilisation", "preemptions", "per hour of run",
)  # fmt: skip


def _philly_row(result: SimulationResult) -> tuple[str, ...]:
    def shares(name: str) -> tuple[str, str]:
        tier = tier_of(result, name)
        return (percent(tier.attained), percent(tier.attained_by_work)) if tier.jobs else ("–", "–")

    basic = tier_of(result, "basic")
    return (
        f"`{result.policy}`", *shares("standard"), *shares("premium"), f"{basic.fraction_mean:.2f}" if basic.jobs else "–",
        duration(result.jct_mean_s), duration(result.jct_p99_s), f"{result.rho_p99:.2f}",
        percent(result.utilisation_arriving), f"{result.preemptions:,}", f"{result.preemptions / result.run_hours:.2f}",
    )  # fmt: skip


def philly_section(results: Sequence[SimulationResult]) -> list[str]:
    """Lines of Markdown: one table per trace, of results in the order in which policies are to be listed."""
    lines = []
    for trace in dict.fromkeys(result.trace for result in results):
        mine = [result for result in results if result.trace == trace]
        policies = ",".join(result.policy for result in mine)
        lines += ["", f"## Real jobs: `{trace}`", "", f"`tide simulate -t {trace} -p {policies}`", ""]
        lines += ["| " + " | ".join(_PHILLY_HEADS) + " |", "|---|" + "---:|" * (len(_PHILLY_HEADS) - 1)]
        lines += ["| " + " | ".join(_philly_row(result)) + " |" for result in mine]
    return lines


def markdown(board: Sequence[LeaderboardEntry], costs: str, philly: Sequence[SimulationResult] = ()) -> str:
    """The page: what was run, one table per load, and what the columns mean. ``costs`` says what moving a job costs;
    ``philly`` are results on real traces.
    """
    first = board[0].results[0]
    seeds = len(board[0].results)
    lines = [
        "# Leaderboard",
        "",
        "Made by `make leaderboard` (about five minutes on two cores); every number comes from the simulator and is the same on",
        "every machine.",
        "",
        f"{first.jobs:,} jobs on {first.cluster} ({first.devices} devices), {seeds} seeds per load; tiers premium 20 %,",
        f"standard 30 %, basic 50 %; {costs};",
        f"run times known to the scheduler. Workload: `synthetic:load=…,{SHAPE}`.",
        "Arrivals swing over the day, so load 0.8 queues at its peak too; where nothing queues (flat arrivals at 0.8), `sla`,",
        "`srtf` and `las` are level at what is attainable.",
        "[Real jobs](#real-jobs-philly10000), in bursts beyond the pool, are below.",
        "",
        "![Tier attainment by policy and load](leaderboard.svg)",
    ]
    for load in dict.fromkeys(entry.load for entry in board):
        mine = [entry for entry in board if entry.load == load]
        bound = fmean(attainable(run) for entry in mine for run in entry.results)
        lines += ["", f"## Load {load:g}", "", "| " + " | ".join(_HEADS) + " |", "|---|" + "---:|" * (len(_HEADS) - 1)]
        lines += ["| " + " | ".join(_row(entry)) + " |" for entry in mine]
        lines += [
            "",
            f"With a cluster to itself each, {percent(bound)} of these jobs could attain: launching takes time too.",
        ]
    return "\n".join([*lines, *philly_section(philly), "", *_LEGEND, ""])


_LEGEND = (
    "**Tier attainment**: share of premium and standard jobs whose delivered GPU fraction (run time on the full allotment",
    "over time since submission) reached 0.95 or 0.70; mean over seeds, lowest and highest seed in parentheses. **By work**:",
    "each job weighted by its device-time. **Basic fraction**: mean delivered fraction of jobs that are promised nothing.",
    "**ρ**: completion time over the time on a fair share of the pool, of the worst-treated hundredth. **Per hour of run**:",
    "preemptions over the hours that the jobs had to run.",
    "**Utilisation**: share of device-time held until the last submission, launching, saving and restoring included.",
)


def plot(board: Sequence[LeaderboardEntry]) -> str:
    """Tier attainment by load, one group of bars per load, as the text of an SVG file."""
    loads = list(dict.fromkeys(entry.load for entry in board))
    policies = list(dict.fromkeys(entry.policy for entry in board))
    shares = {(entry.load, entry.policy): [attainment(run) for run in entry.results] for entry in board}

    def paint(axes: Any) -> None:
        width = 0.84 / len(policies)
        for at, policy in enumerate(policies):
            means = [100 * fmean(shares[load, policy]) for load in loads]
            low = [mean - 100 * min(shares[load, policy]) for mean, load in zip(means, loads, strict=True)]
            high = [100 * max(shares[load, policy]) - mean for mean, load in zip(means, loads, strict=True)]
            places = [group + (at - (len(policies) - 1) / 2) * width for group in range(len(loads))]
            axes.bar(places, means, 0.9 * width, color=COLOURS[at % len(COLOURS)], label=policy)
            axes.errorbar(places, means, yerr=[low, high], fmt="none", ecolor="#1c2733", elinewidth=0.9, capsize=2)
        for group, load in enumerate(loads):
            bound = 100 * fmean(attainable(run) for entry in board if entry.load == load for run in entry.results)
            axes.plot([group - 0.46, group + 0.46], [bound] * 2, color="#1c2733", lw=1.1, ls=(0, (4, 2)))
        axes.set_xticks(range(len(loads)), [f"load {load:g}" for load in loads])
        axes.set_ylim(0, 108)
        axes.set_ylabel("premium and standard jobs\nthat got what they were promised, %")
        axes.grid(False, axis="x")
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=len(policies), columnspacing=1.2, handlelength=1.2
        )

    return draw("leaderboard", paint, size=(8.4, 4.0), ground="#ffffff").decode()
