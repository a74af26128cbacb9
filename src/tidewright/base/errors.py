"""Kinds of failure, sorted by whose fault they are.

``UsageError`` is the caller's (HTTP 4xx, exit 2) and always says what to do next; ``WorldError`` is the world's
(a node, a disk, a peer) and becomes an event that is retried; ``Bug`` is ours and stops the step.
"""

from __future__ import annotations

from typing import Any


class TideError(Exception):
    """Root of every error Tidewright raises on purpose. ``exit_code`` is what the command line returns for it."""

    exit_code = 1
    http_status = 500


class UsageError(TideError):
    """The request cannot be served as asked. ``remedy`` says what the caller should do next."""

    exit_code = 2
    http_status = 400

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.cause: Any = None
        """The same as data, where there is any: a model.cause.Cause, or the CauseView of an answer."""

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class NotFound(UsageError):
    """The named job, node or file does not exist."""

    exit_code = 3
    http_status = 404


class Conflict(UsageError):
    """The thing exists but is in a state that does not allow the request."""

    exit_code = 4
    http_status = 409


class Unreachable(UsageError):
    """No controller answers on the state directory or address that was given."""

    exit_code = 5
    http_status = 503


class NotAllowed(Unreachable):
    """This user may not connect to the controller, if there is one: to ask again changes nothing."""


class DiskFull(UsageError):
    """The disk of the state directory is full, and nothing new is accepted until there is room."""

    exit_code = 7
    http_status = 507


class Busy(UsageError):
    """As many ask as can be answered; nothing was done. ``retry_s``: when to ask again, seconds."""

    exit_code = 1
    http_status = 503

    def __init__(self, message: str, remedy: str = "", retry_s: float = 1.0) -> None:
        super().__init__(message, remedy)
        self.retry_s = retry_s


class WorldError(TideError):
    """Something outside failed: it may work when tried again, and the engine hears of it as an event."""


class DamagedJournal(TideError):
    """Acknowledged journal records are missing or altered. ``turn`` is the first bad one."""

    exit_code = 6

    def __init__(self, message: str, turn: int) -> None:
        super().__init__(message)
        self.turn = turn


class Bug(TideError):
    """An invariant of ours is broken. The message carries the history that led to it."""
