"""The life of a job as a table: from each state the next ones, and which groups of facts (model.job_record) a step resets.

A step that is not in it is a bug and raises with the job's whole history. A new attempt resets more (``Book.renew``).
"""

from __future__ import annotations

from ..model.job import FINAL, State
from ..model.job_record import FieldGroup, FieldValues, fresh

S = State

_RUN_OVER = (FieldGroup.RUN, FieldGroup.SAVING)
_ENDS = (S.COMPLETED, S.FAILED, S.CANCELLED, S.TIMEOUT)


def _to(*states: State, resets: tuple[FieldGroup, ...] = ()) -> dict[State, tuple[FieldGroup, ...]]:
    return dict.fromkeys(states, resets)


_NEXT: dict[State, dict[State, tuple[FieldGroup, ...]]] = {
    S.HELD: _to(S.HELD, S.QUEUED, S.SUSPENDED, *_ENDS)
    | _to(S.RESUMING, S.STOPPING, resets=(FieldGroup.HELD_IN_PLACE,)),
    S.QUEUED: _to(S.HELD, S.STARTING, *_ENDS),
    S.STARTING: _to(S.RUNNING, S.HELD, S.QUEUED, S.STOPPING, *_ENDS),
    S.RUNNING: _to(S.SUSPENDING, S.HELD, S.QUEUED, *_ENDS, resets=_RUN_OVER)
    | _to(S.STOPPING, resets=(FieldGroup.RUN,)),
    S.SUSPENDING: _to(S.SUSPENDED, S.HELD, S.QUEUED, *_ENDS, resets=(FieldGroup.SAVING,))
    | _to(S.RUNNING, resets=(FieldGroup.SAVING, FieldGroup.HELD_IN_PLACE))
    | _to(S.STOPPING, resets=(FieldGroup.HELD_IN_PLACE,)),
    S.SUSPENDED: _to(S.RESUMING, S.HELD, S.QUEUED, S.STOPPING, *_ENDS),
    S.RESUMING: _to(S.SUSPENDED, S.HELD, S.QUEUED, S.STOPPING, *_ENDS) | _to(S.RUNNING, resets=(FieldGroup.SUSPENDED,)),
    S.STOPPING: _to(S.QUEUED, S.HELD, *_ENDS, resets=(FieldGroup.SAVING,)),
    **{state: {} for state in FINAL},
}

TRANSITIONS: dict[tuple[State, State], tuple[FieldGroup, ...]] = {
    (before, after): groups for before, after_groups in _NEXT.items() for after, groups in after_groups.items()
}
"""(from, to) to the groups that this step resets."""

RESETS: tuple[tuple[FieldValues | None, ...], ...] = tuple(
    tuple(fresh(*TRANSITIONS[before, after]) if (before, after) in TRANSITIONS else None for after in State)
    for before in State
)
"""The same by the states' numbers, field by field; None: no such step."""

NAMES: tuple[str, ...] = tuple(state.name for state in State)
