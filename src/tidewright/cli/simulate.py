"""``tide simulate``: a trace on a cluster under several policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..base.errors import UsageError
from . import output as out
from .progress import progress

if TYPE_CHECKING:
    from ..app.simulate import SimulationResult


@click.command("simulate", short_help="Run a trace under several policies.")
@click.option(
    "-t",
    "--trace",
    required=True,
    metavar="TRACE",
    help="philly, philly:N,tiers=premium:X/basic:Y, synthetic:jobs=N,load=X,…, or a CSV file.",
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
@click.option("--seed", type=int, default=1, show_default=True, help="For everything random.")
@click.option(
    "--estimate-error",
    type=click.FloatRange(0, 10),
    default=0.0,
    help="Log-normal error of the run times that policies get.",
)
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
@out.report_option
@out.json_option
def command(
    trace: str,
    cluster: str,
    policy: str,
    jobs: int | None,
    seed: int,
    estimate_error: float,
    faults: str,
    checkpoints: bool | None,
    rates: str | None,
    report: Path | None,
    output: str,
) -> None:
    """Run TRACE on CLUSTER under each policy, by the code that schedules live jobs, and compare.

    \b
    tide simulate -t philly -p fifo,srtf,sla
    tide simulate -t synthetic:jobs=5000,load=1.0 -c 60x8 -p fifo,las,sla --report out.html
    """
    from ..app.simulate import run_trace

    check_report(report)
    with progress("simulating", total=1.0) as bar:
        results = run_trace(
            trace, cluster, policy, seed=seed, jobs=jobs or 0, estimate_error=estimate_error, faults=faults,
            checkpoints=checkpoints, rates=rates or "",
            progress=lambda name, done, total: bar.update(done / total, f"{name}: {done:,} of {total:,} jobs"),
        )  # fmt: skip
    present(results, output, report)


def check_report(report: Path | None) -> None:
    """Raise UsageError for a page that could not be written, before the work is done rather than after."""
    if report is not None and not report.absolute().parent.is_dir():
        raise UsageError(f"cannot write {report}: there is no directory {report.parent}", "give another --report")


def present(results: list[SimulationResult], output: str, report: Path | None) -> None:
    """Tables or JSON on stdout, remarks on stderr, and the page where it was asked for."""
    from ..app import simulate

    if output == "json":
        click.echo(simulate.as_json(results).decode())
    else:
        for table in simulate.tables(results):
            out.print_whole(table)
    for remark in simulate.remarks(results):
        out.note(f"note: {remark}")
    if report is not None:
        simulate.write_report(results, report)
        out.note(f"wrote {report}")
