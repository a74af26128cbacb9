"""Questions and answers as they travel between the controller and the process that answers them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from ..engine.engine import Engine
from ..engine.events import Tick
from ..model.job import JobSpec
from ..plan.explain import Change, Forecast, Rehearsal
from ..plan.plan import Planner
from .changes import smallest_changes
from .forecast import forecast
from .rehearsal import rehearse
from .trial import Within


class ChangesQuestion(Struct, frozen=True, tag="changes"):
    """The least changes that start a job, as in a ``ForecastQuestion``."""

    job: int
    now: int = 0


class ForecastQuestion(Struct, frozen=True, tag="forecast"):
    """When jobs start and end, asked ``now`` (engine time): the snapshot may be of an earlier step; 0: just then."""

    jobs: tuple[int, ...]
    now: int = 0


class RehearsalQuestion(Struct, frozen=True, tag="rehearsal"):
    """What would become of jobs submitted ``now``, as in a ``ForecastQuestion``."""

    specs: tuple[JobSpec, ...]
    now: int = 0


Question: TypeAlias = ChangesQuestion | ForecastQuestion | RehearsalQuestion
Answer: TypeAlias = tuple[Change, ...] | tuple[Forecast, ...] | Rehearsal

ANSWERS = {
    ChangesQuestion: tuple[Change, ...],
    ForecastQuestion: tuple[Forecast, ...],
    RehearsalQuestion: Rehearsal,
}
"""What is answered to which question."""


_LIMITS = 0.5
"""Of the time of a rehearsal, after which it looks for no more limits: the rest is left for the forecast."""


def answer(image: bytes, planner: Planner, question: Question, within: Within) -> Answer:
    """The answer for the pool of ``image``; ``within`` ends searches and forecasts early, with what there is by then."""
    enough = within(1.0)
    if isinstance(question, ForecastQuestion):
        return forecast(image_at(image, question.now), planner, question.jobs, enough)
    if isinstance(question, ChangesQuestion):
        return smallest_changes(image_at(image, question.now), planner, question.job, enough)
    fork = Engine.restore(image_at(image, question.now))
    return rehearse(fork, planner, question.specs, enough, limits_enough=within(_LIMITS))


def image_at(image: bytes, now: int) -> bytes:
    """The snapshot as it would be ``now``: nothing may have happened since its step but that jobs ran on."""
    engine = Engine.restore(image)
    if now <= engine.book.now:
        return image
    engine.step(now, [Tick()])
    return engine.snapshot()


_questions = msgspec.msgpack.Decoder(Question)


def read_question(data: bytes) -> Question:
    """A question from its MessagePack."""
    found: Question = _questions.decode(data)
    return found
