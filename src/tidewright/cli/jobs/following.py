"""After the submission: telling the ids, waiting, following, and turning a job's end into an exit code."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from ...base.errors import Unreachable, WorldError
from ...base.units import agreeing
from ...model.job import JobSpec
from ...wire.api import NO_EXIT_CODE, SubmitReply, WaitReply
from .. import output as out
from .. import words
from ..entry import INTERRUPTED
from ..session import Session

UNREACHABLE_LIMIT_S = 300.0
"""How long a wait outlasts a controller that does not answer; jobs run on meanwhile."""
RETRY_S = 1.0


def submission_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that ``tide run`` and ``tide submit`` share."""
    for option in reversed(
        [
            click.option("--wait", is_flag=True, help="Wait for the end and return the job's exit code."),
            click.option("-f", "--follow", is_flag=True, help="Print its output as it comes; implies --wait."),
            click.option("--dry-run", is_flag=True, help="Only say where and when it would start."),
            click.option("--parsable", is_flag=True, help="Print only the id."),
        ]
    ):
        command = option(command)
    return command


def submit(session: Session, specs: Sequence[JobSpec], dry_run: bool, parsable: bool) -> list[int]:
    """Send the specs; prints ids (or, dry, forecasts) and warnings. Returns the ids."""
    from ...app.jobspec.submission import batches

    client = session.client()
    ids: list[int] = []
    for batch in batches(specs):
        reply = client.submit(batch, dry_run=dry_run)
        ids.extend(reply.ids)
        _print_reply(reply, parsable)
    return ids


def _print_reply(reply: SubmitReply, parsable: bool) -> None:
    names = reply.names or ("",) * len(reply.ids)
    for job, name in zip(reply.ids, names, strict=False):
        out.echo(str(job) if parsable else f"submitted job {job} ({name})" if name else f"submitted job {job}")
    for at, line in enumerate(reply.forecast):
        out.echo(line)
        if at < len(reply.times):
            out.print_facts([(f"  {name}", text) for name, text in words.eta(reply.times[at])])
    if reply.dry_run:
        out.note("dry run: nothing was submitted")
    for warning in summed_up(reply.warnings):
        out.note(f"warning: {warning}")


def summed_up(warnings: Sequence[str]) -> list[str]:
    """The last of those that differ in their numbers only: members of an array are reported one after another."""
    return list({re.sub(r"\d+(\.\d+)?", "#", warning): warning for warning in warnings}.values())


def finish(session: Session, ids: Sequence[int], follow: bool, wait: bool, quiet: bool = False) -> int:
    """Follow and wait as asked; the exit code is the worst of the jobs'."""
    if not ids or not (follow or wait):
        return 0
    from .logs import copy_log, say_others

    try:
        if follow:
            try:
                if not quiet:
                    say_others(session, str(ids[0]))
                copy_log(session, str(ids[0]), follow=True)
            except (Unreachable, WorldError) as error:
                out.note(f"the log broke off ({error.args[0]}); waiting for the end; tide logs -f {ids[0]} shows more")
        return wait_for(session, [str(job) for job in ids], quiet=quiet)
    except KeyboardInterrupt:
        jobs = " ".join(map(str, ids))
        them = agreeing(len(ids), f"job {jobs} runs", f"jobs {jobs} run")
        out.note(f"\n{them} on; look again with tide logs -f {ids[0]}, end it with tide cancel {jobs}")
        return INTERRUPTED


def wait_for(session: Session, refs: Sequence[str], timeout: float | None = None, quiet: bool = False) -> int:
    """Wait until every job has ended; prints how each did on stderr. Returns the worst exit code; 124 on a timeout.

    Raises Unreachable at once when no controller answers at the start; one that goes away later is waited for.
    """
    session.client().info()
    worst = 0
    until = None if timeout is None else time.monotonic() + timeout
    for ref in refs:
        reply = _wait_over_restarts(session, ref, until)
        if not reply.final:
            out.note(f"job {reply.job} is still {reply.state}")
            worst = max(worst, 124)
            continue
        code = 1 if reply.exit_code == NO_EXIT_CODE else reply.exit_code
        worst = max(worst, code)
        if code and not quiet:
            out.note(_ending(reply, code))
    return worst


def _ending(reply: WaitReply, code: int) -> str:
    why = f": {reply.why}" if reply.why and reply.why != f"exit code {code}" else ""
    return f"job {reply.job} {reply.state}, exit code {code}{why}"


def _wait_over_restarts(session: Session, ref: str, until: float | None) -> WaitReply:
    """Waits on over restarts of the controller, which jobs survive; gives up after UNREACHABLE_LIMIT_S without an answer."""
    lost_at: float | None = None
    while True:
        try:
            return session.client().wait(ref, None if until is None else max(0.0, until - time.monotonic()))
        except (Unreachable, WorldError):
            now = time.monotonic()
            if lost_at is None:
                out.note("the controller does not answer; jobs run on; waiting for it")
                lost_at = now
            elif now - lost_at > UNREACHABLE_LIMIT_S:
                raise
            time.sleep(RETRY_S)
