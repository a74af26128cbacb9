"""Commands that do one thing to several jobs: each is tried, and the first failure gives the exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.errors import TideError, Unreachable
from ...wire.api import ActionReply
from .. import output as out


def each(refs: Sequence[str], act: Callable[[str], ActionReply], done: str) -> int:
    """``act`` on every job; prints ``job 17 DONE`` for each, and every failure. Returns the exit code."""
    from ..shell import report

    code = 0
    for ref in refs:
        try:
            reply = act(ref)
        except Unreachable:
            raise
        except TideError as error:
            failed = report(error)  # every failure is said, also after another
            code = code or failed
            continue
        out.echo(f"job {reply.job} {done}")
        if reply.warning:
            out.note(f"warning: {reply.warning}")
    return code
