"""Messages and calls about jobs that are there already: changes, holds, requeues, and one action on many jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from ...base.ids import new_op_id
from ...model.spec_changes import SpecChanges
from ..answers import SCHEMA
from ..api import ActionReply, ActionRequest
from .asks import Asks
from .job_refs import Ref, job_path

T = TypeVar("T", bound=Struct)
Action = Literal["cancel", "hold", "release", "requeue"]
MOST_AT_ONCE = 10_000
"""Jobs in one request; as many as one submission may bring."""


class UpdateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change what a job asks for. A repeated ``op_id`` gets the first answer again."""

    changes: SpecChanges
    op_id: str = ""


class RequeueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a job's attempt and queue the job again: from its beginning, or from its latest image. ``hold``: it is kept from
    starting until it is released."""

    from_image: bool = False
    hold: bool = False
    op_id: str = ""


class BulkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Do one thing to many jobs, named by their ids. ``from_image`` and ``hold`` are of ``requeue``."""

    action: Action
    jobs: tuple[int, ...]
    from_image: bool = False
    hold: bool = False
    op_id: str = ""


class RefusedJob(Struct, frozen=True, kw_only=True):
    """A job that an action on many was refused for."""

    job: int
    error: str
    remedy: str = ""


class BulkReply(Struct, frozen=True, kw_only=True):
    """``done``: the jobs that it was granted for; what became of those is durable."""

    done: tuple[int, ...] = ()
    ended: int = 0
    """Jobs that had ended by then."""
    refused: tuple[RefusedJob, ...] = ()
    schema: str = SCHEMA


class UserSelection(Struct, frozen=True, kw_only=True):
    """The selected jobs of one user, by their states."""

    user: str
    jobs: int
    states: dict[str, int]


class Selection(Struct, frozen=True, kw_only=True):
    """Jobs that have not ended, that match, and that an action applies to, in the order of their ids."""

    jobs: tuple[int, ...] = ()
    users: tuple[UserSelection, ...] = ()
    others: int = 0
    """Jobs that match, but are in no state that the action applies to."""
    replicas: int = 0
    """Jobs that match and are left out as replicas of services, which would make others."""
    schema: str = SCHEMA


class JobChangeCalls:
    """The calls of a client that change jobs, one or many."""

    def update(self: Asks, ref: Ref, changes: SpecChanges) -> ActionReply:
        """Change what a job asks for. Raises UsageError for values that are not possible, Conflict once it ends."""
        return self._ask(
            "POST", job_path(ref, "/update"), ActionReply, UpdateRequest(changes=changes, op_id=new_op_id())
        )

    def hold(self: Asks, ref: Ref) -> ActionReply:
        """Keep a waiting job from starting. Raises Conflict for one that has devices."""
        return self._ask("POST", job_path(ref, "/hold"), ActionReply, ActionRequest(op_id=new_op_id()))

    def release(self: Asks, ref: Ref) -> ActionReply:
        """End a hold, or a suspension."""
        return self._ask("POST", job_path(ref, "/release"), ActionReply, ActionRequest(op_id=new_op_id()))

    def requeue(self: Asks, ref: Ref, from_image: bool = False, hold: bool = False) -> ActionReply:
        """End a job's attempt and queue the job again. Raises Conflict for one that waits for its start or has ended."""
        body = RequeueRequest(from_image=from_image, hold=hold, op_id=new_op_id())
        return self._ask("POST", job_path(ref, "/requeue"), ActionReply, body)

    def select(
        self: Asks, action: Action, user: str = "", team: str = "", name: str = "", state: str = "", all: bool = False
    ) -> Selection:
        """Jobs that match all of the filters (each a list separated by commas) and that ``action`` applies to. Without
        any filter, all of them with ``all``, else none."""
        filters = {"user": user, "team": team, "name": name, "state": state, "all": int(all)}
        query = {"action": action, **{key: value for key, value in filters.items() if value}}
        return self._ask("GET", "/v1/selection", Selection, query=query)

    def bulk(
        self: Asks, action: Action, jobs: Sequence[int], from_image: bool = False, hold: bool = False
    ) -> Iterator[BulkReply]:
        """Do one thing to many jobs, ``MOST_AT_ONCE`` in a request."""
        for first in range(0, len(jobs), MOST_AT_ONCE):
            some = tuple(jobs[first : first + MOST_AT_ONCE])
            body = BulkRequest(action=action, jobs=some, from_image=from_image, hold=hold, op_id=new_op_id())
            yield self._ask("POST", "/v1/bulk", BulkReply, body)
