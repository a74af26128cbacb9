"""After the submission: telling the ids, waiting, following, and turning a job's end into an exit code."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from ...base.errors import Busy, NotAllowed, TideError, Unreachable, WorldError
from ...base.units import agreeing, counted
from ...model.job import JobSpec
from ...wire.api import NO_EXIT_CODE, MemberView, SubmitReply, WaitReply
from ...wire.array_refs import ranges
from ...wire.calls.job_refs import Ref
from .. import output as out
from .. import words
from ..entry import INTERRUPTED
from ..session import Session

T = TypeVar("T")
UNREACHABLE_LIMIT_S = 300.0
"""How long a wait outlasts a controller that does not answer; jobs run on meanwhile."""
RETRY_S = 1.0
BUSY_LIMIT_S = 60.0
"""How long a question is asked again where the controller has others to answer first."""


def submission_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that ``tide run`` and ``tide submit`` share."""
    for option in reversed(
        [
            click.option("-W", "--wait", is_flag=True, help="Wait for the end and return the job's exit code."),
            click.option("-f", "--follow", is_flag=True, help="Print its output as it comes; implies --wait."),
            click.option("-H", "--hold", is_flag=True, help="Keep it from starting until tide release."),
            click.option(
                "--dry-run", "--test-only", "dry_run", is_flag=True, help="Only say where and when it would start."
            ),
            click.option("--parsable", is_flag=True, help="Print only the id."),
        ]
    ):
        command = option(command)
    return command


def say_left_out() -> None:
    """On stderr which variables of this environment do not travel, since they hold no text."""
    from ...app.jobspec.submission import no_text

    if left_out := no_text(os.environ):
        out.note(f"warning: left out of the job's environment, for they are not UTF-8 text: {', '.join(left_out)}")


class SubmittedJob(NamedTuple):
    """One job, or an array: what names it to the controller and to its user, and the id of the (first) job."""

    ref: Ref
    first: int


def submit(
    session: Session,
    specs: Sequence[JobSpec],
    dry_run: bool,
    parsable: bool,
    after: Sequence[str] = (),
    hold: bool = False,
) -> list[SubmittedJob]:
    """Send the specs, one job or the members of one array; prints the id (or, dry, forecasts) and warnings. ``hold``:
    they are submitted as held."""
    from ...app.jobspec.submission import batches, joined

    client = session.client()
    ids: list[int] = []
    for batch in batches([replace(spec, hold=True) for spec in specs] if hold else specs):
        try:
            sent = joined(batch, ids[0] if ids else 0)
            reply = once_free(partial(client.submit, sent, dry_run=dry_run, after=after))
        except TideError:
            if ids:  # a large array goes in several requests
                many = f"{len(ids)} of {len(specs)} members were submitted as array {ids[0]}, and more may have been"
                out.note(f"{many}; end them before you submit it again: tide cancel {ids[0]}")
            raise
        ids.extend(reply.ids)
        _print_reply(reply)
    if not ids:
        return []
    array, held = specs[0].array, specs[0].hold or hold
    if array is None:
        _print_ids(ids, [spec.name for spec in specs], parsable)
        return _held([SubmittedJob(job, job) for job in ids], held, parsable)
    listed = f"{counted(len(ids), 'member')}, {ids[0]}_[{ranges(one.array.index for one in specs if one.array)}]"
    out.echo(str(ids[0]) if parsable else f"submitted array {ids[0]} ({array.parent}): {listed}")
    return _held([SubmittedJob(str(ids[0]), ids[0])], held, parsable)


def _held(jobs: list[SubmittedJob], held: bool, parsable: bool) -> list[SubmittedJob]:
    """The same; says how held ones are released."""
    if held and not parsable:
        out.note(
            f"held; tide release {' '.join(str(job.ref) for job in jobs)} lets {agreeing(len(jobs), 'it', 'them')} start"
        )
    return jobs


def _print_ids(ids: Sequence[int], names: Sequence[str], parsable: bool) -> None:
    for job, name in zip(ids, names, strict=True):
        out.echo(str(job) if parsable else f"submitted job {job} ({name})" if name else f"submitted job {job}")


def _print_reply(reply: SubmitReply) -> None:
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


def finish(session: Session, jobs: Sequence[SubmittedJob], follow: bool, wait: bool, quiet: bool = False) -> int:
    """Follow (of an array the first member) and wait as asked; the exit code is the worst of the jobs'."""
    if not jobs or not (follow or wait):
        return 0
    from .logs import copy_log, say_others

    try:
        if follow:
            try:
                if not quiet:
                    say_others(session, jobs[0].first)
                copy_log(session, jobs[0].first, follow=True)
            except (Unreachable, WorldError) as error:
                out.note(f"the log broke off ({error.args[0]}); waiting for the end; tide wait {jobs[0].ref} goes on")
        return wait_for(session, [job.ref for job in jobs], quiet=quiet)
    except KeyboardInterrupt:
        refs = " ".join(str(job.ref) for job in jobs)
        array = isinstance(jobs[0].ref, str)
        them = agreeing(len(jobs), f"{'array' if array else 'job'} {refs} runs", f"jobs {refs} run")
        again = f"tide ps, tide wait {refs}" if array else f"tide logs -f {refs.split()[0]}"
        out.note(f"\n{them} on; look again with {again}, end it with tide cancel {refs}")
        return INTERRUPTED


def wait_for(session: Session, refs: Sequence[Ref], timeout: float | None = None, quiet: bool = False) -> int:
    """Wait until every job has ended; prints how each did on stderr. Returns the worst exit code; 124 on a timeout.

    Raises Unreachable at once when no controller answers at the start; one that goes away later is waited for.
    """
    session.client().info()
    worst = 0
    until = None if timeout is None else time.monotonic() + timeout
    for ref in refs:
        reply = _wait_over_restarts(session, ref, until)
        if not reply.final:
            out.note(f"array {reply.array}: {reply.why}" if reply.array else f"job {reply.job} is still {reply.state}")
            worst = max(worst, 124)
            continue
        code = 1 if reply.exit_code == NO_EXIT_CODE else reply.exit_code
        worst = max(worst, code)
        if code and not quiet:
            out.note(_ending(reply, code))
    return worst


def _ending(reply: WaitReply, code: int) -> str:
    if reply.failed:
        return "\n".join([f"array {reply.array}: {reply.why}, exit code {code}", *map(_member_ending, reply.members)])
    why = f": {reply.why}" if reply.why and reply.why != f"exit code {code}" else ""
    return f"job {reply.job} {reply.state}, exit code {code}{why}"


def _member_ending(one: MemberView) -> str:
    why = f": {one.why}" if one.why and one.why != f"exit code {one.exit_code}" else ""
    return f"  [{one.index}] job {one.job} {one.state}, exit code {one.exit_code}{why}"


def _wait_over_restarts(session: Session, ref: Ref, until: float | None) -> WaitReply:
    """Waits on over restarts of the controller, which jobs survive."""
    return over_restarts(
        lambda: session.client().wait(ref, None if until is None else max(0.0, until - time.monotonic())), until
    )


def over_restarts(ask: Callable[[], T], until: float | None = None) -> T:
    """The answer, asked for again while no controller answers. Raises Unreachable after UNREACHABLE_LIMIT_S without one, and
    after ``until`` (monotonic time, seconds)."""
    lost_at: float | None = None
    while True:
        try:
            return ask()
        except NotAllowed:
            raise
        except (Unreachable, WorldError):
            now = time.monotonic()
            if lost_at is None:
                out.note("the controller does not answer; jobs run on; waiting for it")
                lost_at = now
            elif now - lost_at > UNREACHABLE_LIMIT_S or (until is not None and now > until):
                raise
            time.sleep(RETRY_S)


def once_free(ask: Callable[[], T]) -> T:
    """The answer, asked for again while the controller has as many questions, or connections, as it takes. Raises Busy after
    BUSY_LIMIT_S."""
    until: float | None = None
    while True:
        try:
            return ask()
        except Busy as error:
            now = time.monotonic()
            if until is None:
                out.note(
                    f"{error.message}; waiting for up to {BUSY_LIMIT_S:.0f} s"
                    + (f" ({error.remedy})" if error.remedy else "")
                )
                until = now + BUSY_LIMIT_S
            elif now >= until:
                raise
            # Sooner than it says: with many that ask, who keeps to it comes last.
            time.sleep(RETRY_S * min(max(error.retry_s, 1.0), random.uniform(2.0, 4.0)))
