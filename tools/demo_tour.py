"""The stops of the demonstration's distributed job: each is asked for while it runs, and timed by the controller's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo_view import Run

from tidewright import Client
from tidewright.base.units import MS
from tidewright.wire.api import JobView

REST_US = 700 * MS
"""The job runs at least this long between two stops, so that each finds it at another step."""


@dataclass
class Stop:
    """``ask`` requests it, ``done`` sees from the job before and the job now whether it is there. Times in microseconds."""

    what: str
    ask: Callable[[Client, int], Any]
    done: Callable[[JobView, JobView], bool]
    asked: int = 0
    took_us: int = 0
    where: str = ""


def stops() -> list[Stop]:
    """In this order: what is smaller can be moved whole, what was moved can grow again."""
    return [
        Stop("shrink: both ranks take turns on one slot", lambda client, job: client.scale(job, 1), shrunk),
        Stop("migrate: to the other host", lambda client, job: client.migrate(job), moved),
        Stop("grow: a slot for each rank", lambda client, job: client.scale(job, 0), grown),
        Stop("suspend: it gives everything back", lambda client, job: client.suspend(job), held),
        Stop("resume: at the very same step", lambda client, job: client.resume(job), grown),
    ]


def shrunk(before: JobView, now: JobView) -> bool:
    return now.state == "running" and now.held == 1


def moved(before: JobView, now: JobView) -> bool:
    return now.state == "running" and {place.node for place in now.where} != {place.node for place in before.where}


def grown(before: JobView, now: JobView) -> bool:
    return now.state == "running" and now.held == now.devices


def held(before: JobView, now: JobView) -> bool:
    return now.state in ("held", "suspended")


class Tour:
    """Takes one job from stop to stop; ``go_on`` is called at every look at the jobs."""

    def __init__(self, client: Client, job: int) -> None:
        self._client, self._job = client, job
        self.stops: list[Stop] = []
        self.left = stops()
        self._before: JobView | None = None

    def go_on(self, runs: list[Run]) -> None:
        """Ask for the next stop when the job is ready for it, or see whether it has arrived."""
        view = next(run.view for run in runs if run.id == self._job)
        if not self.left or view is None or runs[0].final:
            return
        stop, now = self.left[0], self._client.info().now
        if self._before is None:
            rested = now - view.since >= REST_US
            if view.state == "held" or (view.state == "running" and rested):
                self._before, stop.asked = view, now
                stop.ask(self._client, self._job)
        elif view.since >= stop.asked and stop.done(self._before, view):
            stop.took_us = view.since - stop.asked
            stop.where = " + ".join(place.node for place in view.where) or "nowhere"
            self.stops.append(self.left.pop(0))
            self._before = None
