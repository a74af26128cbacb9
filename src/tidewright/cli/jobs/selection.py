"""Jobs of a command: named one by one, or chosen by filters. What is done to chosen ones is asked for on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NamedTuple

import click

from ...base.errors import UsageError
from ...base.units import agreeing, counted
from ...wire.api import ActionReply
from ...wire.calls.job_changes import Action, BulkReply, Selection
from ...wire.client import Client
from .. import output as out
from .each_job import SOME_FAILED, each

USERS_SHOWN = 8
REFUSALS_SHOWN = 10


class Chosen(NamedTuple):
    """Which jobs: ``jobs`` by name, or those that match all ``filters``; ``yes``: without a question."""

    jobs: tuple[str, ...]
    filters: dict[str, Any]
    yes: bool


class BulkAction(NamedTuple):
    """``one`` does it to a job; ``done`` is said of it, with ``{job}``, and ``all_done`` of many: ``are being cancelled``.
    ``options`` are of the request about many."""

    name: Action
    one: Callable[[str], ActionReply]
    done: str
    all_done: tuple[str, str]
    options: dict[str, Any]


def job_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument JOB... and the options that choose jobs instead, passed as one ``chosen``."""

    def choose(
        *args: Any, jobs: tuple[str, ...], user: str | None, team: str | None, name: str | None, state: str | None,
        every: bool, yes: bool, **rest: Any,
    ) -> Any:  # fmt: skip
        given = {"user": user, "team": team, "name": name, "state": state, "all": every}
        for key, value in given.items():
            if isinstance(value, str) and not value.strip(" ,"):
                raise UsageError(f"--{key} is empty", "give a value; a filter that is left out matches all jobs")
        filters = {key: value for key, value in given.items() if value}
        return command(*args, chosen=Chosen(jobs, filters, yes), **rest)

    found: Callable[..., Any] = update_wrapper(choose, command)
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Ask no question."),
        click.option("--all", "every", is_flag=True, help="All jobs; with other filters, all that match those."),
        click.option("-s", "--state", metavar="STATE[,…]", help="Jobs in these states, e.g. queued,held."),
        click.option("--name", metavar="NAME[,…]", help="Jobs of these names; of an array's name, its members."),
        click.option("--team", metavar="TEAM[,…]", help="Jobs of these teams."),
        click.option("-u", "--user", metavar="USER[,…]", help="Jobs of these users."),
        click.argument("jobs", nargs=-1, metavar="[JOB]..."),
    ):
        found = option(found)
    return found


def act(client: Client, chosen: Chosen, action: BulkAction) -> int:
    """Do it to every job that was named, or to all that match, after a question. Returns the exit code.

    Raises UsageError for neither or both of them, and where a question would be needed and there is no terminal.
    """
    if bool(chosen.jobs) == bool(chosen.filters):
        raise UsageError(
            "jobs are named and chosen by filters" if chosen.jobs else "no job is named",
            f"name jobs (tide {action.name} 17 18), or choose them with --user, --team, --name, --state or --all",
        )
    if chosen.jobs:
        return each(chosen.jobs, action.one, action.done)
    selection = client.select(action.name, **chosen.filters)
    for note in _left_out(selection, action.name):
        out.note(note)
    if not selection.jobs:
        out.note(f"no job to {action.name} matches; see them with tide ps")
        return 0
    if not chosen.yes and not _confirmed(selection, action.name):
        out.note("nothing was done")
        return SOME_FAILED
    return _report(list(client.bulk(action.name, selection.jobs, **action.options)), action)


def _left_out(selection: Selection, action: str) -> list[str]:
    notes = []
    if selection.others:
        count, they = counted(selection.others, "job"), agreeing(selection.others, "matches and is", "match and are")
        notes.append(f"{count} {they} left out: in no state in which tide {action} does anything")
    if selection.replicas:
        count, they = counted(selection.replicas, "replica"), agreeing(selection.replicas, "is", "are")
        notes.append(f"{count} of services {they} left out; end a service with tide serve delete")
    return notes


def _confirmed(selection: Selection, action: str) -> bool:
    """Whether the user agrees. Raises UsageError where no user can be asked."""
    said = f"{action} {summary(selection)}"
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {said}, and stdin is no terminal to ask on", "add --yes to do it without a question"
        )
    return click.confirm(f"{said}?", err=True)


def summary(selection: Selection) -> str:
    """``12 jobs: 10 of ada (8 queued, 2 running), 2 of bob (2 held)``."""
    users = [
        f"{one.jobs} of {one.user or 'no known user'} ({', '.join(f'{n} {state}' for state, n in one.states.items())})"
        for one in selection.users[:USERS_SHOWN]
    ]
    rest = selection.users[USERS_SHOWN:]
    if rest:
        users.append(f"{sum(one.jobs for one in rest)} of {counted(len(rest), 'other user')}")
    return f"{counted(len(selection.jobs), 'job')}: {', '.join(users)}"


def _report(replies: list[BulkReply], action: BulkAction) -> int:
    done = sum(len(reply.done) for reply in replies)
    ended = sum(reply.ended for reply in replies)
    refused = [one for reply in replies for one in reply.refused]
    out.echo(f"{counted(done, 'job')} {agreeing(done, *action.all_done)}")
    if ended:
        out.note(f"{counted(ended, 'job')} had ended by then")
    for one in refused[:REFUSALS_SHOWN]:
        out.note(f"error: {one.error}" + (f"\n  {one.remedy}" if one.remedy else ""))
    if len(refused) > REFUSALS_SHOWN:
        out.note(f"and {len(refused) - REFUSALS_SHOWN} more were refused")
    return SOME_FAILED if refused else 0
