"""``tide simulate``: a trace on a cluster under several policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.units import counted
from . import output as out
from .files import JOBS_OUT, REPORT, check_files, jobs_out_option, report_option, write_file
from .progress import progress

if TYPE_CHECKING:
    from ..app.simulate import JobsTable, SimulationResult


profile_option = click.option(
    "--profile",
    metavar="NAME[:KEY=VALUE,...]",
    help="How the cluster behaves: default, ideal, tiresias, helios, pai, gavel, or a YAML file.",
)
costs_option = click.option(
    "--costs",
    default="",
    metavar="NAME=COST,...",
    help="What operations take, e.g. launch=3s,save=60s; free; or learn:JOURNAL.",
)


horizon_option = click.option(
    "--horizon",
    default="",
    metavar="TIME",
    help="End at this time after the first submission, e.g. 30d; jobs that have not ended are counted  [default: 10 years].",
)


@click.command("simulate", short_help="Run a trace under several policies.")
@click.option(
    "-t",
    "--trace",
    required=True,
    metavar="TRACE",
    help="philly, philly:N, synthetic:jobs=N,load=X,…, tiresias:…, helios:…, pai:…, gavel:…, or a CSV file.",
)
@click.option(
    "-c",
    "--cluster",
    default="philly-480",
    show_default=True,
    metavar="CLUSTER",
    help="philly, philly-480, 60x8:v100,10x4:a100, or a file.",
)
@click.option(
    "-p",
    "--policy",
    default="sla",
    show_default=True,
    metavar="NAME,...",
    help="Policies, with settings like las:round=6m.",
)
@click.option("-n", "--jobs", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs of the trace.")
@click.option(
    "--window", default="", metavar="K/N", help="Only the K-th of N equal parts of the trace's jobs, e.g. 2/5."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="For everything random.")
@click.option(
    "--load",
    type=float,
    metavar="X",
    help="Stretch the times between submissions so that the jobs ask for X of the cluster.",
)
@click.option(
    "--tiers",
    default="",
    metavar="TIER:SHARE/...",
    help="Draw the jobs' tiers, e.g. premium:0.2/standard:0.3/basic:0.5.",
)
@click.option(
    "--estimates",
    "--estimate-error",
    "estimates",
    default="exact",
    show_default=True,
    metavar="exact|none|SIGMA",
    help="Run times that policies get: true ones, none, or with a log-normal error.",
)
@profile_option
@costs_option
@click.option(
    "--faults",
    default="",
    metavar="NAME=VALUE,...",
    help="What fails, e.g. node_mtbf=30d,rank_mtbf=10d,suspend_failure=0.01.",
)
@click.option(
    "--checkpoints/--no-checkpoints",
    default=None,
    help="Image running jobs now and then [default: when nodes or ranks fail].",
)
@click.option(
    "--rates",
    metavar="NAME|FILE",
    help="How fast jobs run on which kind of device: gavel, or a file; see docs/rates.md.",
)
@horizon_option
@jobs_out_option
@report_option
@out.json_option
def command(
    report: Path | None, jobs_out: Path | None, output: str, jobs: int | None, profile: str | None, **asked: Any
) -> None:
    """Run TRACE on CLUSTER under each policy, by the code that schedules live jobs, and compare.

    \b
    tide simulate -t philly -p fifo,srtf,sla
    tide simulate -t synthetic:jobs=5000,load=1.0 -c 60x8 -p fifo,las,sla --report out.html
    tide simulate -t tiresias:60 -c 4x4 -p fifo,smallest --profile tiresias --jobs-out jobs.csv
    """
    from ..app.simulate import JobsTable, Question, run_trace

    check_files(report, jobs_out, reads=(profile, *(asked[name] for name in ("trace", "cluster", "rates", "costs"))))
    jobs_table = JobsTable() if jobs_out is not None else None
    question = Question(jobs=jobs or 0, profile=profile or "default", **asked)
    with progress("simulating", total=1.0) as bar:
        results = run_trace(
            question,
            lambda name, done, total: bar.update(done / total, f"{name}: {done:,} of {counted(total, 'job')}"),
            lambda done, total: bar.update(done / max(total, 1), f"reading {question.trace}"),
            jobs_table,
        )
    present(results, output, report, jobs_table, jobs_out)


def present(
    results: list[SimulationResult], output: str, report: Path | None, jobs: JobsTable | None, jobs_out: Path | None
) -> None:
    """Tables or JSON on stdout, remarks on stderr, and the files that were asked for, last: the disk may refuse them."""
    from ..app import simulate

    if output == "json":
        click.echo(simulate.as_json(results).decode())
    else:
        for table in simulate.tables(results):
            out.print_whole(table)
    for remark in simulate.remarks(results):
        out.note(f"note: {remark}")
    if jobs is not None and jobs_out is not None:
        write_file(jobs_out, lambda: jobs.content(jobs_out.suffix), JOBS_OUT)
    write_file(report, lambda: simulate.page(results).encode(), REPORT)
