"""Follows a controller's events, and files messages about the jobs whose users want them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from ..base.backoff import pause_s
from ..base.errors import Busy, NotFound, TideError
from ..model.notify import ARRAY_TASKS
from ..wire.client import Client
from .compose import messages
from .news import breach, breaks_by_forecast, first_seen, news, of_array, wanted
from .outbox import Notification, Outbox

log = logging.getLogger("tidewright.notify")
PAUSES_S = (0.2, 10.0)
LOOK_S = 20.0
"""Between two looks at the promises of all jobs that want to know of them."""
FORECASTS = 20
"""Jobs asked for a forecast at one look: each costs the controller a simulation."""
BATCH = 1000


class Watcher:
    """``client`` makes a client of the controller; ``clock``: microseconds since 1970."""

    def __init__(self, outbox: Outbox, client: Callable[[], Client], clock: Callable[[], int]) -> None:
        self._outbox, self._make_client, self._clock = outbox, client, clock
        self._client = client()
        self._live: dict[int, tuple[str, ...]] = {}
        """Live jobs and what their users want to know."""
        self._forecast_from = 0

    def run(self, stop: threading.Event) -> None:
        """Until stopped. While no controller answers, it is asked again ever more rarely."""
        tries = 0
        while not stop.is_set():
            try:
                self._follow(stop)
                tries = 0
            except TideError as error:
                log.info("%s", error)
            except OSError as error:
                log.warning("the events ended: %s", error)
            stop.wait(pause_s(tries, PAUSES_S))
            tries += 1

    def catch_up(self) -> None:
        """Look at every job of which something may have been missed."""
        listed = [job.id for job in self._client.jobs(notify=True).jobs]
        for job in sorted({*listed, *self._outbox.unfinished()}):
            self.look(job)

    def look(self, job: int) -> None:
        """File messages about what is new of a job."""
        try:
            reply = self._client.notify(job)
        except NotFound:
            self._live.pop(job, None)
            return
        now, before = self._clock(), self._outbox.seen(job)
        seen, kinds = news(before or first_seen(reply), reply, now)
        if seen.final:
            self._live.pop(job, None)
        else:
            self._live[job] = reply.notify.events
        if seen == before:
            return
        array = reply.array is not None and ARRAY_TASKS not in reply.notify.events
        if array:
            kinds = of_array(kinds, self._outbox.members(seen.group, job), reply.size, now)
        found: list[Notification] = []
        for kind in wanted(kinds, reply):
            found += messages(kind, reply, now, breach(reply, now) if kind == "breach" else "", array)
        if dropped := self._outbox.note(seen, found, now):
            log.error("%d messages were dropped: too many wait", dropped)

    def look_at_promises(self) -> None:
        """Breaches need no event; forecasts are asked of some jobs in turn."""
        for job in [job for job, events in self._live.items() if "breach" in events]:
            self.look(job)
        asked = sorted(job for job, events in self._live.items() if "forecast" in events and self._may_break(job))
        after = [job for job in asked if job > self._forecast_from]
        chosen = (after + asked)[: min(FORECASTS, len(asked))]
        for job in dict.fromkeys(chosen):
            self._forecast(job)
            self._forecast_from = job

    def _may_break(self, job: int) -> bool:
        seen = self._outbox.seen(job)
        return seen is not None and not (seen.forecast or seen.broken or seen.final)

    def _forecast(self, job: int) -> None:
        try:
            reply, eta = self._client.notify(job), self._client.eta(job)
        except (NotFound, Busy):
            return
        seen, why = self._outbox.seen(job), breaks_by_forecast(reply, eta)
        if why and seen is not None:
            now, known = self._clock(), bool(seen.group) and self._outbox.members(seen.group, job).forecast > 0
            found = [] if known else messages("forecast", reply, now, why)
            self._outbox.note(replace(seen, forecast=True), found, now)

    def _follow(self, stop: threading.Event) -> None:
        events: queue.Queue[tuple[int, bool, str] | None] = queue.Queue(maxsize=10 * BATCH)
        ended: list[Exception] = []

        def read() -> None:
            try:
                for event in self._make_client().events(cursor or "0.0"):
                    events.put((event.job, event.notify, event.seq))
            except (OSError, TideError) as error:
                ended.append(error)
            events.put(None)

        cursor = self._outbox.cursor
        threading.Thread(target=read, daemon=True).start()
        self.catch_up()
        look_s = time.monotonic() + LOOK_S
        while not stop.is_set():
            found = _some(events, min(0.5, max(0.0, look_s - time.monotonic())))
            jobs = dict.fromkeys(one[0] for one in found if one is not None and one[1])
            for job in jobs:
                self.look(job)
            passed = [one[2] for one in found if one is not None]
            if passed:
                self._outbox.passed(passed[-1])
            if None in found:
                raise ended[0] if ended else OSError("the controller has ended them")
            if time.monotonic() >= look_s:
                self.look_at_promises()
                look_s = time.monotonic() + LOOK_S


def _some(events: queue.Queue[tuple[int, bool, str] | None], wait_s: float) -> list[tuple[int, bool, str] | None]:
    """What is there, up to BATCH; waits for a first one."""
    found: list[tuple[int, bool, str] | None] = []
    try:
        found.append(events.get(timeout=max(wait_s, 0.01)))
        while len(found) < BATCH:
            found.append(events.get_nowait())
    except queue.Empty:
        pass
    return found
