"""The scheduler of one device: events in, actions out (REEF, OSDI'22, sections 4 and 5, on any kind of device).

*Real-time mode* lasts from the arrival of a real-time task until none is left: best-effort streams are stopped, but for one that
the padding rule lets run beside the present real-time model (slow-downs are measured for pairs). *Normal mode* is the rest:
best-effort streams run, at most ``streams`` at once, each with up to ``window`` tasks on the device so that none waits for the
scheduler.

It never asks the time and never waits: a device that does not acknowledge a stop is a timer's event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.errors import Bug, UsageError
from . import events as ev
from .queues import BestEffortQueue, StreamState
from .tasks import Task, TaskState

_ABLE = frozenset({StreamState.IDLE, StreamState.RUNNING, StreamState.STOPPED})
"""Streams that can be given work now."""
PaddingRule = Callable[[int, tuple[int, ...]], int]
"""(real-time model, best-effort models of one stream) to the share of the device on which these may run beside it: cores, or
multiprocessors of a GPU; 0: not at all."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """``window``: tasks of a best-effort queue that the device has at once (REEF's device queue holds 2 kernels). ``streams``:
    best-effort streams that run at once. ``quantum_ns``: device time after which one makes way for another that waits.
    ``stop_bound_ns``: longest that a real-time task waits for stops to be acknowledged. Without ``preempt`` nothing is stopped:
    a real-time task waits for the best-effort tasks that the device has (the baseline *sequential* of REEF's evaluation).
    Without ``interrupts`` a stop holds back what has not been launched, and what runs goes on: it is no preemption."""

    window: int = 2
    streams: int = 32
    quantum_ns: int = 20_000_000
    stop_bound_ns: int = 5_000_000
    preempt: bool = True
    interrupts: bool = True

    def __post_init__(self) -> None:
        if min(self.window, self.streams, self.quantum_ns, self.stop_bound_ns) < 1:
            raise UsageError("window, streams, quantum and stop bound are at least 1", "correct the settings")


@dataclass(slots=True)
class Counters:
    """Since the scheduler began. ``preemptions`` counts stops for real-time work, ``rotations`` those for other best-effort work,
    ``late_stops`` real-time tasks that were launched before every stop was acknowledged."""

    rt_tasks: int = 0
    be_tasks: int = 0
    preemptions: int = 0
    rotations: int = 0
    padded: int = 0
    late_stops: int = 0


def never_pad(rt_model: int, be_models: tuple[int, ...]) -> int:
    """The rule of a device without a table of slow-downs."""
    return 0


class Scheduler:
    """``step`` is the only way in. One queue's tasks are launched in the order in which they were submitted."""

    def __init__(self, settings: SchedulerSettings | None = None, padding: PaddingRule = never_pad) -> None:
        self.settings = settings or SchedulerSettings()
        self.padding = padding
        self.counters = Counters()
        self.rt_running: Task | None = None
        self.rt_waiting: deque[Task] = deque()
        self.best_effort: dict[int, BestEffortQueue] = {}
        self.real_time: dict[int, bool] = {}
        """Real-time queue to whether its worker is there."""
        self.tasks: dict[int, Task] = {}
        """Those that have not ended."""
        self._out: list[ev.Action] = []
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            ev.QueueOpened: self._queue_opened,
            ev.QueueClosed: self._queue_closed,
            ev.WeightSet: self._weight_set,
            ev.Submitted: self._submitted,
            ev.CancelAsked: self._cancel_asked,
            ev.TaskFinished: self._task_finished,
            ev.StreamStopped: self._stream_stopped,
            ev.StreamLost: self._stream_lost,
            ev.StreamReady: self._stream_ready,
            ev.TimerDue: self._timer_due,
        }

    @property
    def real_time_mode(self) -> bool:
        return self.rt_running is not None or any(self.real_time[task.queue] for task in self.rt_waiting)

    def step(self, now_ns: int, event: ev.Event) -> list[ev.Action]:
        """Take one event in; the actions are to be carried out in order. Raises Bug on what no device may say."""
        self._handlers[type(event)](now_ns, event)
        if self.real_time_mode:
            self._serve_real_time(now_ns)
        else:
            self._serve_best_effort(now_ns)
        out, self._out = self._out, []
        return out

    # -- events -----------------------------------------------------------------------------------------------------

    def _queue_opened(self, now_ns: int, event: ev.QueueOpened) -> None:
        if event.queue in self.best_effort or event.queue in self.real_time:
            raise Bug(f"queue {event.queue} is open already")
        if event.kind == "rt":
            self.real_time[event.queue] = True
        else:
            self.best_effort[event.queue] = BestEffortQueue(event.queue, event.weight)

    def _queue_closed(self, now_ns: int, event: ev.QueueClosed) -> None:
        self.best_effort.pop(event.queue, None)
        self.real_time.pop(event.queue, None)
        self.rt_waiting = deque(task for task in self.rt_waiting if task.queue != event.queue)
        if self.rt_running is not None and self.rt_running.queue == event.queue:
            self.rt_running = None
        self.tasks = {key: task for key, task in self.tasks.items() if task.queue != event.queue}

    def _weight_set(self, now_ns: int, event: ev.WeightSet) -> None:
        queue = self.best_effort.get(event.queue)
        if queue is not None:
            queue.account(now_ns)
            queue.weight = event.weight

    def _submitted(self, now_ns: int, event: ev.Submitted) -> None:
        task = event.task
        if task.id in self.tasks:
            raise Bug(f"task {task.id} was submitted before")
        self.tasks[task.id] = task
        if task.queue in self.real_time:
            self.counters.rt_tasks += 1
            self.rt_waiting.append(task)
            return
        queue = self.best_effort[task.queue]
        self.counters.be_tasks += 1
        if not queue.has_work:
            # It was idle: what others used meanwhile is not owed to it.
            queue.virtual_ns = max(queue.virtual_ns, self._least_virtual(queue, now_ns))
        queue.waiting.append(task)

    def _cancel_asked(self, now_ns: int, event: ev.CancelAsked) -> None:
        task = self.tasks.get(event.task)
        if task is None or task.cancelling:
            return  # it has ended, or was cancelled before
        if task.state is TaskState.WAITING:
            waiting = self.rt_waiting if task.queue in self.real_time else self.best_effort[task.queue].waiting
            waiting.remove(task)
            self._end(task, TaskState.CANCELLED, now_ns)
        else:
            task.cancelling = True
            self._out.append(ev.AbortTask(task))

    def _task_finished(self, now_ns: int, event: ev.TaskFinished) -> None:
        task = self.tasks.get(event.task)
        if task is None:
            return  # its queue was closed meanwhile
        if task.queue in self.real_time:
            if self.rt_running is not task:
                raise Bug(f"task {task.id} ended on the real-time queue and was not running there")
            self.rt_running = None
        else:
            queue = self.best_effort[task.queue]
            queue.launched.remove(task)
            if not queue.launched and queue.stream is StreamState.RUNNING:
                queue.become(StreamState.IDLE, now_ns)
        state = TaskState.CANCELLED if event.skipped else TaskState.FAILED if event.error else TaskState.DONE
        self._end(task, state, now_ns, event.error)

    def _stream_stopped(self, now_ns: int, event: ev.StreamStopped) -> None:
        queue = self.best_effort.get(event.queue)
        if queue is not None and queue.stream is StreamState.STOPPING:
            queue.become(StreamState.STOPPED, now_ns)

    def _stream_lost(self, now_ns: int, event: ev.StreamLost) -> None:
        lost: list[Task] = []
        queue = self.best_effort.get(event.queue)
        if queue is not None:
            queue.become(StreamState.LOST, now_ns)
            queue.share = 0  # another worker takes over, and knows of none
            lost, queue.launched = list(queue.launched), deque()
        elif event.queue in self.real_time:
            self.real_time[event.queue] = False
            if self.rt_running is not None and self.rt_running.queue == event.queue:
                lost, self.rt_running = [self.rt_running], None
        if event.final:
            waiting = queue.waiting if queue is not None else self.rt_waiting
            dropped = [task for task in waiting if task.queue == event.queue]
            for task in dropped:
                waiting.remove(task)
            lost += dropped
        for task in lost:
            self._end(task, TaskState.FAILED, now_ns, event.error)

    def _stream_ready(self, now_ns: int, event: ev.StreamReady) -> None:
        if event.queue in self.real_time:
            self.real_time[event.queue] = True
        elif event.queue in self.best_effort:
            self.best_effort[event.queue].become(StreamState.IDLE, now_ns)

    def _timer_due(self, now_ns: int, event: ev.TimerDue) -> None:
        """Nothing but the time has changed."""

    # -- real-time mode ---------------------------------------------------------------------------------------------

    def _serve_real_time(self, now_ns: int) -> None:
        head = self.rt_running or next(task for task in self.rt_waiting if self.real_time[task.queue])
        if not self.settings.preempt:
            if self.rt_running is None and not any(queue.launched for queue in self.best_effort.values()):
                self._launch_real_time(head, now_ns)
            return
        beside = self._beside(head)
        for queue in self.best_effort.values():
            if queue is not beside:
                self._share(queue, 0)
                if queue.stream is StreamState.RUNNING:
                    self._stop(queue, now_ns)
                    self.counters.preemptions += self.settings.interrupts
        if beside is not None:
            self._share(beside, self._padded(head, beside))
            self._run(beside, now_ns, head)
        if self.rt_running is None:
            self._launch_real_time(head, now_ns)

    def _beside(self, head: Task) -> BestEffortQueue | None:
        """The stream that goes on beside the real-time task: one that runs already, or else the one with least device time."""
        admitted = [queue for queue in self.best_effort.values() if queue.stream in _ABLE and self._padded(head, queue)]
        return min(admitted, key=lambda q: (q.stream is not StreamState.RUNNING, q.virtual_ns, q.key), default=None)

    def _padded(self, head: Task, queue: BestEffortQueue) -> int:
        """The share on which all that the stream has, or the next task of it, may run beside the real-time task."""
        return self._share_for(head, queue.launched or list(queue.waiting)[:1])

    def _admits(self, head: Task, queue: BestEffortQueue) -> bool:
        """Whether the next task may run, with those that the stream has, on the share that it has."""
        return self._share_for(head, (*queue.launched, queue.waiting[0])) >= max(queue.share, 1)

    def _share_for(self, head: Task, tasks: Iterable[Task]) -> int:
        models = tuple(dict.fromkeys(task.model for task in tasks))
        return self.padding(head.model, models) if models else 0

    def _share(self, queue: BestEffortQueue, share: int) -> None:
        if queue.share != share:
            queue.share = share
            self._out.append(ev.PadStream(queue.key, share))

    def _launch_real_time(self, head: Task, now_ns: int) -> None:
        """Launch it when every stop is acknowledged, and at the bound in any case."""
        asked = [queue.stop_asked_ns for queue in self.best_effort.values() if queue.stream is StreamState.STOPPING]
        # The bound counts from the task's own arrival: stops that were asked for earlier are late already.
        due = max(min(asked, default=0), head.submitted_ns) + self.settings.stop_bound_ns
        if asked and now_ns < due:
            self._out.append(ev.SetTimer(due))
            return
        self.counters.late_stops += bool(asked)
        self.rt_waiting.remove(head)
        self.rt_running = head
        self._launch(head, now_ns)

    # -- normal mode ------------------------------------------------------------------------------------------------

    def _serve_best_effort(self, now_ns: int) -> None:
        for queue in self.best_effort.values():
            self._share(queue, 0)
        ready = [queue for queue in self.best_effort.values() if queue.has_work and queue.stream in _ABLE]
        if len(ready) > self.settings.streams:
            ready = self._chosen(ready, now_ns)
        for queue in ready:
            self._run(queue, now_ns)

    def _chosen(self, ready: list[BestEffortQueue], now_ns: int) -> list[BestEffortQueue]:
        """The queues that may run now: those within their quantum, then those with the least device time for their weight."""
        for queue in ready:
            queue.account(now_ns)
        due = self.settings.quantum_ns
        stays = [q for q in ready if q.stream is StreamState.RUNNING and now_ns - q.began_ns < due]
        others = sorted((q for q in ready if q not in stays), key=lambda q: (q.virtual_ns, q.key))
        chosen = [*stays, *others][: self.settings.streams]
        for queue in ready:
            if queue not in chosen and queue.stream is StreamState.RUNNING:
                self._stop(queue, now_ns)
                self.counters.rotations += 1
        for queue in chosen:
            if queue.stream is StreamState.RUNNING and queue not in stays:
                queue.began_ns = now_ns  # another quantum
        begun = (q.began_ns if q.stream is StreamState.RUNNING else now_ns for q in chosen)
        self._out.append(ev.SetTimer(min(begun) + due))
        return chosen

    def _least_virtual(self, but: BestEffortQueue, now_ns: int) -> float:
        others = [queue for queue in self.best_effort.values() if queue.has_work and queue is not but]
        for queue in others:
            queue.account(now_ns)
        return min((queue.virtual_ns for queue in others), default=0.0)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _run(self, queue: BestEffortQueue, now_ns: int, beside: Task | None = None) -> None:
        """Resume the stream (one of ``_ABLE``) if it was stopped, and fill its window, with what may run ``beside`` a task."""
        if queue.stream is StreamState.STOPPED:
            queue.become(StreamState.RUNNING if queue.launched else StreamState.IDLE, now_ns)
            self._out.append(ev.ResumeStream(queue.key))
        while queue.waiting and len(queue.launched) < self.settings.window:
            if beside is not None and not self._admits(beside, queue):
                break
            task = queue.waiting.popleft()
            queue.launched.append(task)
            if queue.stream is StreamState.IDLE:
                queue.become(StreamState.RUNNING, now_ns)
            self._launch(task, now_ns)
            self.counters.padded += self.real_time_mode

    def _launch(self, task: Task, now_ns: int) -> None:
        task.become(TaskState.LAUNCHED, now_ns)
        self._out.append(ev.LaunchTask(task))

    def _stop(self, queue: BestEffortQueue, now_ns: int) -> None:
        queue.become(StreamState.STOPPING, now_ns)
        queue.stop_asked_ns = now_ns
        for task in queue.launched:
            task.preemptions += self.settings.interrupts
        self._out.append(ev.StopStream(queue.key))

    def _end(self, task: Task, state: TaskState, now_ns: int, error: str = "") -> None:
        task.become(state, now_ns)
        del self.tasks[task.id]
        self._out.append(ev.ReportTask(task, error))
