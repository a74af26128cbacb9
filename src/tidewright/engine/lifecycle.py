"""The life of a job as a table. A step that is not in it is a bug and raises with the job's whole story."""

from __future__ import annotations

from ..model.job import FINAL, State

S = State

_ENDS = {S.COMPLETED, S.FAILED, S.CANCELLED, S.TIMEOUT}

NEXT: dict[State, frozenset[State]] = {
    S.HELD: frozenset({S.HELD, S.QUEUED, S.SUSPENDED, S.RESUMING, S.STOPPING, *_ENDS}),
    S.QUEUED: frozenset({S.HELD, S.STARTING, *_ENDS}),
    S.STARTING: frozenset({S.RUNNING, S.HELD, S.QUEUED, S.STOPPING, *_ENDS}),
    S.RUNNING: frozenset({S.SUSPENDING, S.STOPPING, S.HELD, S.QUEUED, *_ENDS}),
    S.SUSPENDING: frozenset({S.SUSPENDED, S.RUNNING, S.STOPPING, S.HELD, S.QUEUED, *_ENDS}),
    S.SUSPENDED: frozenset({S.RESUMING, S.HELD, S.QUEUED, S.STOPPING, *_ENDS}),
    S.RESUMING: frozenset({S.RUNNING, S.SUSPENDED, S.HELD, S.QUEUED, S.STOPPING, *_ENDS}),
    S.STOPPING: frozenset({S.QUEUED, S.HELD, *_ENDS}),
    **{state: frozenset() for state in FINAL},
}
"""From each state, where a job may go next."""

ALLOWED: tuple[int, ...] = tuple(sum(1 << after for after in NEXT[state]) for state in State)
"""The same as bit sets, indexed by state."""

NAMES: tuple[str, ...] = tuple(state.name for state in State)
