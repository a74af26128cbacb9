"""The runtime's loop: one thread, one epoll(7), no wait but that one. Clients' messages, doorbells, workers' reports and the ends
of processes come in; the scheduler decides; workers and clients hear of it.

It runs in SCHED_FIFO where it may, above its real-time workers: it must be able to end one that spins. It never polls: a process
in that class that does not sleep is held back by the kernel (sched(7), 95 % of each second).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ...base.errors import TideError, UsageError
from ...base.paths import inode
from ..ladder import StopLevel, level_name, real_time_level
from ..models import ModelPool
from ..padding.admission import KnownModel, rule
from ..scheduler import events as ev
from ..scheduler.machine import Scheduler
from ..scheduler.tasks import Task, TaskState
from ..transport.messages import (
    GetStats,
    Hello,
    RequestRefused,
    Shutdown,
    Stats,
    Welcome,
    client_messages,
    close_all,
    receive,
    send,
)
from ..transport.rings import Submission
from .child_signals import StopAlarm, children_descriptor
from .listening import listen, peer
from .model_requests import ModelRequests
from .queue_worker import QueueWorker
from .session import ClientSession
from .settings import RuntimeSettings
from .stats import collect
from .worker_process import FIFO_RUNTIME
from .workers import Workers

log = logging.getLogger("tidewright.runtime")
_WATCH_S, _MOST_ACKNOWLEDGED = 0.25, 4096


class RuntimeServer(ModelRequests):
    """``serve`` until asked to stop."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self.settings = settings
        self.workers = Workers(settings)
        self.known: dict[int, KnownModel] = {}
        here, share = self.workers.fingerprint, settings.padding_share
        padding = rule(settings.padding, here, share, self.known, settings.padding_bound)
        self.scheduler = Scheduler(settings.scheduler, padding)
        self.pool = ModelPool(settings.capacity)
        self.sessions: dict[int, ClientSession] = {}
        self.acknowledged_ns: deque[int] = deque(maxlen=_MOST_ACKNOWLEDGED)
        """How long the latest stops took to be acknowledged."""
        self.began_ns = time.monotonic_ns()
        self._next_queue = self._next_task = 1
        self._timer_ns = 0
        self._ending = self.terminated = False
        self._bound = (0, 0)
        self._events: deque[ev.Event] = deque()
        """The first one is being dealt with."""
        self._alarm = StopAlarm(settings.scheduler.stop_bound_ns / 1e9)
        self._stopping: list[ClientSession] = []
        """Those whose workers were sent SIGSTOP by the actions of this event."""
        self._dying: list[QueueWorker] = []
        self._handlers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._actions: dict[type, Callable[[Any], None]] = {
            ev.LaunchTask: self._launch, ev.AbortTask: self._abort, ev.StopStream: self._stop, ev.ResumeStream: self._resume,
            ev.PadStream: lambda action: self.sessions[action.queue].worker.pad(action.share),
            ev.ReportTask: self._report, ev.SetTimer: self._set_timer,
        }  # fmt: skip

    # -- the loop ---------------------------------------------------------------------------------------------------

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Until SIGTERM, SIGINT or a client's request. ``ready`` is called when clients can connect."""
        listener = listen(self.settings.socket, take_over=self.settings.take_over)
        self._bound = inode(self.settings.socket)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_end)
        children = children_descriptor()
        os.sched_setaffinity(0, self.settings.cores)
        with contextlib.suppress(OSError):
            # Children begin in the usual class.
            parameters = os.sched_param(FIFO_RUNTIME)
            if self.settings.fifo:
                os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, parameters)
        self._watch(listener.fileno(), lambda: self._accept(listener))
        self._watch(children, lambda: self._signalled(children))
        ready()
        try:
            while not self._ending:
                self._turn()
        finally:
            self._end(listener)
            os.close(children)

    def _turn(self) -> None:
        """Wait for what comes next, and deal with it."""
        now = time.monotonic_ns()
        wait_s = _WATCH_S
        if self._timer_ns:
            wait_s = min(wait_s, max(0.0, (self._timer_ns - now) / 1e9))
        for descriptor, _ in self._epoll.poll(wait_s):
            handler = self._handlers.get(descriptor)
            if handler is not None:  # a handler before it may have closed the session
                handler()
        now = time.monotonic_ns()
        if self._timer_ns and now >= self._timer_ns:
            self._timer_ns = 0
            self.step(ev.TimerDue())
        self._alarm.rest(now)
        self.look_after_workers(now)

    def _end(self, listener: socket.socket) -> None:
        self._alarm.close()
        for queue in list(self.sessions):
            self.close(queue)
        self.workers.close()
        for worker in self._dying:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)
        if inode(self.settings.socket) == self._bound:  # else one that came after has taken the path
            self.settings.socket.unlink()
        listener.close()
        self._epoll.close()

    def _asked_to_end(self, number: int, *_: Any) -> None:
        self._ending, self.terminated = True, number == signal.SIGTERM

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def step(self, event: ev.Event) -> None:
        """One event into the scheduler, and what it asks for carried out. What that brings about comes after it."""
        self._events.append(event)
        if len(self._events) > 1:
            return  # called from an action: the loop below takes it
        while self._events:
            for action in self.scheduler.step(time.monotonic_ns(), self._events[0]):
                # An action before it may have shut a client out that does not read its answers.
                if (queue := ev.queue_of(action)) is None or queue in self.sessions:
                    self._actions[type(action)](action)
            if self._stopping:
                self._await_stops()
            self._events.popleft()

    # -- clients ----------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            pid, uid = peer(connection)
            if uid not in (os.getuid(), 0):
                log.warning("process %d of uid %d was refused", pid, uid)
                connection.close()
                return
            connection.setblocking(False)
            self._watch(connection.fileno(), lambda: self._greeted(connection, pid))

    def _greeted(self, connection: socket.socket, pid: int) -> None:
        """The first message of a connection: a Hello opens a queue; questions are answered without one."""
        try:
            message, descriptors = receive(connection, client_messages)
            close_all(descriptors)
            if isinstance(message, Hello):
                self.unwatch(connection.fileno())
                self._open(connection, message, pid)
            else:
                self._without_queue(connection, message)
        except BlockingIOError:
            return
        except (OSError, TideError) as error:
            self._turn_away(connection, error)

    def _without_queue(self, connection: socket.socket, message: Any) -> None:
        if isinstance(message, GetStats):
            send(connection, self.stats_message())
        elif isinstance(message, Shutdown):
            self._ending = True
        else:
            raise UsageError(f"{type(message).__name__} before Hello", "open a queue first")

    def _turn_away(self, connection: socket.socket, error: Exception) -> None:
        with contextlib.suppress(OSError):
            if isinstance(error, UsageError):
                send(connection, RequestRefused.of(error))
        self.unwatch(connection.fileno())
        connection.close()

    def _open(self, connection: socket.socket, hello: Hello, pid: int) -> None:
        if len(self.sessions) >= self.settings.most_clients:
            raise UsageError(
                f"{len(self.sessions)} clients are connected", "close some, or start it with more (--clients)"
            )
        if not 1 <= hello.weight <= 1000 or not 0 <= hello.threads <= len(self.settings.cores):
            raise UsageError(
                f"weight {hello.weight}, {hello.threads} threads",
                f"give 1 to 1000, and up to {len(self.settings.cores)} threads",
            )
        queue, self._next_queue = self._next_queue, self._next_queue + 1
        worker = self.workers.spawn(hello)
        session = ClientSession.open(queue, connection, hello, pid, worker)
        self.sessions[queue] = session
        self._watch(connection.fileno(), lambda: self._spoken(session))
        self._watch(session.rings.submitted, lambda: self._submitted(session))
        self.watch_worker(session)
        self.step(ev.QueueOpened(queue, hello.kind, hello.weight))
        device = self.settings.device
        welcome = Welcome(
            queue,
            device,
            level_name(device, worker.level) if hello.kind == "be" else real_time_level(device, self.settings.fifo),
        )
        send(connection, welcome, (session.ring_memory, session.rings.submitted, session.rings.completed))
        log.info("%s (%s, pid %d) opened queue %d", session.name, hello.kind, pid, queue)

    def retire(self, worker: QueueWorker) -> None:
        """It is being killed: it is reaped when it has ended."""
        if not worker.reap():
            self._dying.append(worker)

    def watch_worker(self, session: ClientSession) -> None:
        """Its reports are read from now on."""
        self._watch(session.worker.connection.fileno(), lambda: self.reported(session))

    def _spoken(self, session: ClientSession) -> None:
        """A request of a client that has a queue. Whatever is wrong with it is its client's affair alone."""
        try:
            message, descriptors = receive(session.connection, client_messages)
            close_all(descriptors)
            answer = self.answer(session, message)
            if answer is not None:
                send(session.connection, answer)
        except UsageError as error:
            with contextlib.suppress(OSError):
                send(session.connection, RequestRefused.of(error))
        except BlockingIOError:
            return  # an event of a descriptor that was closed since
        except OSError:
            self.close(session.queue)

    def stats_message(self) -> Stats:
        sessions = list(self.sessions.values())
        return Stats(
            collect(
                self.settings,
                self.workers.facts,
                self.scheduler,
                self.pool,
                sessions,
                self.acknowledged_ns,
                self.began_ns,
            )
        )

    def close(self, queue: int) -> None:
        """A client is gone, or must go: all of it is dropped, and its worker killed."""
        session = self.sessions.pop(queue, None)
        if session is None:
            return
        for descriptor in (session.connection.fileno(), session.rings.submitted, session.worker.connection.fileno()):
            self.unwatch(descriptor)
        session.close()
        self.retire(session.worker)
        for model in self.pool.of(queue):
            self.known.pop(model.id, None)
        self.pool.drop_queue(queue)
        self.step(ev.QueueClosed(queue))
        log.info("%s closed queue %d", session.name, queue)

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _submitted(self, session: ClientSession) -> None:
        """Tasks of a client. One that lies about its rings is shut out: nothing in them can be trusted."""
        try:
            for entry in session.rings.submissions():
                if session.full or entry.task in session.outstanding:
                    raise UsageError("more tasks than the rings hold, or one twice")
                self._take(session, entry)
        except UsageError as error:
            log.warning("%s: %s", session.name, error.message)
            self.close(session.queue)

    def _take(self, session: ClientSession, entry: Submission) -> None:
        key, self._next_task = self._next_task, self._next_task + 1
        task = Task(key, session.queue, entry.model, entry.slot, entry.task, time.monotonic_ns())
        session.outstanding[entry.task] = key
        try:
            if session.broken:
                raise UsageError(session.broken)
            self.pool.usable(session.queue, entry.model, entry.slot)
        except UsageError as error:
            session.failed += 1
            task.become(TaskState.FAILED, task.submitted_ns)
            session.complete(task, str(error))
            return
        self.pool.begun(entry.model)
        self.step(ev.Submitted(task))

    def _report(self, action: ev.ReportTask) -> None:
        task = action.task
        session = self.sessions[task.queue]
        if task.state is TaskState.DONE:
            session.done += 1
        elif task.state is TaskState.FAILED:
            session.failed += 1
        else:
            session.cancelled += 1
        session.complete(task, action.error)
        if self.pool.ended(task.model):
            self.drop_model(session, task.model)

    def _launch(self, action: ev.LaunchTask) -> None:
        self.launch(self.sessions[action.task.queue], action.task)

    def _abort(self, action: ev.AbortTask) -> None:
        self.abort(self.sessions[action.task.queue], action.task)

    def _stop(self, action: ev.StopStream) -> None:
        session = self.sessions[action.queue]
        session.stop_asked_ns = session.stopping_ns = time.monotonic_ns()
        if session.worker.exit_status is None and session.worker.stop():
            self.stopped(session)
        elif session.worker.level is StopLevel.SIGNAL:
            self._stopping.append(session)

    def _await_stops(self) -> None:
        """Workers that were just sent SIGSTOP. One on this core stops as soon as this thread sleeps, within 10 to 20 µs, where a
        turn of the loop takes 50. One that has not stopped at the next alarm is heard of by the descriptor of child signals."""
        stopping, self._stopping = self._stopping, []
        for session in stopping:
            if self._alarm.wait(session.worker) and session.stop_asked_ns:
                self.stopped(session)

    def acknowledged(self, session: ClientSession) -> None:
        """The worker says that it has stopped at a gate. On a device with graphs it is measured, not waited for."""
        if session.worker.shared:
            self.acknowledged_ns.append(time.monotonic_ns() - session.stopping_ns)
        elif session.stop_asked_ns:
            self.stopped(session)

    def stopped(self, session: ClientSession) -> None:
        """The worker has acknowledged a stop, or nothing need be waited for."""
        if session.stop_asked_ns:
            if session.worker.level in (StopLevel.SIGNAL, StopLevel.GATE):
                self.acknowledged_ns.append(time.monotonic_ns() - session.stop_asked_ns)
            session.stop_asked_ns = 0
        self.step(ev.StreamStopped(session.queue))

    def _resume(self, action: ev.ResumeStream) -> None:
        worker = self.sessions[action.queue].worker
        if worker.exit_status is None:
            worker.resume()

    def _set_timer(self, action: ev.SetTimer) -> None:
        self._timer_ns = action.at_ns

    # -- processes --------------------------------------------------------------------------------------------------

    def _signalled(self, children: int) -> None:
        """A child has stopped, continued or ended. Stops first: real-time work waits for them."""
        with contextlib.suppress(BlockingIOError):
            os.read(children, 4096)
        for session in list(self.sessions.values()):
            if session.stop_asked_ns and session.worker.has_stopped():
                self.stopped(session)
        self._reap()

    def _reap(self) -> None:
        """Workers that have ended, if any child has."""
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
        for session in list(self.sessions.values()):
            if session.worker.reap():
                self.lost(session, "")
        self._dying = [worker for worker in self._dying if not worker.reap()]
