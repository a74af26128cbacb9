"""Queues of best-effort work: what each waits for, what its stream is doing, and how much device time it has had."""

from __future__ import annotations

from collections import deque
from enum import Enum

from ...base.errors import Bug
from .tasks import Task


class StreamState(Enum):
    """::

    IDLE <----> RUNNING ---- stop ----> STOPPING ---- acknowledged ----> STOPPED ---- resume ----> RUNNING or IDLE
      \\------------ lost (from any) ----------> LOST ---- ready ----> IDLE
    """

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    LOST = "lost"


_STREAM_TRANSITIONS = frozenset(
    {
        (StreamState.IDLE, StreamState.RUNNING),
        (StreamState.RUNNING, StreamState.IDLE),
        (StreamState.RUNNING, StreamState.STOPPING),
        (StreamState.STOPPING, StreamState.STOPPED),
        (StreamState.STOPPED, StreamState.RUNNING),
        (StreamState.STOPPED, StreamState.IDLE),
        (StreamState.LOST, StreamState.IDLE),
    }
    | {(state, StreamState.LOST) for state in StreamState}
)


class BestEffortQueue:
    """One best-effort client's work. ``virtual_ns`` is device time over weight: the queue that has least is served first
    (start-time fair queueing, Goyal et al., SIGCOMM'96, with time that is measured afterwards instead of predicted)."""

    __slots__ = (
        "began_ns",
        "key",
        "launched",
        "service_ns",
        "share",
        "since_ns",
        "stop_asked_ns",
        "stream",
        "virtual_ns",
        "waiting",
        "weight",
    )

    def __init__(self, key: int, weight: int) -> None:
        self.key, self.weight = key, weight
        self.waiting: deque[Task] = deque()
        self.launched: deque[Task] = deque()
        self.stream = StreamState.IDLE
        self.virtual_ns = 0.0
        self.service_ns = 0
        """Device time until now, stopped time left out."""
        self.since_ns = 0
        """While it runs: device time is counted up to here."""
        self.began_ns = 0
        """While it runs: since when without a break."""
        self.stop_asked_ns = 0
        self.share = 0
        """Of the device, on which it may go on beside real-time work."""

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.launched)

    def become(self, stream: StreamState, now_ns: int) -> None:
        """Take one step, counting device time. Raises Bug on one that is not in the table."""
        if (self.stream, stream) not in _STREAM_TRANSITIONS:
            raise Bug(f"queue {self.key}: its stream is {self.stream.value} and cannot become {stream.value}")
        self.account(now_ns)
        if stream is StreamState.RUNNING:
            self.since_ns = self.began_ns = now_ns
        self.stream = stream

    def account(self, now_ns: int) -> None:
        """Count the device time until now. A stream that was asked to stop counts until it has."""
        if self.stream in (StreamState.RUNNING, StreamState.STOPPING):
            took = max(0, now_ns - self.since_ns)
            self.service_ns += took
            self.virtual_ns += took / self.weight
            self.since_ns = now_ns
