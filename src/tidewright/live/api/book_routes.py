"""What every handler of the HTTP API has: the book, the clock, answers with times of the wall clock, requests to the engine."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from starlette.responses import Response

from ...engine import events as ev
from ...engine.book import Book
from ...model.job import State
from ...plan.render import render
from ...wire import api
from ..controller.controller_context import ControllerContext
from . import submission
from .answers import answer
from .cause_views import cause_view_or_none
from .wall_times import shown

WAITING = (State.QUEUED, State.SUSPENDED, State.HELD)
"""States of jobs without devices; of an array's members that wait, the first in the first of these is spoken of."""


class BookRoutes:
    """Handlers are methods of classes below it."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context

    @property
    def _book(self) -> Book:
        return self.context.loop.driver.engine.book

    def _now(self) -> int:
        return self.context.loop.clock.now()

    def _answer(self, body: Struct) -> Response:
        return answer(shown(body, self._book, self._now()))

    def _waiting(self, jobs: Iterable[int]) -> int:
        """How many of these jobs live and have no devices."""
        return sum(self._book.state(job) in WAITING for job in jobs if job in self._book.specs)

    async def _act(self, event: ev.Event, op_id: str, node: str = "", count: bool = False) -> Response:
        """``count``: those without devices are counted in the answer."""
        reply = await self.context.loop.request(event, op_id)
        submission.raise_refusal(reply)
        waiting = self._waiting((reply.job,)) if count else 0
        return self._answer(
            api.ActionReply(
                job=reply.job, node=node, waiting=waiting, warning=render(reply.warning), cause=cause_view_or_none(reply.warning)
            )
        )  # fmt: skip
