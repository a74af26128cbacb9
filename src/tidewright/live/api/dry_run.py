"""A dry run: the jobs submitted to a copy of the book, and one planning round."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine import events as ev
from ...engine.book import Book
from ...engine.commands import Reply
from ...engine.engine import Engine
from ...model.cause import Cause, Code
from ...model.job import JobSpec, State
from ...model.node import bits
from ...plan.plan import Planner
from ...plan.render import render


def dry_run(fork: Engine, planner: Planner, specs: Sequence[JobSpec]) -> tuple[tuple[str, ...], tuple[Cause, ...]]:
    """(one line per spec, warnings): where each would start now, or why it would wait. ``fork`` is changed."""
    now = fork.book.now
    fork.replan()
    replies = fork.step(now, [ev.Submit(spec, f"rehearsal.{n}") for n, spec in enumerate(specs)])
    answers = [reply for reply in replies if isinstance(reply, Reply)]
    if fork.book.planning:
        fork.step(now, [ev.PlanReady(planner.plan(fork.view()))])
    lines = tuple(_line(fork.book, reply.job) for reply in answers)
    return lines, tuple(dict.fromkeys(reply.warning for reply in answers if reply.warning))


def _line(book: Book, job: int) -> str:
    if job not in book.specs:
        return "would end at once"
    layout = book.board.layout
    allocation = book.allocations.get(job) or book.reservations.get(job)
    if allocation:
        names = ", ".join(
            f"{layout.nodes[part.node].name}[{','.join(map(str, bits(part.mask)))}]" for part in allocation
        )
        return (
            f"would start now on {names}"
            if job in book.allocations
            else f"would start on {names} once they are released"
        )
    held = book.hold_reason(job) if book.state(job) is State.HELD else None
    blocked = book.blocked.get(job)
    why = held[1] if held else blocked.limit(book.now) if blocked else Code.WAITS_FOR_DEVICES()
    return f"would wait: {render(why)}"
