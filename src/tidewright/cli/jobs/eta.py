"""``tide eta``: when a job starts and ends, by the live pool simulated forward."""

from __future__ import annotations

import click

from ...base.units import counted
from ...wire.api import FINAL_STATES, EtaView
from .. import output as out
from .. import words
from ..session import Session, pass_session


@click.command("eta", short_help="When a job starts and ends.")
@click.argument("job")
@out.json_option
@pass_session
def command(session: Session, job: str, output: str) -> None:
    """Say when JOB (an id or a unique name) starts and ends.

    The pool as it is now is simulated forward several times by the scheduler that runs, with run times, and jobs to
    come, drawn from what was seen so far. In parentheses: eight of ten of these futures lie between the two.

    The controller asks itself the same of waiting jobs now and then; once ten of them have started, how often they did
    so within their interval is printed, too (and by tide top, and in /metrics).
    """
    view = session.client().eta(job)
    if output == "json":
        out.print_json(view)
        return
    _print(view)


def _print(view: EtaView) -> None:
    out.echo(f"job {view.job} ({view.name}) is {view.state}")
    out.print_facts([(f"  {name}", text) for name, text in words.eta(view)])
    if view.state not in FINAL_STATES and view.samples:
        out.note(_basis(view))
        if held := words.calibration(view.calibration):
            out.note(held)


def _basis(view: EtaView) -> str:
    if view.method == "work-ahead":
        return "the queue is too long to be simulated at once; reckoned from the device-time before the job"
    return f"from {counted(view.samples, 'simulated future')}; eight of ten lie in the interval"
