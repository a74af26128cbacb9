"""Crashes between side effects: a fuse counts them and ends a life right before or right after any one of them.

A life is everything started in one context (``contextvars``): its tasks and what they call, threads included. When its
fuse blows, whatever it still tries to do to the outside raises ``Crash``, its tasks are dropped, and nothing is tidied
up: what the next life finds is what a process killed with SIGKILL at that point would have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import shutil
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ..agent.processes import attempt, rank, rank_steps
from ..agent.processes.attempt import Attempt
from ..checkpoint import cgroup, cooperative
from ..live.controller import clock, lock
from ..live.journal import store
from ..live.journal.store import Journal
from ..live.journal.watermark import WatermarkFile


class Crash(BaseException):
    """The process ends here. Not an Exception: nothing that survives mistakes survives this."""


class Fuse:
    """Counts the side effects of one life and blows at the ``at``-th (0: never), ``after`` it or before it.

    With ``kind``, only side effects of that name count. ``on_blow`` is called at that very moment, e.g. to keep a copy of a
    directory.
    """

    def __init__(
        self, at: int = 0, after: bool = False, on_blow: Callable[[], object] = lambda: None, kind: str = ""
    ) -> None:
        self.at, self.after, self.kind = at, after, kind
        self.effects: list[str] = []
        """Names of the side effects begun so far."""
        self.blown = ""
        """The side effect it blew at."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._on_blow = on_blow
        self._guard = threading.RLock()
        self._told: asyncio.Event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def effect(self, name: str) -> Iterator[None]:
        """One side effect. Raises Crash when the life ends at it, or has ended."""
        with self._guard:
            self._alive()
            self.effects.append(name)
            mine = self.kind in ("", name) and self._counted() == self.at
            if mine and not self.after:
                self._blow(name)
        try:
            yield
        finally:
            if mine:
                self._blow(name)

    def _counted(self) -> int:
        return self.effects.count(self.kind) if self.kind else len(self.effects)

    def _alive(self) -> None:
        if self.blown:
            raise Crash(self.blown)

    def _blow(self, name: str) -> None:
        with self._guard:
            self._alive()
            self._on_blow()
            self.blown = name
            self._loop.call_soon_threadsafe(self._told.set)
            raise Crash(name)

    async def death(self) -> None:
        """Return once the fuse has blown."""
        await self._told.wait()

    async def reap(self) -> None:
        """Drop the tasks of a life that is over."""
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()


FUSE: ContextVar[Fuse | None] = ContextVar("FUSE", default=None)
"""The fuse of the life that this code belongs to."""


def task_factory(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
    """For ``loop.set_task_factory``: every task knows whose it is."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
    fuse = more["context"].get(FUSE) if more.get("context") else FUSE.get()
    if fuse is not None:
        fuse.tasks.add(task)
    return task


def begin(fuse: Fuse, life: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a life under its fuse. The loop must use ``task_factory``."""
    context = copy_context()
    context.run(FUSE.set, fuse)
    return asyncio.get_running_loop().create_task(life, context=context)


class CrashTarget(NamedTuple):
    """A function that is a side effect: ``owner.attribute``."""

    effect: str
    owner: Any
    attribute: str


CONTROLLER = (
    CrashTarget("own file", lock, "write_whole"),
    CrashTarget("clock base", clock, "_save"),
    CrashTarget("tables", store, "create"),
    CrashTarget("rows", Journal, "_insert"),
    CrashTarget("transaction", Journal, "_write"),
    CrashTarget("watermark", WatermarkFile, "_write"),
)
"""What a controller does to its disk. Calls on agents and answers are the harness's own to count."""

AGENT = (
    CrashTarget("file", attempt, "write_atomically"),
    CrashTarget("attempt", Attempt, "create"),
    CrashTarget("memo", Attempt, "save"),
    CrashTarget("renamed", Path, "rename"),
    CrashTarget("tree removed", shutil, "rmtree"),
    CrashTarget("shim", rank.Rank, "spawn"),
    CrashTarget("not started", rank.Rank, "not_started"),
    CrashTarget("signal", cooperative, "send"),
    CrashTarget("signal", rank, "send"),
    CrashTarget("signal", cgroup, "send"),
    CrashTarget("group made", cgroup.Groups, "create"),
    CrashTarget("freezer", cgroup.Groups, "_write"),
    CrashTarget("group removed", rank, "remove"),
    CrashTarget("group removed", rank_steps, "remove"),
    CrashTarget("records removed", Attempt, "remove"),
)
"""What an agent does to its node. Reports are the harness's own to count, as it receives them."""


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a side effect of whichever life calls it; outside of any life it is itself."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **more: Any) -> Any:
            with effect(name):
                return await function(*args, **more)

        return later

    @functools.wraps(function)
    def now(*args: Any, **more: Any) -> Any:
        with effect(name):
            return function(*args, **more)

    return now


def effect(name: str) -> contextlib.AbstractContextManager[None]:
    """A side effect of the life that runs now, if any."""
    fuse = FUSE.get()
    return contextlib.nullcontext() if fuse is None else fuse.effect(name)


@contextlib.contextmanager
def counting(targets: Iterable[CrashTarget]) -> Iterator[None]:
    """Count these functions' calls, in every life at once."""
    with contextlib.ExitStack() as stack:
        for name, owner, attribute in targets:
            plain = inspect.getattr_static(owner, attribute)
            made = counted(name, getattr(owner, attribute))
            stack.enter_context(
                mock.patch.object(owner, attribute, staticmethod(made) if isinstance(plain, staticmethod) else made)
            )
        yield
