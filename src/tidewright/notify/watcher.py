"""Follows a controller's events, and files messages about the jobs whose users want them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from ..base.backoff import pause_s
from ..base.errors import NotFound, TideError
from ..model.notify import ARRAY_TASKS
from ..wire.api import JobEvent
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
PROMISES = 200
"""Jobs whose promises are looked at in one go."""
CATCH_UP_S = 600.0
"""Between two looks at every job: a controller drops events of a client that is too slow."""
BATCH = 1000


class Watcher:
    """``client`` makes a client of the controller; ``clock``: microseconds since 1970."""

    def __init__(self, outbox: Outbox, client: Callable[[], Client], clock: Callable[[], int]) -> None:
        self._outbox, self._make_client, self._clock = outbox, client, clock
        self._client = client()
        self._live: dict[int, tuple[str, ...]] = {}
        """Live jobs and what their users want to know."""
        self._looked_from = self._forecast_from = 0
        self._tries = 0

    def run(self, stop: threading.Event) -> None:
        """Until stopped. While no controller answers, it is asked again ever more rarely."""
        while not stop.is_set():
            done = threading.Event()
            try:
                self._follow(stop, done)
            except TideError as error:
                log.info("%s", error)
            except OSError as error:
                log.warning("the events ended: %s", error)
            finally:
                done.set()
            stop.wait(pause_s(self._tries, PAUSES_S))
            self._tries += 1

    def catch_up(self) -> None:
        """Look at every job of which something may have been missed."""
        found = self._client.notifying(self._outbox.newest)
        for job in sorted({*found.live, *found.ended, *self._outbox.unfinished()}):
            self.look(job)
        self._outbox.known_to(found.newest)

    def look(self, job: int) -> None:
        """File messages about what is new of a job."""
        try:
            reply = self._client.notify(job)
        except NotFound:
            self._live.pop(job, None)
            if (lost := self._outbox.seen(job)) is not None:
                self._outbox.note(replace(lost, state="cancelled"), (), self._clock())
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
        """Breaches need no event, and forecasts are asked for: of some jobs in turn."""
        breach, forecast = (
            [job for job, events in self._live.items() if kind in events] for kind in ("breach", "forecast")
        )
        looked = _in_turn(breach, self._looked_from, PROMISES)
        self._looked_from = (looked or [0])[-1]
        for job in looked:
            self.look(job)
        asked = _in_turn([job for job in forecast if self._may_break(job)], self._forecast_from, FORECASTS)
        self._forecast_from = (asked or [0])[-1]
        for job in asked:
            self._forecast(job)

    def _may_break(self, job: int) -> bool:
        seen = self._outbox.seen(job)
        return seen is not None and not (seen.forecast or seen.broken or seen.final)

    def _forecast(self, job: int) -> None:
        try:
            reply, eta = self._client.notify(job), self._client.eta(job)
        except TideError as error:
            log.info("job %d: no forecast: %s", job, error)
            return
        seen, why = self._outbox.seen(job), breaks_by_forecast(reply, eta)
        if why and seen is not None:
            now, known = self._clock(), bool(seen.group) and self._outbox.members(seen.group, job).forecast > 0
            found = [] if known else messages("forecast", reply, now, why)
            self._outbox.note(replace(seen, forecast=True), found, now)

    def _follow(self, stop: threading.Event, done: threading.Event) -> None:
        events = EventReader(self._make_client(), self._outbox.cursor or "0.0", done)
        self.catch_up()
        self._tries = 0
        look_s, again_s = time.monotonic() + LOOK_S, time.monotonic() + CATCH_UP_S
        while not stop.is_set():
            found = events.some(min(0.5, max(0.0, look_s - time.monotonic())))
            for job in dict.fromkeys(event.job for event in found if event.notify):
                self.look(job)
            if found:
                self._outbox.passed(found[-1].seq)
            events.check()
            if time.monotonic() >= look_s:
                self.look_at_promises()
                look_s = time.monotonic() + LOOK_S
            if time.monotonic() >= again_s:
                self.catch_up()
                again_s = time.monotonic() + CATCH_UP_S


def _in_turn(jobs: list[int], last: int, most: int) -> list[int]:
    """Up to ``most`` of them, those after ``last`` first."""
    ordered = sorted(jobs)
    return ([job for job in ordered if job > last] + [job for job in ordered if job <= last])[:most]


class EventReader:
    """A controller's events after ``cursor``, read by a thread of their own until ``done``."""

    def __init__(self, client: Client, cursor: str, done: threading.Event) -> None:
        self._client, self._cursor, self._done = client, cursor, done
        self._events: queue.Queue[JobEvent] = queue.Queue(maxsize=10 * BATCH)
        self._error: Exception | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for event in self._client.events(self._cursor, self._done.is_set):
                while not self._done.is_set():
                    try:
                        self._events.put(event, timeout=1)
                        break
                    except queue.Full:
                        continue
                if self._done.is_set():
                    return
            self._error = OSError("the controller has ended them")
        except (OSError, TideError) as error:
            self._error = error

    def some(self, wait_s: float) -> list[JobEvent]:
        """What is there, up to BATCH; waits for a first one."""
        found: list[JobEvent] = []
        try:
            found.append(self._events.get(timeout=max(wait_s, 0.01)))
            while len(found) < BATCH:
                found.append(self._events.get_nowait())
        except queue.Empty:
            pass
        return found

    def check(self) -> None:
        """Raise what has ended the events, once all that came before is dealt with."""
        if self._error is not None and self._events.empty():
            raise self._error
