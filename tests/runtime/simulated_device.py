"""A device in virtual time under the real scheduler: streams that take their time, acknowledge late, die, and clients that
cancel and leave. What the scheduler promises is checked as it happens."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidewright.runtime.scheduler import events as ev
from tidewright.runtime.scheduler.machine import PaddingRule, Scheduler, SchedulerSettings, never_pad
from tidewright.runtime.scheduler.tasks import ENDED, Task, TaskState

US = 1_000


@dataclass
class SimulatedStream:
    """``left_ns`` of the first task in ``tasks``; ``epoch`` makes events of an earlier state void."""

    kind: str
    tasks: deque[Task] = field(default_factory=deque)
    left_ns: int = 0
    running_since: int = -1
    stopped: bool = False
    alive: bool = True
    epoch: int = 0
    share: int = 0


class SimulatedDevice:
    """``lengths``: model to device time of a task, ns. ``acknowledges``: how long a stop takes, ns."""

    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        padding: PaddingRule = never_pad,
        lengths: Callable[[int], int] = lambda model: 100 * US,
        acknowledges: Callable[[], int] = lambda: 20 * US,
    ) -> None:
        self.scheduler = Scheduler(settings, padding)
        self.padding, self.lengths, self.acknowledges = padding, lengths, acknowledges
        self.now = 0
        self.streams: dict[int, SimulatedStream] = {}
        self.submitted: dict[int, Task] = {}
        self.reported: dict[int, TaskState] = {}
        self.began_order: dict[int, list[int]] = {}
        self.rt_delays: list[int] = []
        self.served: dict[int, int] = {}
        """Queue to the device time it really had."""
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._timer = 0
        self._next = 1

    # -- what clients do --------------------------------------------------------------------------------------------

    def open(self, queue: int, kind: Any, weight: int = 1) -> None:
        self.streams[queue] = SimulatedStream(kind)
        self.began_order[queue] = []
        self.served[queue] = 0
        self.step(ev.QueueOpened(queue, kind, weight))

    def submit(self, queue: int, model: int) -> Task:
        task = Task(self._next, queue, model, submitted_ns=self.now)
        self._next += 1
        self.submitted[task.id] = task
        self.step(ev.Submitted(task))
        return task

    def cancel(self, task: int) -> None:
        self.step(ev.CancelAsked(task))

    def close(self, queue: int) -> None:
        stream = self.streams.pop(queue)
        stream.alive = False
        stream.epoch += 1
        self.submitted = {
            key: task for key, task in self.submitted.items() if task.queue != queue or key in self.reported
        }
        self.step(ev.QueueClosed(queue))

    def lose(self, queue: int, back_after_ns: int) -> None:
        """The worker dies; another takes its place later."""
        stream = self.streams[queue]
        if not stream.alive:
            return
        self._pause(queue)
        stream.alive, stream.stopped, stream.share = False, False, 0
        stream.tasks.clear()
        stream.epoch += 1
        self.step(ev.StreamLost(queue, "lost"))

        def back() -> None:
            if self.streams.get(queue) is stream:
                stream.alive = True
                self.step(ev.StreamReady(queue))

        self.at(self.now + back_after_ns, back)

    # -- time -------------------------------------------------------------------------------------------------------

    def at(self, when: int, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (when, self._sequence, what))

    def run(self, until_ns: int | None = None) -> None:
        while self._agenda and (until_ns is None or self._agenda[0][0] <= until_ns):
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        if until_ns is not None:
            self.now = max(self.now, until_ns)

    # -- the device -------------------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        for action in self.scheduler.step(self.now, event):
            getattr(self, f"_{type(action).__name__}")(action)
        self._check()

    def _LaunchTask(self, action: ev.LaunchTask) -> None:  # noqa: N802 - named after the action
        task = action.task
        stream = self.streams[task.queue]
        assert stream.alive, f"task {task.id} was launched on a stream that is lost"
        if stream.kind == "rt":
            self.rt_delays.append(self.now - task.submitted_ns)
        self.began_order[task.queue].append(task.id)
        stream.tasks.append(task)
        if len(stream.tasks) == 1:
            stream.left_ns = self.lengths(task.model)
            self._go(task.queue)

    def _AbortTask(self, action: ev.AbortTask) -> None:  # noqa: N802
        stream = self.streams[action.task.queue]
        if action.task in stream.tasks and stream.tasks[0] is not action.task and not stream.stopped:
            stream.tasks.remove(action.task)
            self.at(self.now, lambda: self.step(ev.TaskFinished(action.task.id, skipped=True)))

    def _StopStream(self, action: ev.StopStream) -> None:  # noqa: N802
        stream = self.streams[action.queue]
        epoch = stream.epoch

        def acknowledge() -> None:
            if self.streams.get(action.queue) is stream and stream.epoch == epoch:
                self._pause(action.queue)
                stream.stopped = True
                self.step(ev.StreamStopped(action.queue))

        self.at(self.now + self.acknowledges(), acknowledge)

    def _ResumeStream(self, action: ev.ResumeStream) -> None:  # noqa: N802
        stream = self.streams[action.queue]
        assert stream.stopped, f"queue {action.queue} was resumed and does not stand still"
        stream.stopped = False
        self._go(action.queue)

    def _PadStream(self, action: ev.PadStream) -> None:  # noqa: N802
        self.streams[action.queue].share = action.share

    def _ReportTask(self, action: ev.ReportTask) -> None:  # noqa: N802
        key = action.task.id
        assert key in self.submitted, f"task {key} was reported to a client that has left"
        assert key not in self.reported, f"task {key} was reported twice"
        assert action.task.state in ENDED
        self.reported[key] = action.task.state

    def _SetTimer(self, action: ev.SetTimer) -> None:  # noqa: N802
        """The latest one counts, as in the runtime."""
        self._timer = action.at_ns

        def due() -> None:
            if self._timer == action.at_ns:
                self._timer = 0
                self.step(ev.TimerDue())

        self.at(max(action.at_ns, self.now), due)

    def _go(self, queue: int) -> None:
        """The first task of a stream runs on."""
        stream = self.streams[queue]
        if stream.stopped or not stream.tasks or stream.running_since >= 0:
            return
        stream.running_since = self.now
        stream.epoch += 0
        task, began = stream.tasks[0], self.now

        def finish() -> None:
            if self.streams.get(queue) is not stream or stream.running_since != began or not stream.tasks:
                return
            if stream.tasks[0] is not task:
                return
            self._pause(queue)
            stream.tasks.popleft()
            if stream.tasks:
                stream.left_ns = self.lengths(stream.tasks[0].model)
                self._go(queue)
            self.step(ev.TaskFinished(task.id))

        self.at(self.now + stream.left_ns, finish)

    def _pause(self, queue: int) -> None:
        stream = self.streams[queue]
        if stream.running_since >= 0:
            took = self.now - stream.running_since
            self.served[queue] += took
            stream.left_ns -= took
            stream.running_since = -1

    # -- what must always be true -----------------------------------------------------------------------------------

    def _check(self) -> None:
        running_rt = [q for q, s in self.streams.items() if s.kind == "rt" and s.tasks]
        assert len(running_rt) <= 1, "two real-time tasks run at once"
        late = self.scheduler.counters.late_stops
        if running_rt and not late:
            model = self.streams[running_rt[0]].tasks[0].model
            beside = [
                queue
                for queue, stream in self.streams.items()
                if stream.kind == "be" and stream.running_since >= 0 and not stream.stopped
            ]
            for queue in beside:
                stream = self.streams[queue]
                most = self.padding(model, tuple(dict.fromkeys(task.model for task in stream.tasks)))
                assert 0 < stream.share <= most, (
                    f"queue {queue} runs on {stream.share} beside model {model}, not {most}"
                )
            assert len(beside) <= 1, f"queues {beside} run beside real-time model {model}"
        window = self.scheduler.settings.window
        for queue, stream in self.streams.items():
            assert len(stream.tasks) <= (1 if stream.kind == "rt" else window), f"queue {queue} is over its window"

    def finished(self) -> None:
        """Called when the agenda is empty: nothing is left over."""
        missing = [key for key in self.submitted if key not in self.reported]
        assert not missing, f"tasks {missing} were never reported"
        assert not self.scheduler.tasks
        for queue, order in self.began_order.items():
            assert order == sorted(order), f"queue {queue} was not served in order"


def random_story(seed: int, *, losses: bool = True, late: bool = True, pad: bool = True) -> SimulatedDevice:
    """Queues of both classes, bursts of tasks, cancels, clients that leave, workers that die. The device, run out."""
    dice = random.Random(seed)
    lengths = {model: dice.choice((5, 50, 400, 3_000)) * US for model in range(8)}
    pairs = [(rt, be) for rt in range(4) for be in range(4, 8)]
    admitted = {pair: dice.choice((8, 16, 32)) if pad and dice.random() < 0.3 else 0 for pair in pairs}
    settings = SchedulerSettings(
        window=dice.choice((1, 2, 3)), streams=dice.choice((1, 2, 32)), quantum_ns=500 * US, stop_bound_ns=200 * US
    )
    slow = late and dice.random() < 0.3
    device = SimulatedDevice(
        settings,
        lambda rt, be: min(admitted[rt, one] for one in be),
        lengths.__getitem__,
        lambda: dice.choice((5, 20, 100, 1_000 if slow else 150)) * US,
    )
    queues = dice.randint(2, 6)
    for queue in range(1, queues + 1):
        device.open(queue, "rt" if queue == 1 or dice.random() < 0.3 else "be", dice.choice((1, 1, 3)))

    def act() -> None:
        alive = list(device.streams)
        if not alive:
            return
        queue = dice.choice(alive)
        what = dice.random()
        if what < 0.75:
            model = dice.randrange(4) if device.streams[queue].kind == "rt" else dice.randrange(4, 8)
            for _ in range(dice.choice((1, 1, 2, 6))):
                device.submit(queue, model)
        elif what < 0.9 and device.submitted:
            device.cancel(dice.choice(list(device.submitted)))
        elif what < 0.93:
            device.close(queue)
        elif losses:
            device.lose(queue, dice.choice((0, 100, 2_000)) * US)

    at = 0
    for _ in range(60):
        at += int(dice.expovariate(1 / (150 * US)))
        device.at(at, act)
    device.run()
    device.finished()
    return device
