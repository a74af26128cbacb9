"""What every handler of the HTTP API has: the book, the clock, answers with times of the wall clock, requests to the engine."""

from __future__ import annotations

from msgspec import Struct
from starlette.responses import Response

from ...engine import events as ev
from ...engine.book import Book
from ...plan.render import render
from ...wire import api
from ..controller.controller_context import ControllerContext
from . import submission
from .answers import answer
from .cause_views import cause_view_or_none
from .wall_times import shown


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

    async def _act(self, event: ev.Event, op_id: str, node: str = "") -> Response:
        reply = await self.context.loop.request(event, op_id)
        submission.raise_refusal(reply)
        return self._answer(
            api.ActionReply(
                job=reply.job, node=node, warning=render(reply.warning), cause=cause_view_or_none(reply.warning)
            )
        )
