"""A deterministic machine for the cut: tasks that may be changed at every access to shared memory, memory with store
buffers, virtual time. It offers what the modules ``threading``, ``time`` and ``futex`` do, so the wrapper's code runs unchanged.

Each owner (a rank's process, an agent) has a store buffer, as a processor of the x86 kind has: what it writes is seen by
others some time later, in order; locks, system calls and fences write it through (Sewell et al., x86-TSO, CACM 2010).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import greenlet

SLICES = (0, 1, 2, 4, 8, 16, 64, 256)
"""Accesses to shared memory before others may run."""


class Killed(greenlet.GreenletExit):
    """Its process is gone."""


class Memory(dict):
    """The words of one page; ``waiters`` sleep until it is rung."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Task] = []
        self.heap = [0] * 64


class Owner:
    """What has a store buffer: a process or an agent. ``frozen``: it stands still."""

    def __init__(self, name: str) -> None:
        self.name, self.alive, self.frozen = name, True, False
        self.buffer: list[tuple[Memory, int, int]] = []
        self.last: Task | None = None
        self.tasks: set[Task] = set()

    def flush(self, count: int | None = None) -> None:
        """Write through the oldest ``count`` stores."""
        count = len(self.buffer) if count is None else count
        for memory, index, value in self.buffer[:count]:
            memory[index] = value
        del self.buffer[:count]


class Task:
    def __init__(self, kernel: Kernel, run: Callable[[], None], owner: Owner) -> None:
        self.owner = owner
        self.let = greenlet.greenlet(run, kernel.hub)
        self.turn = 0
        """Counts its waits: a timer of an earlier one does nothing."""
        self.waiting = False
        self.over = False


class Words:
    """A page's words as one owner sees them."""

    def __init__(self, kernel: Kernel, memory: Memory, owner: Owner) -> None:
        self._kernel, self._memory, self._owner = kernel, memory, owner

    def __getitem__(self, index: int) -> int:
        kernel = self._kernel
        kernel.left -= 1
        if kernel.left < 0:
            kernel.pause()
        if self._owner.buffer:
            for memory, at, value in reversed(self._owner.buffer):
                if at == index and memory is self._memory:
                    return value
        return self._memory.get(index, 0)

    def __setitem__(self, index: int, value: int) -> None:
        kernel = self._kernel
        kernel.left -= 1
        if kernel.left < 0:
            kernel.pause()
        if self._owner.alive:
            self._owner.buffer.append((self._memory, index, value))


class Kernel:
    """Chooses who runs, by ``rng`` alone."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now, self.left = rng, 0.0, 0
        self.hub = greenlet.getcurrent()
        self.task: Task | None = None
        self.ready: list[Task] = []
        self.owners: list[Owner] = []
        self._sleepers: list[tuple[float, int, Task, int]] = []
        self._aside: list[tuple[int, int, Task]] = []
        self._serial = self._steps = 0

    def owner(self, name: str) -> Owner:
        self.owners.append(Owner(name))
        return self.owners[-1]

    def spawn(self, run: Callable[[], None], owner: Owner) -> Task:
        task = Task(self, run, owner)
        owner.tasks.add(task)
        self.ready.append(task)
        return task

    def pause(self) -> None:
        """Another task may run now."""
        if self.task is not None and greenlet.getcurrent() is self.task.let:
            self.ready.append(self.task)
            self.hub.switch()
        else:
            self.left = 1 << 30  # outside a task: a check of the test itself

    def sleep(self, seconds: float) -> None:
        self.block(max(seconds, 1e-6))

    def block(self, seconds: float | None = None) -> None:
        """Until ``wake``, or for so long."""
        task = self.task
        assert task is not None
        if task.owner.buffer:
            task.owner.flush()
        task.turn += 1
        task.waiting = True
        if seconds is not None:
            self._serial += 1
            heapq.heappush(self._sleepers, (self.now + seconds, self._serial, task, task.turn))
        self.hub.switch()

    def wake(self, task: Task) -> None:
        if task.waiting and not task.over:
            task.waiting = False
            self.ready.append(task)

    def kill(self, owner: Owner) -> None:
        """Without a word: nothing of it runs any more, what it had in its buffer may or may not be seen."""
        owner.flush(self.rng.randint(0, len(owner.buffer)))
        owner.alive = False
        owner.buffer.clear()
        self.owners.remove(owner)
        for task in list(owner.tasks):
            task.over = True
            if task in self.ready:
                self.ready.remove(task)
            if task is not self.task and task.let:
                task.let.parent = greenlet.getcurrent()
                task.let.throw(Killed)
        owner.tasks.clear()

    def run(self, until: Callable[[], bool], steps: int) -> bool:
        """Whether ``until()`` came true before nothing could happen any more, within so many steps."""
        for _ in range(steps):
            if until():
                return True
            if not self._step():
                break
        return until()

    def _step(self) -> bool:
        self._steps += 1
        while self._aside and self._aside[0][0] <= self._steps:
            self._bring_back()
        choice = [task for task in self.ready if not task.owner.frozen]
        if not choice and self._aside:
            self._bring_back()
            return True
        if not choice:
            for owner in self.owners:
                owner.flush()
            return self._advance()
        if self.rng.random() < 0.2:  # those that run may be slow, too
            self._advance()
        task = choice[int(self.rng.random() * len(choice))] if len(choice) > 1 else choice[0]
        self.ready.remove(task)
        owner = task.owner
        if owner.last is not task:
            if owner.buffer:
                owner.flush()
            owner.last = task
        chance = self.rng.random()
        if chance < 0.1:
            for other in self.owners:
                if other.buffer and self.rng.random() < 0.3:
                    other.flush(self.rng.randint(0, len(other.buffer)))
        self.left = SLICES[int(chance * 1000) % len(SLICES)]
        self.task = task
        task.let.switch()
        self.task = None
        if task.let.dead:
            task.over = True
            owner.tasks.discard(task)
        elif not task.waiting and chance > 0.8:  # changed in the middle of something, for long
            self.ready.remove(task)
            self._serial += 1
            heapq.heappush(self._aside, (self._steps + int(10 ** (2.5 * self.rng.random())), self._serial, task))
        return True

    def _bring_back(self) -> None:
        task = heapq.heappop(self._aside)[2]
        if not task.over:
            self.ready.append(task)

    def _advance(self) -> bool:
        while self._sleepers:
            at, _, task, turn = heapq.heappop(self._sleepers)
            if task.waiting and task.turn == turn and not task.over:
                self.now = max(self.now, at)
                self.wake(task)
                return True
        return False

    # What stands for modules.

    def time(self) -> Any:
        return SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now)

    def threading(self) -> Any:
        return SimpleNamespace(
            Lock=lambda: Lock(self), RLock=lambda: Lock(self), Condition=lambda: Condition(self), Thread=self._thread
        )

    def _thread(self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: object) -> Any:
        assert self.task is not None
        owner = self.task.owner
        return SimpleNamespace(start=lambda: self.spawn(lambda: target(*args), owner))

    def futex(self) -> Any:
        def fence(quick: bool) -> bool:
            for owner in self.owners:
                owner.flush()
            return True

        def wake(memory: Memory) -> None:
            assert self.task is not None
            self.task.owner.flush()
            for task in memory.waiters:
                self.wake(task)
            memory.waiters.clear()

        return SimpleNamespace(register=lambda: True, fence=fence, wake=wake, address_of=lambda memory, offset: memory)


class Lock:
    """Reentrant, which is what most users ask for; the others never take it twice."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._owner, self._depth = kernel, None, 0
        self._queue: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        me = self._kernel.task
        if me is None:
            return True
        if me.owner.buffer:
            me.owner.flush()
        while self._owner not in (None, me):
            if not blocking:
                return False
            self._queue.append(me)
            self._kernel.block()
        self._owner, self._depth = me, self._depth + 1  # type: ignore[assignment]
        return True

    def release(self) -> None:
        me = self._kernel.task
        if me is None or self._owner is not me:
            return
        if me.owner.buffer:
            me.owner.flush()
        self._depth -= 1
        if not self._depth:
            self._owner = None
            queue, self._queue = self._queue, []
            for task in queue:
                self._kernel.wake(task)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._sleeping: list[Task] = []

    def wait(self, timeout: float | None = None) -> None:
        me, depth = self._kernel.task, self._depth
        assert me is not None
        self._depth = 1
        self._sleeping.append(me)
        self.release()
        try:
            self._kernel.block(timeout)
        finally:
            if me in self._sleeping:
                self._sleeping.remove(me)
            if me.owner.alive:
                self.acquire()
                self._depth = depth

    def notify_all(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        for task in sleeping:
            self._kernel.wake(task)


@contextmanager
def standing_in(*places: tuple[Any, dict[str, Any]]) -> Iterator[None]:
    """For a while, names of modules mean something else."""
    kept = [(module, name, getattr(module, name)) for module, names in places for name in names]
    for module, names in places:
        for name, value in names.items():
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
