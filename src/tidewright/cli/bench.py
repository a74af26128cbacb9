"""``tide bench``: measurements that a user may repeat."""

from __future__ import annotations

from pathlib import Path

import click

from . import output as out
from .files import REPORT, check_files, report_option, write_file


@click.group("bench", short_help="Measure how well a device is shared.", no_args_is_help=True)
def command() -> None:
    """Measure how well real-time and best-effort work share a device on this machine."""


@command.command("disb", short_help="The DISB benchmark of inference serving.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="What to run on.")
@click.option("-w", "--workload", "workloads", multiple=True, metavar="NAME",
              help="A to E, REAL or B-220; may be repeated. Default: A.")  # fmt: skip
@click.option("--row", "rows", multiple=True, metavar="NAME",
              help="A way to share the device; may be repeated. Default: all.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.5), default=20.0, show_default=True, help="Of each run.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the arrivals.")
@click.option("--open", "open_loop", is_flag=True, help="Launch when a request is due, however many are outstanding.")
@click.option("--full", is_flag=True, help="The networks of torchvision and transformers instead of small ones.")
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path),
              help="Slow-down table for padding; measured if not given.")  # fmt: skip
@out.json_option
@report_option
def run_disb(
    device: str, workloads: tuple[str, ...], rows: tuple[str, ...], seconds: float, seed: int, open_loop: bool, full: bool,
    table: Path | None, output: str, report: Path | None,
) -> None:  # fmt: skip
    """Run DISB: real-time clients that ask at set times, best-effort clients that ask all the time.

    Rows: RT-only (no best-effort work), SEQ (one task after the other), STREAM (no classes), PRIO (classes, nothing is
    stopped), gate (stops between operators, as REEF-N does between kernels), ours, ours+padding.

    \b
    tide bench disb -w A -w D --seconds 30 --report disb.html
    """
    from ..app import disb

    check_files(report, reads=(table,))
    matrix = disb.run_disb(
        workloads or ("A",), disb.rows_of(rows, device), seconds=seconds, device=device, small=not full, seed=seed,
        loop="open" if open_loop else "closed", slowdowns=table, progress=out.note,
    )  # fmt: skip
    if output == "json":
        out.print_json(matrix)
    else:
        out.print_whole(disb.table(matrix))
    write_file(report, lambda: disb.page(matrix).encode(), REPORT)
