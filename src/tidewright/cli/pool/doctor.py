"""``tide doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...base.errors import DamagedJournal, UsageError
from .. import output as out
from ..progress import progress, ticking
from ..session import Session, pass_session
from ..visible import visible

if TYPE_CHECKING:
    from ...app.health import Finding, Repair, Report

LEVELS = {"ok": "ok  ", "note": "note", "bad": "BAD "}
STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
LOST = "jobs that only lost turns know are ended by tide up if they still run; save their work before"


@click.command("doctor", short_help="Check the state directory and this machine; repair what is safe.")
@click.option("--repair", is_flag=True, help="Repair what is safe to repair, and say what was done. A damaged journal is "
              "replaced by a sound copy; the original is kept.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@pass_session
def command(session: Session, repair: bool, output: str) -> int:
    """Check the state directory, its disk, the processes on it, this machine and the whole journal; each finding says what to do.

    Works with the controller up and down. Changes nothing without --repair, which closes files to others, moves away what lies
    in the place of a socket, drops remembered options that stop a start, and, with the controller and its agents down, removes
    control groups, rank directories and images of jobs that have ended. The exit code is 6 when the journal is damaged, 1 when
    anything else is bad and stays so.
    """
    from ...app import health

    if session.url is not None:
        raise UsageError("tide doctor looks at a state directory of this machine", "leave out --url")
    with progress("looking at the state directory", lines=True) as bar, ticking(bar):

        def step(text: str) -> None:
            bar.update(text=text)

        findings, report = health.examine(session.state, step)
        repairs = health.mend(findings) if repair else []
        if (
            len(findings) == len(repairs) == 1 and repairs[0].ok
        ):  # it was open to others, and nothing else was looked at
            more, report = health.examine(session.state, step)
            findings, repairs = [*findings, *more], [*repairs, *health.mend(more)]
        damaged = report is not None and not report.sound
        replaced = _replaced(*health.repair(session.state)) if damaged and repair else []
        changed = bool(replaced) or any(one.ok for one in repairs)
        left = [one for one in (health.examine(session.state, step)[0] if changed else findings) if one.level == "bad"]
    if output == "json":
        out.print_json(_as_json(findings, repairs, replaced, left))
    else:
        _print(findings)
        _print_repairs(repairs, replaced)
        if repair and not repairs and not replaced:
            click.echo("nothing here can be repaired with safety" if left else "nothing to repair")
        for one in left if changed else ():
            out.echo(f"still BAD: {one.what}: {one.text}")
    return DamagedJournal.exit_code if damaged and not repair else int(bool(left))


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        first, *rest = finding.text.splitlines()
        level = LEVELS[finding.level]
        shown = click.style(level, fg=STYLES[finding.level]) if out.colourful() else level
        click.echo(f"{shown}  {finding.what}: {visible(first)}")
        for line in [*rest, *finding.next.splitlines()]:
            out.echo(f"      {line}")


def _print_repairs(repairs: Sequence[Repair], replaced: Sequence[str]) -> None:
    for one in repairs:
        out.echo(f"{'repaired' if one.ok else 'NOT repaired'}: {one.finding.what}: {one.text}")
    if replaced:
        first, *rest = replaced
        out.echo(f"repaired: {first}")
        for line in rest:
            out.echo(f"note  {line}")


def _as_json(
    findings: Sequence[Finding], repairs: Sequence[Repair], replaced: Sequence[str], left: Sequence[Finding]
) -> dict[str, Any]:
    journal = [{"what": "journal", "ok": True, "text": "\n".join(replaced)}] if replaced else []
    return {
        "sound": not left,
        "findings": [
            {
                "what": one.what,
                "level": one.level,
                "text": one.text,
                "next": one.next,
                "repairable": one.mend is not None,
            }
            for one in findings
        ],
        "repairs": [*({"what": one.finding.what, "ok": one.ok, "text": one.text} for one in repairs), *journal],
    }


def _replaced(fixed: Report, kept: Path) -> list[str]:
    """What was done to a damaged journal, and what it means."""
    done = [f"{_kept(fixed)}; the damaged files are in {kept}"]
    return [*done, LOST] if not fixed.keep_to or fixed.keep_to < fixed.written or fixed.jobs_affected else done


def _kept(fixed: Report) -> str:
    if fixed.keep_to > fixed.keep_from:
        return f"turns {fixed.keep_from + 1} to {fixed.keep_to} kept"
    if fixed.keep_to:
        return f"the state after turn {fixed.keep_to} kept"
    return "no turn could be kept; the journal begins anew, with ids after those that were given out"
