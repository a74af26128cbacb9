"""The order in which a policy serves waiting jobs, as data: what it compares first, what next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ..model.cause import Cause, Code
from ..model.table import Column
from ..model.view import View


class OrderTerm(Struct, frozen=True):
    """One thing that rows are compared by. ``code``: says so of a number of rows, its only argument; ``values``: shape (n,), the
    least is served first."""

    code: Code
    values: Column
    say: Callable[[int], Cause] | None = None
    """What it is of a row, for people; None: only that rows differ in it is said."""


class QueueOrder(Struct, frozen=True):
    """Rows are served by the first term, among equals by the next, and in the end by id. ``queue``, of shape (n,): rows of
    different queues do not wait for each other; None: there is one queue."""

    terms: tuple[OrderTerm, ...] = ()
    queue: Column | None = None


@runtime_checkable
class OrderedPlanner(Protocol):
    """A planner that says in which order it serves waiting rows."""

    def order(self, view: View) -> QueueOrder: ...
