"""``tide colocate``: a day of a service beside training in one pool, against a static split of the same devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import output as out
from .files import write_file
from .progress import progress
from .simulate import costs_option
from .types import DURATION

PLOT = "--plot"


@click.command("colocate", short_help="Training and a service in one pool, against a static split.")
@click.option("-t", "--trace", default="philly", show_default=True, metavar="TRACE", help="As of tide simulate.")
@click.option(
    "-c", "--cluster", default="philly-480", show_default=True, metavar="CLUSTER", help="As of tide simulate."
)
@click.option("-p", "--policy", default="sla", show_default=True, metavar="NAME", help="Of the pool and of the split.")
@click.option("--window", default="", metavar="K/N", help="Only the K-th of N equal parts of the trace's jobs.")
@click.option("--load", type=float, metavar="X", help="Stretch the trace so that its jobs ask for X of the cluster.")
@click.option(
    "--tiers", default="standard:0.4/basic:0.6", show_default=True, metavar="TIER:SHARE/...", help="Of the jobs."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="For everything random.")
@costs_option
@click.option(
    "--rates",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The service's day, CSV: second,rate. Scaled to --peak. Default: a made-up working day.",
)
@click.option(
    "--served", default="resnet50-v100-amp", show_default=True, metavar="NAME|FILE.json", help="Latency of batches."
)
@click.option(
    "--objective", type=DURATION, default="50ms", show_default=True, metavar="TIME", help="From arrival to answer."
)
@click.option(
    "--peak",
    type=float,
    default=0.4,
    show_default=True,
    metavar="X",
    help="Part of the devices that the day's peak needs.",
)
@click.option(
    "--load-time",
    type=DURATION,
    default="20s",
    show_default=True,
    metavar="TIME",
    help="From a replica's start to its first answer.",
)
@click.option(
    "--start-time",
    type=DURATION,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Planned from wanted to ready, the release of a device by training included.",
)
@click.option(
    "--scale-down-delay",
    "hold",
    type=DURATION,
    default="5m",
    show_default=True,
    metavar="TIME",
    help="How long the most that was wanted counts.",
)
@click.option(PLOT, type=click.Path(path_type=Path), metavar="FILE", help="Write a plot of the day to FILE (SVG).")
@out.json_option
def command(plot: Path | None, output: str, **asked: Any) -> None:  # fmt: skip
    """Simulate a day of a service, one device a replica, beside the training of TRACE on one pool, by the engine, the policy and
    the autoscaler that run live; and a static split of the same devices at the same attainment. The day is replayed twice; the
    second time is measured.

    \b
    tide colocate -t synthetic:jobs=2000,load=1.5 -c 8x8
    tide colocate --window 15/24 --rates day.csv --peak 0.3 --costs save=30s,restore=30s --start-time 80s
    """
    from ..app.one_pool import present
    from ..app.one_pool.question import PoolQuestion, compare
    from ..app.one_pool.run import as_json
    from ..app.output_file import check_output, check_plots
    from ..app.simulate import Question

    if plot is not None:
        check_plots()
        check_output(plot, PLOT)
    names = ("trace", "cluster", "policy", "window", "load", "tiers", "seed", "costs")
    training = Question(**{name: asked.pop(name) for name in names})
    with progress("simulating", total=1.0) as bar:
        found = compare(PoolQuestion(training=training, **asked), lambda name, at, end: bar.update(at / end, name))
    if output == "json":
        click.echo(as_json(found).decode())
    else:
        out.print_whole(present.table(found))
    for remark in present.remarks(found):
        out.note(f"note: {remark}")
    write_file(plot, lambda: present.plot(found), PLOT)
