"""Commands that do one thing to several jobs: each is tried, whatever becomes of the others, and gets its own line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...base.errors import TideError, Unreachable
from ...base.units import counted
from ...wire.api import ActionReply
from ...wire.array_refs import member_ref, members_of
from .. import output as out

SOME_FAILED = 1
"""Exit code for several jobs of which some failed; that of a single one is its error's own."""


def each(refs: Sequence[str], act: Callable[[str], ActionReply], done: str | Callable[[ActionReply], str]) -> int:
    """``act`` on every job, once where it is named twice. ``done`` may be made of the answer. Returns the exit code.

    Prints ``job 17 DONE`` for each, with the job's id in the place of ``{job}`` in ``done``, and every failure on stderr; of an
    array, to how many of its members it was done, and to which it was not. Raises Unreachable, after a line with the jobs that
    are left.
    """
    jobs = list(dict.fromkeys(refs))
    code = 0
    for at, ref in enumerate(jobs):
        try:
            reply = act(ref)
        except Unreachable:
            if at:
                out.note(f"nothing is known to be done to: {' '.join(jobs[at:])}")
            raise
        except TideError as error:
            code = failed(ref, error, len(jobs))
            continue
        out.echo(_done(ref, reply, done if isinstance(done, str) else done(reply)))
        if reply.refused:
            code = _left(reply)
        if reply.warning:
            out.note(f"warning: {reply.warning}")
    return code


def _done(ref: str, reply: ActionReply, done: str) -> str:
    if not reply.jobs:
        return f"job {reply.job} {done.format(job=ref if members_of(ref) else reply.job)}"
    members = f"{counted(len(reply.jobs), 'member')} of array {reply.array or ref}"
    return f"each of {members} {done.format(job=ref)}"


def _left(reply: ActionReply) -> int:
    """Say which members were left as they are. Returns the exit code."""
    for one in reply.members:
        name = member_ref(reply.array, one.index) if reply.array else f"job {one.job}"
        out.note(f"{name} is left as it is ({one.state}): {one.why}")
    if reply.refused > len(reply.members):
        more = reply.refused - len(reply.members)
        out.note(f"so {'is' if more == 1 else 'are'} {more} more")
    return SOME_FAILED


def failed(ref: str, error: TideError, jobs: int) -> int:
    """Print the failure of one of so many jobs, with the name that its user gave it. Returns the command's exit code."""
    from ..shell import report

    names_it = re.search(rf"job {re.escape(ref)}\b", str(error)) or repr(ref) in str(error)
    code = report(error, "" if names_it else ref)
    return code if jobs == 1 else SOME_FAILED
