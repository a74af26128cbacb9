"""``tide rates``."""

from __future__ import annotations

import click
from msgspec.structs import replace

from ...base.errors import UsageError
from ...wire.api import RateRow
from .. import output as out
from ..output import Column
from ..session import Session, pass_session


@click.command("rates", short_help="How fast workloads run on which devices.")
@click.argument("workload", required=False, default="")
@click.option("--learnt", is_flag=True, help="Only what jobs have shown.")
@click.option("--forget", is_flag=True, help="Forget what jobs have shown of WORKLOAD; learn it anew.")
@out.output_options(lambda given: columns())
@pass_session
def command(session: Session, workload: str, learnt: bool, forget: bool, output: str, headers: bool) -> None:
    """How fast workloads (tide run --workload NAME) run: declared with rates: in config.yaml, and learnt from jobs that report
    samples. All of them, or those of WORKLOAD.

    PER_S is samples per second; of a goodput model, seconds of its steps are shown. Where jobs have shown another figure than is
    declared, FROM has the declared one, too. --forget WORKLOAD: what is declared of it, if anything, holds again until jobs show
    otherwise. See docs/rates.md.
    """
    if forget:
        if not workload:
            raise UsageError("--forget needs a WORKLOAD", "tide rates --learnt lists them")
        session.client().forget_rates(workload)
        out.echo(f"what jobs have shown of {workload} is forgotten")
        return
    reply = session.client().rates(workload)
    rows = tuple(row for row in reply.rows if row.learnt or not learnt)
    reply = replace(reply, rows=rows)
    if not rows and output == "table":
        out.note("no rates are known; declare them, or run jobs with --workload that report samples: docs/rates.md")
        return
    out.print_rows(rows, columns(), output, headers, lambda row: f"{row.workload}:{row.kind}:{row.devices}", reply)


def _per_s(row: RateRow) -> str:
    if row.step_s:
        return " ".join(f"{name}={seconds:.3g}" for name, seconds in row.step_s.items() if seconds)
    return f"{row.per_s:,.4g}" if row.per_s else "cannot run"


def _from(row: RateRow) -> str:
    if not row.learnt:
        return "config"
    return f"jobs (config: {row.declared_per_s:,.4g})" if row.declared_per_s else "jobs"


def columns() -> list[Column[RateRow]]:
    """The columns of a list of rates."""
    return [
        Column("WORKLOAD", lambda row: row.workload, least=12, tail=True),
        Column("KIND", lambda row: row.kind, least=8, tail=True),
        Column("DEVICES", lambda row: str(row.devices or "-"), right=True),
        Column("NODES", lambda row: str(row.nodes or "any") if row.devices else "-", right=True),
        Column("PER_S", _per_s, right=True, least=10),
        Column("FROM", _from, least=6),
    ]
