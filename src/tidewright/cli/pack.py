"""``tide pack``: pods that arrive and never leave, placed by several scores."""

from __future__ import annotations

from pathlib import Path

import click

from . import output as out
from .files import REPORT, check_files, report_option, write_file
from .progress import progress


@click.command("pack", short_help="Fill nodes with pods by several placement scores.")
@click.argument("trace", default="openb", metavar="[TRACE]")
@click.option(
    "--placement",
    default="best-fit,fgd",
    show_default=True,
    metavar="NAME,...",
    help="Scores: best-fit, fgd, dot-product, gpu-packing, gpu-clustering, tightest, spread, random, or a plug-in's.",
)
@click.option("--seeds", default="42", show_default=True, metavar="N,N-M", help="Orders in which the pods arrive.")
@report_option
@out.json_option
def command(trace: str, placement: str, seeds: str, report: Path | None, output: str) -> None:
    """Place pods that ask for parts of devices, one after another, until they ask for 130 % of them; none leaves.

    TRACE is openb (Alibaba's, packaged: 8,152 pods, 1,213 nodes with 6,212 GPUs; seeds 42 to 51 are the orders of FGD's own
    runs), or openb:FOLDER[,workload=NAME][,nodes=FILE][,pods=FILE] with files of that form, packed or not.
    """
    from ..app import packing
    from ..app.output_file import check_not_among

    check_files(report, reads=(trace,))
    if report is not None:
        check_not_among(report, REPORT, packing.files_read(trace), trace)
    with progress("packing", total=1.0) as bar:
        results = packing.pack(trace, placement, seeds, bar.update)
    if output == "json":
        click.echo(packing.as_json(results).decode())
    else:
        for table in packing.tables(results):
            out.print_whole(table)
    for note in packing.notes(results):
        out.note(f"note: {note}")
    write_file(report, lambda: packing.page(results).encode(), REPORT)
