"""Messages for the process that sends notifications. Asked over the unix socket only: they hold the paths of webhooks."""

from __future__ import annotations

from msgspec import Struct

from ...model.notify import Notify
from ..answers import SCHEMA
from ..api import JobView
from .asks import Asks
from .job_refs import Ref, job_path


class NotifyReply(Struct, frozen=True, kw_only=True):
    """A job, whom it notifies, and what it was promised. ``deadline``: microseconds since 1970, 0: none; ``array``: the array
    of which it is one of ``size`` members."""

    job: JobView
    notify: Notify
    deadline: int = 0
    array: str | None = None
    size: int = 1
    now: int = 0
    schema: str = SCHEMA


class NotifyingReply(Struct, frozen=True, kw_only=True):
    """Jobs that want notifications: all ``live`` ones, and the ``ended`` ones after the id that was asked for; ``newest``: the
    last id that was given out."""

    live: tuple[int, ...]
    ended: tuple[int, ...]
    newest: int
    schema: str = SCHEMA


class NotifyCalls:
    """The call of a client that sends notifications."""

    def notify(self: Asks, ref: Ref) -> NotifyReply:
        """Whom a job notifies of what; over the unix socket only. Raises NotFound for one that notifies of nothing."""
        return self._ask("GET", job_path(ref, "/notify"), NotifyReply)

    def notifying(self: Asks, after: int | None = None) -> NotifyingReply:
        """Live jobs that want notifications, and ended ones with ids above ``after``; None: the latest of them."""
        return self._ask("GET", "/v1/notifications", NotifyingReply, query={"after": after})
