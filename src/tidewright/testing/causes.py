"""Causes as tests look at them: by codes and arguments, however deep they lie in others."""

from __future__ import annotations

from collections.abc import Iterator

from ..engine.book import Book
from ..model.cause import Cause, Code
from .worldlet import Worldlet


def within(why: Cause | str | None) -> Iterator[Cause]:
    """A cause and every cause among its arguments, the outermost first."""
    if not isinstance(why, Cause):
        return
    yield why
    for arg in why.args:
        for inner in arg if isinstance(arg, tuple) else (arg,):
            yield from within(inner if isinstance(inner, Cause) else None)


def codes(why: Cause | str | None) -> list[Code]:
    """The codes of a cause and of every cause in it."""
    return [one.code for one in within(why)]


def history(where: Worldlet | Book, job: int) -> list[Cause]:
    """All that the history of a job says, oldest first, causes in causes included; of an ended one, too."""
    ended = where.ended.get(job) if isinstance(where, Worldlet) else None
    book = where.engine.book if isinstance(where, Worldlet) else where
    lines = ended.history if ended else book.jobs[job].history
    return [one for _, _, why in lines for one in within(why)]


def history_codes(where: Worldlet | Book, job: int) -> list[Code]:
    """Their codes."""
    return [one.code for one in history(where, job)]
