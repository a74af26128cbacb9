"""``tide doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...base.errors import DamagedJournal, UsageError
from .. import output as out
from ..progress import progress
from ..session import Session, pass_session

if TYPE_CHECKING:
    from ...app.health import Report

LEVELS = {"ok": "ok  ", "note": "note", "bad": "BAD "}
STYLES = {"ok": "green", "note": "yellow", "bad": "red"}


@click.command("doctor", short_help="Check the state directory.")
@click.option("--repair", is_flag=True, help="Put a sound copy of a damaged journal in place; the original is kept.")
@pass_session
def command(session: Session, repair: bool) -> int:
    """Check the state directory, the processes on it and the whole journal; say what can be recovered.

    Changes nothing without --repair. The exit code is 6 when the journal is damaged, 1 when anything else is bad.
    """
    from ...app import health

    if session.url is not None:
        raise UsageError("tide doctor looks at a state directory of this machine", "leave out --url")
    with progress("reading the journal"):
        findings, report = health.examine(session.state)
    for finding in findings:
        first, *rest = finding.text.splitlines()
        level = LEVELS[finding.level]
        click.echo(
            f"{click.style(level, fg=STYLES[finding.level]) if out.colourful() else level}  {finding.what}: {first}"
        )
        for line in rest:
            click.echo(f"      {line}")
    if report is not None and not report.sound:
        if not repair:
            return DamagedJournal.exit_code
        fixed, kept = health.repair(session.state)
        click.echo(f"repaired: {_kept(fixed)}; the damaged files are in {kept}")
        if not fixed.keep_to or fixed.keep_to < fixed.written or fixed.jobs_affected:
            click.echo(
                "note  jobs that only lost turns know are ended by tide up if they still run; save their work before"
            )
        return 0
    if repair:
        raise UsageError("there is nothing to repair", "start the controller with tide up")
    return int(any(finding.level == "bad" for finding in findings))


def _kept(fixed: Report) -> str:
    if fixed.keep_to > fixed.keep_from:
        return f"turns {fixed.keep_from + 1} to {fixed.keep_to} kept"
    if fixed.keep_to:
        return f"the state after turn {fixed.keep_to} kept"
    return "no turn could be kept; the journal begins anew, with ids after those that were given out"
