"""Worker processes: each runs one simulation at a time. One that dies costs its own cell alone, which is tried a second time.

``concurrent.futures`` fails every pending call when one process is killed, and cannot say which call it was.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from ..simulate import Question
from .worker import Message, RunDone, RunFailed, RunProgress, WorkerDied, work

_LOOK_S = 0.5
_END_S = 2.0
"""How long a worker may take to end after SIGTERM."""

Running = dict[int, float]
"""Index of a question that is being answered, and the share that is done."""


class Observer:
    """What a caller hears of; every method may be left as it is."""

    def done(self, at: int, found: RunDone | RunFailed) -> None:
        """Question ``at`` is answered, or failed."""

    def retried(self, at: int, died: WorkerDied) -> None:
        """The worker of question ``at`` died; the question is asked once more."""

    def running(self, cells: Running) -> None:
        """Called about twice a second."""


class _Worker:
    """A process, its pipe, and the question it works on: ``at`` is its index, None when idle."""

    def __init__(self, context: Any, target: Callable[[Connection], None]) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs,), daemon=True)
        with _interrupts_blocked():
            self.process.start()
        theirs.close()
        self.at: int | None = None
        self.question: Question
        self.share = 0.0

    def ask(self, at: int, question: Question) -> None:
        self.at, self.question, self.share = at, question, 0.0
        with contextlib.suppress(OSError):  # it has died: the loop reads the end of its pipe
            self.pipe.send_bytes(msgspec.msgpack.encode(question))

    def read(self) -> Message | WorkerDied:
        """The next message; its death is one."""
        try:
            message: Message = msgspec.msgpack.decode(self.pipe.recv_bytes(), type=Message)
            return message
        except (EOFError, OSError):
            self.process.join(_END_S)
            return WorkerDied(_death(self.process.exitcode))

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(_END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A child started here never sees Ctrl-C, which goes to the whole group; it is ended by its parent."""
    resource_tracker.ensure_running()  # else the first start does so, and unblocks SIGINT before its own child is there
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(code: int | None) -> str:
    if code is None:
        return "its process closed its pipe and did not end"
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = (
        ": by a user, or by the kernel because memory ran out (dmesg says which); try a smaller -j"
        if code == -9
        else ""
    )
    return f"its process was killed by {name}{hint}"


def answer_all(
    questions: Sequence[Question], workers: int, observer: Observer, target: Callable[[Connection], None] = work
) -> None:
    """Answer every question in up to ``workers`` processes. All of them have ended when this returns or raises."""
    context = multiprocessing.get_context("spawn")
    pending = deque(enumerate(questions))
    crew: list[_Worker] = []
    retried: set[int] = set()
    try:
        while pending or any(worker.at is not None for worker in crew):
            _assign(crew, pending, lambda: _Worker(context, target), workers)
            busy = {worker.pipe: worker for worker in crew if worker.at is not None}
            for pipe in wait(list(busy), _LOOK_S):
                worker = busy[pipe]
                if not _receive(worker, observer, pending, retried):
                    crew.remove(worker)
                    worker.end()
            observer.running({worker.at: worker.share for worker in crew if worker.at is not None})
    finally:
        for worker in crew:
            worker.end()


def _assign(
    crew: list[_Worker], pending: deque[tuple[int, Question]], start: Callable[[], _Worker], workers: int
) -> None:
    """A question to every idle worker, and to new ones while there may be more."""
    for worker in crew:
        if worker.at is None and pending:
            worker.ask(*pending.popleft())
    while pending and len(crew) < workers:
        crew.append(start())
        crew[-1].ask(*pending.popleft())


def _receive(
    worker: _Worker, observer: Observer, pending: deque[tuple[int, Question]], retried: set[int]
) -> bool:  # fmt: skip
    """Take a worker's next message; whether it goes on."""
    message, at = worker.read(), worker.at
    if isinstance(message, RunProgress):
        worker.share = message.share
    elif at is not None:
        worker.at = None
        if not isinstance(message, WorkerDied):
            observer.done(at, message)
        elif at in retried:
            observer.done(at, RunFailed(f"{message.cause}, at the second try too"))
        else:
            retried.add(at)
            pending.append((at, worker.question))
            observer.retried(at, message)
    return not isinstance(message, WorkerDied)
