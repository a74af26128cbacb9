"""``tide eta``: when a job starts and ends, by the live pool simulated forward."""

from __future__ import annotations

import click

from ...base.units import counted
from ...wire.api import FINAL_STATES, CauseView, EtaView
from .. import output as out
from .. import words
from ..session import Session, pass_session
from .following import once_free


@click.command("eta", short_help="When a job starts and ends.")
@click.argument("job")
@out.json_option
@pass_session
def command(session: Session, job: str, output: str) -> None:
    """Say when JOB (an id or a unique name) starts and ends; of an array, the first of its members that wait.

    The pool as it is now is simulated forward several times by the scheduler that runs, with run times, and jobs to
    come, drawn from what was seen so far. In parentheses: eight of ten of these futures lie between the two. Where fewer
    than ten finished jobs say how long jobs run, their number is printed. Of a job that would be cancelled before it starts,
    as a dependency can no longer be met, when and why is printed, and in how many of the futures.

    The controller asks itself the same of waiting jobs now and then; once ten of them have started, how often they did
    so within their interval is printed, too (and by tide top, and in /metrics).
    """
    client = session.client()
    view = once_free(lambda: client.eta(job))
    if output == "json":
        out.print_json(view)
        return
    _print(view)


def _print(view: EtaView) -> None:
    out.echo(f"job {view.job} ({view.name}) is {view.state}")
    out.print_facts([(f"  {name}", text) for name, text in words.eta(view)])
    if view.state in FINAL_STATES:
        return
    if todo := _remedy(view):
        out.note(todo)
    if view.samples:
        out.note(_basis(view))
        if few := _durations(view):
            out.note(few)
        if held := words.calibration(view.calibration):
            out.note(held)


def _remedy(view: EtaView) -> str:
    """What to do next where no start is foreseen."""
    if view.starts is None and view.ends is None:
        return _remedy_of_hold(view.job, view.cause) or f"see what it waits for: tide why {view.job}"
    late = view.starts is not None and view.starts.middle < 0
    return f"see what would start it: tide why {view.job}" if late else ""


def _remedy_of_hold(job: int, cause: CauseView | None) -> str:
    """How the hold is ended that a job waits for, its own or another's."""
    if cause is None:
        return ""
    if cause.code == "AlsoHeld":
        parts = (part for part in cause.args.values() if isinstance(part, CauseView))
        return "; ".join(filter(None, (_remedy_of_hold(job, part) for part in parts)))
    if cause.code == "WaitsForHeld":
        return f"see why that one is held: tide why {cause.args['held']}"
    return {"HeldByUser": f"release it: tide resume {job}", "HeldBy": f"release it: tide release {job}"}.get(
        cause.code, ""
    )


def _basis(view: EtaView) -> str:
    if view.method == "work-ahead":
        return (
            "no future was simulated up to its start in the time allowed; reckoned from the device-time before the job"
        )
    futures = f"from {counted(view.samples, 'simulated future')}"
    return f"{futures}; eight of ten lie in the interval" if view.samples >= LEAST_FUTURES else futures


LEAST_FUTURES = 5
"""With fewer futures ``explain.forecast.interval`` is from the first to the last of them."""
FEW_FINISHED = 10
"""Finished jobs below which their number is printed."""


def _durations(view: EtaView) -> str:
    """From how many finished jobs run times come, where these are few."""
    if not view.durations or view.finished >= FEW_FINISHED:
        return ""
    jobs = counted(view.finished, "finished job")
    if view.durations == "similar":
        return f"run times come from {jobs}; wide interval"
    if view.durations == "estimates":
        return f"run times are users' estimates, held against {jobs} so far; wide interval"
    why = f"there {'is' if view.finished == 1 else 'are'} only {jobs}" if view.finished else "no job has finished yet"
    return f"run times are drawn from a general distribution, since {why}; wide interval"
