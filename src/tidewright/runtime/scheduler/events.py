"""What the scheduler takes in, and what it asks of the device. Queues, models and tasks by their numbers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .tasks import Task

TaskClass = Literal["rt", "be"]


class QueueOpened(Struct, frozen=True, gc=False):
    """A stream of this class is ready. All ``rt`` queues are served as one, first come first served; among ``be`` queues device
    time is shared in proportion to ``weight``."""

    queue: int
    kind: TaskClass
    weight: int = 1


class QueueClosed(Struct, frozen=True, gc=False):
    """Its client is gone: its tasks are dropped without a report."""

    queue: int


class WeightSet(Struct, frozen=True, gc=False):
    queue: int
    weight: int


class Submitted(Struct, frozen=True, gc=False):
    task: Task


class CancelAsked(Struct, frozen=True, gc=False):
    task: int


class TaskFinished(Struct, frozen=True, gc=False):
    """The device is done with a launched task. ``error`` is empty where it succeeded; ``skipped``: it was never begun, or it
    was cut short and forgotten."""

    task: int
    error: str = ""
    skipped: bool = False


class StreamStopped(Struct, frozen=True, gc=False):
    """The acknowledgement of ``StopStream``: nothing of the queue runs on the device from here on."""

    queue: int


class StreamLost(Struct, frozen=True, gc=False):
    """The queue's worker died or was killed: what it had launched has failed. Launches wait for ``StreamReady``, or, if the loss
    is ``final``, have failed too."""

    queue: int
    error: str
    final: bool = False


class StreamReady(Struct, frozen=True, gc=False):
    queue: int


class TimerDue(Struct, frozen=True, gc=False):
    """The time of a ``SetTimer`` has come, or a later one."""


Event = (
    QueueOpened | QueueClosed | WeightSet | Submitted | CancelAsked | TaskFinished | StreamStopped | StreamLost | StreamReady
    | TimerDue
)  # fmt: skip


class LaunchTask(Struct, frozen=True, gc=False):
    """Hand the task to its queue's stream; the stream runs what it was handed in order."""

    task: Task


class AbortTask(Struct, frozen=True, gc=False):
    """Skip the task if the stream has not begun it, or can cut it short. Answered by ``TaskFinished`` in any case."""

    task: Task


class StopStream(Struct, frozen=True, gc=False):
    """Stop what the queue runs, keeping where it is. Answered by ``StreamStopped``."""

    queue: int


class ResumeStream(Struct, frozen=True, gc=False):
    queue: int


class PadStream(Struct, frozen=True, gc=False):
    """While real-time work runs, the queue may go on with this ``share`` of the device (cores, or multiprocessors of a GPU);
    0: no more. A stop that follows says so, too."""

    queue: int
    share: int


class ReportTask(Struct, frozen=True, gc=False):
    """The task has ended: report it to its client. Each task of a queue that is open is reported exactly once."""

    task: Task
    error: str = ""


class SetTimer(Struct, frozen=True, gc=False):
    """Send ``TimerDue`` at this time; an earlier one in force may be forgotten."""

    at_ns: int


Action = LaunchTask | AbortTask | StopStream | ResumeStream | PadStream | ReportTask | SetTimer


def queue_of(action: Action) -> int | None:
    """The queue that an action concerns."""
    if isinstance(action, LaunchTask | AbortTask | ReportTask):
        return action.task.queue
    return None if isinstance(action, SetTimer) else action.queue
