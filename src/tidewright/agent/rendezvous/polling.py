"""How the endpoint of another node is polled until it is open: a machine whose time (seconds) is an argument.

ASKING --port--> done                    ASKING --refused--> failed
ASKING --not open yet--> PAUSING --over, in time, ranks go on--> ASKING
ASKING --silent, and not for long--> PAUSING
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN_S = 900.0
"""How long ranks wait for the host's endpoint to open; the host may have to fetch its images first."""
SILENT_S = 30.0
"""For how much of that the host's agent may be gone: it is started again."""
PAUSE_S = 0.01, 0.25
"""Between two polls: at first, and at most."""
CLOSED = 0
"""No port: the answer for not yet."""


@dataclass(frozen=True, slots=True)
class PollHost:
    """Ask the host once."""


@dataclass(frozen=True, slots=True)
class PollDelay:
    """Wait before the next poll."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EndpointOpen:
    """It is open at this port, for ranks with the token of this generation (empty: of the job)."""

    port: int
    generation: str = ""


@dataclass(frozen=True, slots=True)
class PollFailed:
    """The rendezvous cannot be reached."""

    reason: str


Step = PollHost | PollDelay | EndpointOpen | PollFailed


class EndpointPoll:
    """One wait for an endpoint. ``node`` and ``job`` are for messages; without a ``generation`` silence is not waited out."""

    def __init__(self, node: str, job: int, generation: str, now: float, *, open_s: float = OPEN_S) -> None:
        self._node, self._job, self._generation = node, job, generation
        self._open_s, self._deadline, self._heard = open_s, now + open_s, now
        self._pause = PAUSE_S[0]

    def next(self, now: float, *, ending: bool) -> Step:
        """At the beginning, and after each pause. ``ending``: the ranks here are to end."""
        if now >= self._deadline:
            why = f"node {self._node} has not opened the rendezvous of job {self._job} for {self._open_s:g} s"
            return PollFailed(why)
        return PollFailed("its ranks are being ended") if ending else PollHost()

    def answered(self, now: float, port: int, generation: str = "") -> Step:
        """The host's agent has answered."""
        self._heard = now
        return self._backed_off() if port == CLOSED else EndpointOpen(port, generation)

    def silent(self, now: float, reason: str) -> Step:
        """It has not."""
        if not self._generation or now > self._heard + SILENT_S:
            return PollFailed(reason)
        return self._backed_off()

    def _backed_off(self) -> PollDelay:
        pause, self._pause = self._pause, min(2 * self._pause, PAUSE_S[1])
        return PollDelay(pause)
