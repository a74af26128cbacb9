"""Whole answers: the limit of a job with the least changes that lift it."""

from __future__ import annotations

import msgspec

from ..engine.engine import Engine
from ..plan.explain import Explanation
from ..plan.plan import Planner
from .changes import Enough, smallest_changes
from .why import limit_of


def explain(engine: Engine, planner: Planner, job: int, now: int = 0, enough: Enough = lambda: False) -> Explanation:
    """Why ``job`` waits and the least changes that would start it now. Raises KeyError for a job not in the book.

    ``now``: the reader's time, if that is later than the book's; ``enough``: whether to end the search with what is found.
    """
    found = limit_of(engine, planner, job, now)
    return msgspec.structs.replace(found, changes=smallest_changes(engine, planner, found, enough))
