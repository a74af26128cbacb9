"""``tide update``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ...base.errors import TideError, Unreachable, UsageError
from ...base.units import counted
from ...model.spec_changes import SpecChanges
from ...wire.client import Client
from .. import output as out
from ..session import Session, pass_session
from ..types import DEADLINE_OR_NONE, DURATION_OR_NONE, JOB_NAME, LIMIT, WEIGHT
from .each_job import each, failed

_SUBMIT_ANEW = "cancel it and submit it anew"
_ELSEWHERE = {
    ("-g", "--devices"): "use tide scale JOB DEVICES", ("--to",): "use tide migrate JOB --to NODE",
    ("--type",): _SUBMIT_ANEW, ("--placement",): _SUBMIT_ANEW, ("--ranks",): _SUBMIT_ANEW,
    ("--gpu-mem",): _SUBMIT_ANEW, ("--gpu-milli",): _SUBMIT_ANEW, ("--share",): _SUBMIT_ANEW,
    ("--cpus",): _SUBMIT_ANEW, ("--mem",): _SUBMIT_ANEW,
}  # fmt: skip
"""Options of tide run that decide where a job can run, and what to do instead."""


def _elsewhere(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = option.opts[-1]
        raise UsageError(f"{name} is not changed by tide update", _ELSEWHERE[tuple(option.opts)])


def _with_refusals(command: Any) -> Any:
    for names in _ELSEWHERE:
        command = click.option(*names, hidden=True, callback=_elsewhere, expose_value=False)(command)
    return command


@click.command("update", short_help="Change what a job asks for.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--sla", "tier", type=click.Choice(["premium", "standard", "basic"]),
              help="What is promised from now on: 95%, 70% or nothing of full speed.")  # fmt: skip
@click.option("-t", "--time", "--max-duration", "limit", type=LIMIT, metavar="TIME|+TIME|-TIME|none",
              help="Limit of run time; +1h or -30m changes the one there is.")  # fmt: skip
@click.option("--deadline", type=DEADLINE_OR_NONE, metavar="TIME|none", help="Wanted end, counted from now.")
@click.option("--expect", type=DURATION_OR_NONE, metavar="TIME|none", help="Your estimate of its run time.")
@click.option("--weight", type=WEIGHT, metavar="N", help="Share among equals, above 0.")
@click.option("--name", type=JOB_NAME, metavar="NAME", help="What it is called.")
@click.option("--team", metavar="NAME", help="Who it is accounted to; before its first start.")
@click.option("--retries", type=click.IntRange(0, 1000), metavar="N", help="How often a failure is tried again.")
@click.option("--array-limit", type=click.IntRange(min=0), metavar="N",
              help="Of an array: members that may run at once; 0: all. Those that run already run on.")  # fmt: skip
@_with_refusals
@pass_session
def command(
    session: Session, /, jobs: tuple[str, ...], limit: tuple[int | None, int] | None, deadline: int | None,
    expect: int | None, array_limit: int | None, **fields: Any,
) -> int:  # fmt: skip
    """Change what each JOB (an id or a unique name) asks for, while it waits, is suspended or runs.

    It keeps its place in the queue. A limit below what it has run already ends it at once. Devices are changed by
    `tide scale`, nodes by `tide migrate`.

    \b
    tide update 17 --sla premium
    tide update 17 18 --time +1h
    tide update sweep --deadline 6h --weight 2
    tide update 12 --array-limit 4
    """
    whole, by = limit if limit is not None else (None, 0)
    changes = SpecChanges(
        max_duration_us=whole, limit_by_us=by, deadline_us=deadline, expected_us=expect,
        **{name: value for name, value in fields.items() if value is not None},
    )  # fmt: skip
    if changes == SpecChanges() and array_limit is None:
        raise UsageError("nothing to change", "name an option with its new value; see tide update --help")
    client = session.client()
    code = 0 if array_limit is None else _limit(client, jobs, array_limit)
    return (
        code
        if changes == SpecChanges()
        else max(code, each(jobs, lambda job: client.update(job, changes), "is updated"))
    )


def _limit(client: Client, arrays: Sequence[str], limit: int) -> int:
    """Change how many members of arrays run at once. Returns the exit code."""
    code = 0
    for ref in dict.fromkeys(arrays):
        try:
            array = client.array_limit(ref, limit).job
        except Unreachable:
            raise
        except TideError as error:
            code = failed(ref, error, len(arrays))
            continue
        out.echo(f"array {array} runs {counted(limit, 'member')} at once" if limit else f"array {array} has no limit")
    return code
