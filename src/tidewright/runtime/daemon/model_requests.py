"""Models and workers of clients: load, unload, tasks handed over and ended; workers that are lost, hang or take too much."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from typing import Any

from ...base.errors import Conflict, UsageError
from ...base.units import format_bytes
from ..ladder import StopLevel
from ..models import ModelPool, ModelRecord, ModelState
from ..padding.admission import KnownModel, model_key
from ..scheduler import events as ev
from ..scheduler.machine import Scheduler
from ..scheduler.queues import StreamState
from ..scheduler.tasks import Task, TaskState
from ..transport import messages as ms
from ..transport.tensors import SlotLayout, check_outputs, check_spec
from .queue_worker import QueueWorker
from .session import ClientSession
from .settings import RuntimeSettings
from .workers import Workers

MOST_SLOTS = 64
MOST_LOSSES = 3
"""Workers of one queue lost in a row after which it takes no more tasks."""
_WATCH_NS = 250_000_000


class ModelRequests(ABC):
    """The part of the server that deals with workers. What is abstract here is the server's loop."""

    settings: RuntimeSettings
    scheduler: Scheduler
    pool: ModelPool
    sessions: dict[int, ClientSession]
    workers: Workers
    known: dict[int, KnownModel]
    """Models that are ready, to what a slow-down table knows them by."""
    _looked_ns = 0

    @abstractmethod
    def step(self, event: ev.Event) -> None:
        """Let the scheduler know of something, and do what it says."""

    @abstractmethod
    def close(self, queue: int) -> None:
        """End a client's session."""

    @abstractmethod
    def unwatch(self, descriptor: int) -> None:
        """Hear of a descriptor no more."""

    @abstractmethod
    def watch_worker(self, session: ClientSession) -> None:
        """Hear of what a client's worker says."""

    @abstractmethod
    def stopped(self, session: ClientSession) -> None:
        """A worker has acknowledged that it stands still."""

    @abstractmethod
    def acknowledged(self, session: ClientSession) -> None:
        """A worker says so itself."""

    @abstractmethod
    def stats_message(self) -> ms.Stats:
        """What the runtime has done."""

    # -- requests ---------------------------------------------------------------------------------------------------

    def answer(self, session: ClientSession, message: Any) -> Any:
        """What the client gets at once; None where the answer comes later. Raises UsageError."""
        if isinstance(message, ms.LoadModel):
            return self._load(session, message)
        if isinstance(message, ms.UnloadModel):
            return self._unload(session, message.model)
        if isinstance(message, ms.CancelTask):
            key = session.outstanding.get(message.task)
            if key is not None:
                self.step(ev.CancelAsked(key))
            return ms.RequestDone()
        if isinstance(message, ms.SetWeight):
            if not 1 <= message.weight <= 1000:
                raise UsageError(f"weight {message.weight}", "give 1 to 1000")
            self.step(ev.WeightSet(session.queue, message.weight))
            return ms.RequestDone()
        if isinstance(message, ms.GetStats):
            return self.stats_message()
        raise UsageError(f"{type(message).__name__} is no request of a client with a queue", "send Hello once")

    def _load(self, session: ClientSession, message: ms.LoadModel) -> None:
        for spec in message.inputs:
            check_spec(spec)
        if not 1 <= message.slots <= MOST_SLOTS:
            raise UsageError(f"{message.slots} slots", f"ask for 1 to {MOST_SLOTS}")
        if session.broken:
            raise Conflict(session.broken, "connect again")
        if any(model.state is ModelState.LOADING for model in self.pool.of(session.queue)):
            raise Conflict("another model of this client is being loaded", "wait for it")
        name = message.name or message.source.factory
        model = self.pool.add(session.queue, name, message.source, message.inputs, message.slots)
        self._make(session, model.id)

    def _make(self, session: ClientSession, key: int) -> None:
        model = self.pool.models[key]
        gated = session.worker.level in (StopLevel.GATE, StopLevel.CTA, StopLevel.KERNEL)
        session.worker.send(ms.MakeModel(key, model.source, model.inputs, session.hello.folder, gated))

    def _unload(self, session: ClientSession, key: int) -> Any:
        if key in self.pool.models and self.pool.models[key].state is ModelState.UNLOADING:
            raise Conflict(f"model {key} is being unloaded", "wait for it")
        if not self.pool.unload(session.queue, key):
            session.unloading.add(key)
            return None
        self.drop_model(session, key)
        return ms.RequestDone()

    def drop_model(self, session: ClientSession, key: int) -> None:
        """Nothing of it runs any more."""
        self.pool.drop(key)
        self.known.pop(key, None)
        session.worker.send(ms.DropModel(key))
        session.drop_slots(key)
        if key in session.unloading:
            session.unloading.discard(key)
            self._tell(session, ms.RequestDone())

    def _tell(self, session: ClientSession, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """A later answer. A client that does not read its connection loses it."""
        try:
            ms.send(session.connection, message, descriptors)
        except OSError:
            self.close(session.queue)

    # -- reports of workers -----------------------------------------------------------------------------------------

    def reported(self, session: ClientSession) -> None:
        """The next report of a client's worker."""
        try:
            report = session.worker.receive()
        except BlockingIOError:
            return  # an event of a descriptor that was closed since
        except OSError:
            self.unwatch(session.worker.connection.fileno())  # its end is seen when it is reaped
            session.cut_off_ns = time.monotonic_ns()
            return
        except UsageError as error:
            # The model's code may write to any descriptor of its process.
            self.lost(session, f"the worker sent what is no report: {error.message}")
            return
        if isinstance(report, ms.TaskEnded):
            self._ended(session, report)
        elif isinstance(report, ms.StoppedAtGate):
            if report.number == session.worker.stop_number:
                self.acknowledged(session)
        elif isinstance(report, ms.MakingModel):
            session.making, session.making_ns = report.model, time.monotonic_ns()
        elif isinstance(report, ms.ModelMade):
            self._made(session, report)
        else:
            self._failed(session, report)

    def _ended(self, session: ClientSession, report: ms.TaskEnded) -> None:
        task = self.scheduler.tasks.get(report.task)
        if task is None:
            return
        if task.queue != session.queue or task.state is not TaskState.LAUNCHED:
            # The model's code may write to any descriptor of its process.
            self.lost(session, f"the worker reported the end of task {report.task}, which it does not have")
            return
        if not report.error:
            session.losses = 0
        session.running = None
        self.step(ev.TaskFinished(report.task, report.error, report.skipped))
        queue = self.scheduler.best_effort.get(session.queue)
        if (
            session.stop_asked_ns
            and session.worker.level is StopLevel.GATE
            and queue is not None
            and not queue.launched
        ):
            self.stopped(session)  # it had just ended its last task: it comes to no gate, and nothing of it runs

    def _made(self, session: ClientSession, report: ms.ModelMade) -> None:
        session.making = 0
        model = self.pool.models.get(report.model)
        if model is None:
            session.worker.send(ms.DropModel(report.model))  # it was unloaded meanwhile
            self._remade(session, report.model)
            return
        if report.model in session.remaking:
            self._made_again(session, report)
            return
        if model.state is not ModelState.LOADING:
            return  # of a queue that is broken: its client has this model, and waits for no answer
        try:
            check_outputs(report.signature)
            slots = SlotLayout.of(report.signature).nbytes * model.slots
            self.pool.loaded(model.id, report.signature, report.nbytes + slots, report.run_ns, report.gates)
        except UsageError as error:
            self.pool.drop(report.model)
            session.worker.send(ms.DropModel(report.model))
            self._tell(session, ms.RequestRefused.of(error))
            return
        self._know(model, report)
        descriptor = session.make_slots(model, slots)
        session.worker.send(ms.AttachSlots(model.id, model.slots), (descriptor,))
        loaded = ms.ModelLoaded(
            model.id,
            report.signature,
            model.slots,
            model.nbytes,
            report.run_ns,
            session.worker.level.value,
            report.gates,
            report.shares,
        )
        self._tell(session, loaded, (descriptor,))

    def _know(self, model: ModelRecord, report: ms.ModelMade) -> None:
        """For padding. On cores every model has those that real-time work leaves."""
        shares = None if self.settings.device == "cpu" else report.shares
        self.known[model.id] = KnownModel(model_key(model.source), shares)

    def _made_again(self, session: ClientSession, report: ms.ModelMade) -> None:
        """By the worker that follows a lost one: the client's slots are as they were."""
        model = self.pool.models[report.model]
        if report.signature != model.signature:
            why = f"model {model.name!r} was made again with another signature: {report.signature}"
            self._break(session, why)
            return
        self._know(model, report)
        session.worker.send(ms.AttachSlots(model.id, model.slots), (session.slots[model.id],))
        self._remade(session, report.model)

    def _failed(self, session: ClientSession, report: ms.ModelFailed) -> None:
        session.making = 0
        model = self.pool.models.get(report.model)
        if model is None:
            return
        if report.model in session.remaking:
            self._break(
                session, f"model {model.name!r} could not be made again after its worker was lost: {report.message}"
            )
            return
        self.pool.drop(report.model)
        self._tell(
            session, ms.RequestRefused(f"model {model.name!r} was not loaded: {report.message}", "correct the model")
        )

    # -- tasks ------------------------------------------------------------------------------------------------------

    def launch(self, session: ClientSession, task: Task) -> None:
        """Hand a task to its worker."""
        session.worker.send(ms.RunTask(task.id, task.model, task.slot))

    def abort(self, session: ClientSession, task: Task) -> None:
        """Skip a task that the worker has not begun, or can cut short."""
        session.worker.send(ms.SkipTask(task.id))

    # -- workers ----------------------------------------------------------------------------------------------------

    def lost(self, session: ClientSession, why: str) -> None:
        """A worker has ended, or is killed now because of ``why``. Its tasks have failed; another one makes its models again."""
        worker = session.worker
        # A worker that was killed for another client may close its connection, on a busy host, long before it has ended.
        why = _ended_text(worker) if worker.killed_for_another or not why else why
        blamed = self._to_blame(session)
        self.unwatch(worker.connection.fileno())
        if worker.exit_status is None:
            worker.kill()
            self.retire(worker)
        worker.close()
        session.losses += blamed
        session.making = session.cut_off_ns = 0
        session.stop_asked_ns, session.running = 0, None
        loading = [model for model in self.pool.of(session.queue) if model.state is ModelState.LOADING]
        for model in loading:
            self.pool.drop(model.id)
            self._tell(
                session, ms.RequestRefused(f"model {model.name!r} was not loaded: {why}", "see the runtime's log")
            )
        final = session.losses >= MOST_LOSSES
        session.worker = self.workers.spawn(session.hello, bool(self.pool.of(session.queue)))
        self.watch_worker(session)
        for other in list(self.sessions.values()):
            if other.worker.killed_for_another:  # it would be given requests until its end is seen
                self.lost(other, "")
        if final:
            self._break(session, f"{why}, {session.losses} times in a row; nothing more runs on this queue")
            return
        self.step(ev.StreamLost(session.queue, why))
        session.remaking = {model.id for model in self.pool.of(session.queue)}
        for key in sorted(session.remaking):
            self._make(session, key)
        if not session.remaking:
            self.step(ev.StreamReady(session.queue))

    def _to_blame(self, session: ClientSession) -> bool:
        """Whether the end of a worker may be this client's doing: of one that others use, too, if something of it was there."""
        if session.worker.killed_for_another:
            return False
        return not session.worker.shared or bool(session.making or self._at_work(session))

    @abstractmethod
    def retire(self, worker: QueueWorker) -> None:
        """A worker is being killed: it is reaped when it has ended."""

    def _remade(self, session: ClientSession, key: int) -> None:
        session.remaking.discard(key)
        if not session.remaking and not session.broken and self._stream_lost(session):
            self.step(ev.StreamReady(session.queue))

    def _stream_lost(self, session: ClientSession) -> bool:
        """Whether the scheduler waits for the queue's worker."""
        queue = self.scheduler.best_effort.get(session.queue)
        return queue.stream is StreamState.LOST if queue is not None else not self.scheduler.real_time[session.queue]

    def _break(self, session: ClientSession, why: str) -> None:
        """The queue takes no more tasks; those it has have failed."""
        session.broken = why
        session.remaking.clear()
        self.step(ev.StreamLost(session.queue, why, final=True))

    def look_after_workers(self, now_ns: int) -> None:
        """Now and then: workers whose task has used up its time, or that take more memory than they may."""
        if now_ns - self._looked_ns < _WATCH_NS:
            return
        passed, self._looked_ns = min(now_ns - self._looked_ns, 2 * _WATCH_NS), now_ns
        self.workers.look_after()
        for session in list(self.sessions.values()):
            session.worker.flush()
            if session.cut_off_ns and session.worker.reap():
                self.lost(session, "")
                continue
            # As a rule it is about to end, and its exit status says more; a kill meanwhile would be put down to this client.
            if session.cut_off_ns and now_ns - session.cut_off_ns > _WATCH_NS:
                self.lost(session, "the worker has closed its connection")
                continue
            if session.making and now_ns - session.making_ns > self.settings.load_timeout_s * 1e9:
                self.lost(
                    session, f"a model took more than {self.settings.load_timeout_s:g} s to load (--load-timeout)"
                )
                continue
            if session.stop_asked_ns and session.worker.has_stopped():
                self.stopped(session)  # its signal should have come; real-time work must not depend on that alone
            self._check_time(session, passed)
            if session.queue in self.sessions:
                self._check_memory(session)

    def _check_time(self, session: ClientSession, passed_ns: int) -> None:
        """Only time in which the task could run counts: looked at four times a second, that is exact enough for a limit."""
        task = self._at_work(session)
        if task is None:
            session.running = None
            return
        if session.running is None or session.running[0] != task.id:
            session.running = (task.id, int(self.settings.task_timeout_s * 1e9))
            return
        left = session.running[1] - passed_ns
        session.running = (task.id, left)
        if left <= 0:
            limit = f"{self.settings.task_timeout_s:g} s"
            self.lost(session, f"the task used the device for more than {limit} (--task-timeout)")

    def _at_work(self, session: ClientSession) -> Task | None:
        """The task that the worker runs now, unless it is stopped."""
        running = self.scheduler.rt_running
        if running is not None and running.queue == session.queue:
            return running
        queue = self.scheduler.best_effort.get(session.queue)
        if queue is None or not queue.launched or queue.stream.value != "running":
            return None
        if queue.share and self.settings.stop is StopLevel.KERNEL:
            return None  # whether any of its kernels is admitted beside real-time work is the worker's affair
        return queue.launched[0]

    def _check_memory(self, session: ClientSession) -> None:
        limit = self.settings.worker_memory
        if not limit:
            return
        allowed = limit + sum(model.nbytes for model in self.pool.of(session.queue))
        used = session.worker.resident_bytes()
        if used > allowed:
            text = f"the worker used {format_bytes(used)}, more than {format_bytes(allowed)} (--worker-memory)"
            self.lost(session, text)


def _ended_text(worker: QueueWorker) -> str:
    status = worker.exit_status
    if worker.killed_for_another:
        return "the worker of the device was ended because of another client"
    if status is None or status >= 0:
        return f"the worker ended with {status}"
    return f"the worker was killed by {signal.Signals(-status).name}"
