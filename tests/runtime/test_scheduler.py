"""The two modes of a device over random stories, and what each promise is worth: planted defects are found."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from tests.runtime.simulated_device import US, SimulatedDevice, random_story
from tidewright.base.errors import Bug, UsageError
from tidewright.runtime.scheduler import events as ev
from tidewright.runtime.scheduler.machine import Scheduler, SchedulerSettings
from tidewright.runtime.scheduler.queues import BestEffortQueue, StreamState
from tidewright.runtime.scheduler.tasks import ENDED, TASK_TRANSITIONS, Task, TaskState

STORIES = 250


@pytest.mark.parametrize("first", range(0, STORIES, 50))
def test_promises_are_kept(first: int) -> None:
    preempted = padded = cancelled = failed = 0
    for seed in range(first, first + 50):
        device = random_story(seed)
        preempted += device.scheduler.counters.preemptions
        padded += device.scheduler.counters.padded
        cancelled += sum(state is TaskState.CANCELLED for state in device.reported.values())
        failed += sum(state is TaskState.FAILED for state in device.reported.values())
    assert min(preempted, padded, cancelled, failed) > 20, "the stories no longer reach what they are for"


@pytest.mark.full
@pytest.mark.parametrize("first", range(1000, 21_000, 1000))
def test_promises_are_kept_in_many_more_stories(first: int) -> None:
    for seed in range(first, first + 1000):
        random_story(seed)


# -- planted defects ----------------------------------------------------------------------------------------------------


def launches_before_stops_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Scheduler, head: Task, now_ns: int) -> None:
        self.rt_waiting.remove(head)
        self.rt_running = head
        self._launch(head, now_ns)

    patch.setattr(Scheduler, "_launch_real_time", hasty)


def never_stops_idle_looking_streams(patch: pytest.MonkeyPatch) -> None:
    stop = Scheduler._stop

    def lenient(self: Scheduler, queue: BestEffortQueue, now_ns: int) -> None:
        if len(queue.launched) > 1:
            stop(self, queue, now_ns)

    patch.setattr(Scheduler, "_stop", lenient)


def pads_every_admitted_stream_at_once(patch: pytest.MonkeyPatch) -> None:
    def serve(self: Scheduler, now_ns: int) -> None:
        head = self.rt_running or next(task for task in self.rt_waiting if self.real_time[task.queue])
        for queue in self.best_effort.values():
            if (
                self._padded(head, queue)
                and queue.stream is not StreamState.STOPPING
                and queue.stream is not StreamState.LOST
            ):
                self._run(queue, now_ns, head)
            elif queue.stream is StreamState.RUNNING:
                self._stop(queue, now_ns)
        if self.rt_running is None:
            self._launch_real_time(head, now_ns)

    patch.setattr(Scheduler, "_serve_real_time", serve)


def forgets_stopped_streams(patch: pytest.MonkeyPatch) -> None:
    serve = Scheduler._serve_best_effort

    def forgetful(self: Scheduler, now_ns: int) -> None:
        stopped = {
            key: q for key, q in self.best_effort.items() if q.stream is StreamState.STOPPED and len(q.launched) == 1
        }
        kept = self.best_effort
        self.best_effort = {key: queue for key, queue in kept.items() if key not in stopped}
        serve(self, now_ns)
        self.best_effort = kept

    patch.setattr(Scheduler, "_serve_best_effort", forgetful)


def relaunches_what_was_preempted(patch: pytest.MonkeyPatch) -> None:
    """REEF's way on a device that keeps its progress: a task that was stopped is handed over again."""
    run = Scheduler._run

    def again(self: Scheduler, queue: BestEffortQueue, now_ns: int, beside: Task | None = None) -> None:
        if queue.stream is StreamState.STOPPED:
            self._out.extend(ev.LaunchTask(task) for task in queue.launched)
        run(self, queue, now_ns, beside)

    patch.setattr(Scheduler, "_run", again)


def loses_what_a_dead_worker_had(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler._stream_lost

    def careless(self: Scheduler, now_ns: int, event: ev.StreamLost) -> None:
        queue = self.best_effort.get(event.queue)
        if queue is not None:
            queue.launched = deque()
        lost(self, now_ns, event)

    patch.setattr(Scheduler, "_stream_lost", careless)


def reports_a_cancelled_task_at_once(patch: pytest.MonkeyPatch) -> None:
    asked = Scheduler._cancel_asked

    def hasty(self: Scheduler, now_ns: int, event: ev.CancelAsked) -> None:
        task = self.tasks.get(event.task)
        asked(self, now_ns, event)
        if task is not None and task.state is TaskState.LAUNCHED:
            self._out.append(ev.ReportTask(task))

    patch.setattr(Scheduler, "_cancel_asked", hasty)


def serves_the_latest_first(patch: pytest.MonkeyPatch) -> None:
    submitted = Scheduler._submitted

    def stack(self: Scheduler, now_ns: int, event: ev.Submitted) -> None:
        submitted(self, now_ns, event)
        if event.task.queue in self.best_effort:
            self.best_effort[event.task.queue].waiting.rotate(1)

    patch.setattr(Scheduler, "_submitted", stack)


def resumes_before_it_stands_still(patch: pytest.MonkeyPatch) -> None:
    stop = Scheduler._stop

    def early(self: Scheduler, queue: BestEffortQueue, now_ns: int) -> None:
        stop(self, queue, now_ns)
        queue.become(StreamState.STOPPED, now_ns)

    patch.setattr(Scheduler, "_stop", early)


def keeps_the_share_of_the_real_time_task_before(patch: pytest.MonkeyPatch) -> None:
    share = Scheduler._share

    def once(self: Scheduler, queue: BestEffortQueue, given: int) -> None:
        if not (queue.share and given):
            share(self, queue, given)

    patch.setattr(Scheduler, "_share", once)


DEFECTS = [
    launches_before_stops_are_acknowledged, never_stops_idle_looking_streams, pads_every_admitted_stream_at_once,
    forgets_stopped_streams, relaunches_what_was_preempted, loses_what_a_dead_worker_had, reports_a_cancelled_task_at_once,
    serves_the_latest_first, resumes_before_it_stands_still, keeps_the_share_of_the_real_time_task_before,
]  # fmt: skip


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(200):
        try:
            random_story(seed)
        except (AssertionError, Bug, ValueError, KeyError):
            return
    pytest.fail("200 stories passed")


# -- single promises ------------------------------------------------------------------------------------------------------


def device(**settings: int) -> SimulatedDevice:
    found = SimulatedDevice(SchedulerSettings(**settings), lengths=lambda model: model * US)
    found.open(1, "rt")
    return found


def test_real_time_work_waits_for_the_acknowledgement_and_no_longer() -> None:
    world = device()
    world.open(2, "be")
    world.submit(2, 10_000)
    world.run(50 * US)
    world.submit(1, 100)
    world.run()
    assert world.rt_delays == [20 * US]
    assert world.scheduler.counters.preemptions == 1 and world.scheduler.counters.late_stops == 0


def test_real_time_work_is_launched_at_the_bound_when_nobody_acknowledges() -> None:
    world = device(stop_bound_ns=300 * US)
    world.acknowledges = lambda: 10**12
    world.open(2, "be")
    world.submit(2, 10_000)
    world.run(50 * US)
    world.submit(1, 100)
    world.run(10_000 * US)
    assert world.rt_delays == [300 * US] and world.scheduler.counters.late_stops == 1


def test_a_second_real_time_task_does_not_wait_for_the_bound_again() -> None:
    """Stops that are late for one task are late for all: the bound is each task's own, not added up."""
    world = device(stop_bound_ns=300 * US)
    world.acknowledges = lambda: 10**12
    world.open(2, "be")
    world.submit(2, 10_000)
    world.run(50 * US)
    for _ in range(3):
        world.submit(1, 100)
    world.run(10_000 * US)
    assert world.rt_delays == [300 * US, 400 * US, 500 * US]


def test_best_effort_work_goes_on_where_it_was() -> None:
    world = device()
    world.open(2, "be")
    task = world.submit(2, 1_000)
    for at in range(1, 10):
        world.at(at * 150 * US, lambda: world.submit(1, 20) and None)
    world.run()
    assert task.state is TaskState.DONE and task.preemptions > 5
    assert world.served[2] == 1_000 * US, "work was lost or done twice"


def test_without_preemption_real_time_work_waits_for_the_task_that_runs() -> None:
    world = SimulatedDevice(SchedulerSettings(window=1, streams=1, preempt=False), lengths=lambda model: model * US)
    world.open(1, "rt")
    world.open(2, "be")
    world.open(3, "be")
    for queue in (2, 3):
        world.submit(queue, 1_000)
        world.submit(queue, 1_000)
    world.run(400 * US)
    world.submit(1, 100)
    world.run()
    world.finished()
    assert world.rt_delays == [600 * US] and world.scheduler.counters.preemptions == 0


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_stop_that_interrupts_nothing_is_no_preemption(interrupts: bool) -> None:
    world = device(window=1, interrupts=interrupts)
    world.open(2, "be")
    task = world.submit(2, 1_000)
    world.at(400 * US, lambda: world.submit(1, 100) and None)
    world.run()
    assert world.scheduler.counters.preemptions == task.preemptions == int(interrupts)


def test_a_task_joins_another_only_on_a_share_that_both_may_have() -> None:
    """What is admitted on more multiprocessors need not be on fewer: figures are measured."""
    admitted = {10: {8, 16}, 11: {32}, 12: {8, 64}, 13: {16, 64}}
    world = SimulatedDevice(
        SchedulerSettings(window=4),
        lambda rt, be: max(set.intersection(*(admitted[one] for one in be)), default=0),
        lambda model: 1000 * US if model >= 10 else 1500 * US,
    )
    world.open(1, "rt")
    world.open(2, "be")
    world.submit(1, 1)
    tasks = [world.submit(2, model) for model in (10, 11, 12, 13)]
    world.run(10 * US)
    assert [task.state for task in tasks] == [TaskState.LAUNCHED, *[TaskState.WAITING] * 3]
    assert world.streams[2].share == 16
    world.run()
    world.finished()


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 1, 2)])
def test_device_time_is_shared_by_weight(weights: tuple[int, ...]) -> None:
    world = device(streams=1, quantum_ns=500 * US)
    lengths = (30, 200, 3_000)
    for queue, weight in enumerate(weights, 2):
        world.open(queue, "be", weight)
        for _ in range(400_000 // lengths[queue - 2]):
            world.submit(queue, lengths[queue - 2])
    world.run(100_000 * US)
    shares = [world.served[queue] / weight for queue, weight in enumerate(weights, 2)]
    assert min(shares) > 0.9 * max(shares), world.served


def test_a_queue_that_was_idle_is_owed_nothing() -> None:
    world = device(streams=1, quantum_ns=500 * US)
    world.open(2, "be")
    world.open(3, "be")
    for _ in range(1000):
        world.submit(2, 100)
    world.run(50_000 * US)
    for _ in range(1000):
        world.submit(3, 100)
    before = dict(world.served)
    world.run(70_000 * US)
    assert world.served[2] - before[2] > 0.8 * (world.served[3] - before[3])


def test_a_queue_whose_worker_is_gone_for_good_fails_what_it_has() -> None:
    world = device()
    world.open(2, "be")
    tasks = [world.submit(2, 100) for _ in range(5)]
    world.step(ev.StreamLost(2, "gone", final=True))
    assert [task.state for task in tasks] == [TaskState.FAILED] * 5
    assert not world.scheduler.tasks


def test_the_tables_reject_what_is_not_in_them() -> None:
    for state in ENDED:
        assert not any(before is state for before, _ in TASK_TRANSITIONS)
    task = Task(1, 1, 1, state=TaskState.DONE)
    with pytest.raises(Bug, match="task 1"):
        task.become(TaskState.LAUNCHED, 0)
    queue = BestEffortQueue(4, 1)
    with pytest.raises(Bug, match="queue 4"):
        queue.become(StreamState.STOPPED, 0)
    with pytest.raises(UsageError):
        SchedulerSettings(window=0)
