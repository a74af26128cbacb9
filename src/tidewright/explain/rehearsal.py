"""A rehearsal: jobs submitted to a fork, and one planning round; and when they would start and end."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import events as ev
from ..engine.commands import Reply
from ..engine.engine import Engine
from ..model.cause import Cause, Code
from ..model.job import JobSpec
from ..model.node import bits
from ..plan.explain import Rehearsal
from ..plan.plan import Planner
from .forecast import SAMPLES, forecast
from .trial import Enough
from .why import limit_of

_FORECAST = 64
"""Jobs of one submission that are forecast, the first."""


def rehearse(
    fork: Engine, planner: Planner, specs: Sequence[JobSpec], enough: Enough = lambda: False, samples: int = SAMPLES,
    limits_enough: Enough | None = None,
) -> Rehearsal:  # fmt: skip
    """Where each would start now, or why it would wait, and when it starts and ends. ``fork`` is changed. ``limits_enough`` says
    when no more limits are looked for, which comes first; None: ``enough`` does."""
    now = fork.book.now
    fork.replan()
    replies = fork.step(now, [ev.Submit(spec, f"rehearsal.{n}") for n, spec in enumerate(specs)])
    answers = [reply for reply in replies if isinstance(reply, Reply)]
    image = fork.snapshot()
    if fork.book.planning:
        fork.step(now, [ev.PlanReady(planner.plan(fork.view()))])
    lines = tuple(_line(fork, planner, reply.job, limits_enough or enough) for reply in answers)
    warnings = tuple(dict.fromkeys(reply.warning for reply in answers if reply.warning))
    there = [reply.job for reply in answers if reply.job in fork.book.specs][:_FORECAST]
    return Rehearsal(lines, warnings, forecast(image, planner, there, enough, samples) if samples else ())


def _line(fork: Engine, planner: Planner, job: int, enough: Enough) -> Cause:
    book = fork.book
    if job not in book.specs:
        return Code.WOULD_END()
    layout = book.board.layout
    allocation = book.allocations.get(job) or book.reservations.get(job)
    if allocation:
        places = tuple(f"{layout.nodes[part.node].name}[{','.join(map(str, bits(part.mask)))}]" for part in allocation)
        return Code.WOULD_START(places) if job in book.allocations else Code.WOULD_START_ONCE_FREE(places)
    limit = None if enough() else limit_of(fork, planner, job).why  # a plan each: of thousands that is minutes
    return Code.WOULD_WAIT(limit or Code.WAITS_FOR_DEVICES())
