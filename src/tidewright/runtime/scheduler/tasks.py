"""A task: one inference or step of a model on one queue, and the states it passes through."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from ...base.errors import Bug


class TaskState(IntEnum):
    """::

        WAITING ----> LAUNCHED ----> DONE
           |             |  \\------> FAILED      the model raised, or its worker was lost
           |             \\---------> CANCELLED   before the device began it, or cut short on a GPU
           \\-----------------------> CANCELLED

    A task that is preempted stays LAUNCHED: the device keeps where it was.
    """

    WAITING = 0
    LAUNCHED = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


S = TaskState
TASK_TRANSITIONS = frozenset(
    {(S.WAITING, S.LAUNCHED), (S.WAITING, S.CANCELLED), (S.WAITING, S.FAILED)}
    | {(S.LAUNCHED, S.DONE), (S.LAUNCHED, S.FAILED), (S.LAUNCHED, S.CANCELLED)}
)
ENDED = frozenset({S.DONE, S.FAILED, S.CANCELLED})


class Task(Struct, gc=False):
    """Times in nanoseconds of the monotonic clock; ``client_task`` is the number that its client gave it."""

    id: int
    queue: int
    model: int
    slot: int = 0
    client_task: int = 0
    submitted_ns: int = 0
    state: TaskState = S.WAITING
    launched_ns: int = 0
    ended_ns: int = 0
    preemptions: int = 0
    cancelling: bool = False
    """Its client has cancelled it, and the device has it already."""

    def become(self, state: TaskState, now_ns: int) -> None:
        """Take one step. Raises Bug on one that is not in the table."""
        if (self.state, state) not in TASK_TRANSITIONS:
            raise Bug(f"task {self.id} of queue {self.queue}: {self.state.name} -> {state.name}")
        self.state = state
        if state is S.LAUNCHED:
            self.launched_ns = now_ns
        elif state in ENDED:
            self.ended_ns = now_ns
