"""Sends what is in the outbox, and tries again what was not accepted: ever more rarely, for a day."""

from __future__ import annotations

import http.client
import logging
import math
import smtplib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ..base.backoff import pause_s
from ..base.errors import TideError
from ..base.units import DAY, SECOND
from .mail import is_permanent
from .outbox import Notification, Outbox
from .webhook import WebhookRefused

log = logging.getLogger("tidewright.notify")
THREADS = 8
"""For mails, and as many for webhooks."""
MOST_SITES = 1000
PAUSES_S = (5.0, 3600.0)
GIVEN_UP_US = DAY
LOOK_S = 0.5
FORGET_S = 3600.0
FAILURES = (OSError, http.client.HTTPException, smtplib.SMTPException, TideError, ValueError)
"""What sending may raise: the peer, the network, the settings."""

Channel = Callable[[Notification], None]


class Sender:
    """One message at a time to each site. ``channels``: how each kind is sent. ``clock``: microseconds since 1970."""

    def __init__(self, outbox: Outbox, channels: Mapping[str, Channel], clock: Callable[[], int]) -> None:
        self._outbox, self._channels, self._clock = outbox, channels, clock
        # Webhooks are users' own, and may all be slow: mails have threads of their own.
        self._threads = {name: ThreadPoolExecutor(THREADS, name) for name in ("mail", "webhook")}
        self._sending: dict[str, tuple[Notification, Future[None]]] = {}
        """By site."""
        self._ended = threading.Event()
        self._looked_s = self._forgot_s = -math.inf

    def run(self, stop: threading.Event) -> None:
        """Until stopped; what is being sent then is sent again by the next run."""
        while not stop.is_set():
            self._ended.clear()
            self.step()
            self._ended.wait(LOOK_S)  # what was accepted is noted at once: a kill before that sends it again

    def step(self) -> None:
        """Begin what is due, and take note of what has come of the rest."""
        now = self._clock()
        for site, (message, sent) in list(self._sending.items()):
            if sent.done():
                del self._sending[site]
                self._outcome(message, sent.exception())
                if (following := self._outbox.next_to(site, now)) is not None:
                    self._begin(following)
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            for message in self._outbox.due(now, MOST_SITES):
                if message.site not in self._sending:
                    self._begin(message)
        if time.monotonic() - self._forgot_s >= FORGET_S:
            self._forgot_s = time.monotonic()
            self._outbox.forget(now)

    def _begin(self, message: Notification) -> None:
        sent = self._threads[message.channel].submit(self._send, message)
        sent.add_done_callback(lambda _: self._ended.set())
        self._sending[message.site] = (message, sent)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent."""
        return not self._sending

    def _send(self, message: Notification) -> None:
        channel = self._channels.get(message.channel)
        if channel is None:
            raise WebhookRefused(f"no way to send a {message.channel}", permanent=True)
        channel(message)

    def _outcome(self, message: Notification, error: BaseException | None) -> None:
        now = self._clock()
        if error is None:
            self._outbox.tried(message, "sent", "", now)
            return
        if not isinstance(error, FAILURES):
            raise error
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        permanent = (isinstance(error, WebhookRefused) and error.permanent) or is_permanent(error)
        if permanent or now - message.created > GIVEN_UP_US:
            log.warning("job %d: %s to %s is given up: %s", message.job, message.kind, shown(message), text)
            self._outbox.tried(message, "given up", text, now)
            return
        rest = (
            error.retry_s if isinstance(error, WebhookRefused) and error.retry_s else pause_s(message.tries, PAUSES_S)
        )
        if not message.tries:
            log.warning("job %d: %s to %s is tried again: %s", message.job, message.kind, shown(message), text)
        self._outbox.tried(message, "", text, now + int(rest * SECOND))


def shown(message: Notification) -> str:
    """The address; of a URL the host alone, for the rest may be a secret."""
    return message.site
