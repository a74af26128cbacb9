"""Questions and answers as they travel between the controller and the process that answers them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from ..engine.engine import Engine
from ..model.job import JobSpec
from ..plan.explain import Change, Explanation, Forecast, Rehearsal
from ..plan.plan import Planner
from .changes import smallest_changes
from .forecast import forecast
from .rehearsal import rehearse
from .trial import Enough


class ChangesQuestion(Struct, frozen=True, tag="changes"):
    """The least changes that start a job."""

    found: Explanation


class ForecastQuestion(Struct, frozen=True, tag="forecast"):
    """When jobs start and end."""

    jobs: tuple[int, ...]


class RehearsalQuestion(Struct, frozen=True, tag="rehearsal"):
    """What would become of jobs submitted now."""

    specs: tuple[JobSpec, ...]


Question: TypeAlias = ChangesQuestion | ForecastQuestion | RehearsalQuestion
Answer: TypeAlias = tuple[Change, ...] | tuple[Forecast, ...] | Rehearsal

ANSWERS = {
    ChangesQuestion: tuple[Change, ...],
    ForecastQuestion: tuple[Forecast, ...],
    RehearsalQuestion: Rehearsal,
}
"""What is answered to which question."""


def answer(image: bytes, planner: Planner, question: Question, enough: Enough) -> Answer:
    """The answer for the pool of ``image``; ``enough`` ends searches and forecasts early, with what there is by then."""
    if isinstance(question, ForecastQuestion):
        return forecast(image, planner, question.jobs, enough)
    engine = Engine.restore(image)
    if isinstance(question, ChangesQuestion):
        return smallest_changes(engine, planner, question.found, enough)
    return rehearse(engine, planner, question.specs, enough)


_questions = msgspec.msgpack.Decoder(Question)


def read_question(data: bytes) -> Question:
    """A question from its MessagePack."""
    found: Question = _questions.decode(data)
    return found
