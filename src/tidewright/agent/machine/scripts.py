"""Running scripts: generators that yield steps, and go on when these are done.

A script is written as if it waited, and never does: at each ``yield`` it is put aside, and its step goes out. Scripts of one
attempt that were queued run one after the other; those that were started run beside them.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from .actions import ActionFailed, ActionStep, CancelTimer, Do, Effect, Key, Log, StartTimer


class Gate:
    """Something inside the machine that scripts can wait for: ``value = yield gate``. Opened once, with a value for each."""

    def __init__(self) -> None:
        self.value: Any = None
        self.opened = False


Script = Generator[ActionStep | Gate, Any, None]


class Instant(NamedTuple):
    """Now, by three clocks: microseconds that only grow, wall-clock seconds, and CLOCK_BOOTTIME seconds."""

    mono_us: int
    wall_s: float
    boot_s: float


class _Running(NamedTuple):
    key: Key | None
    script: Script
    then: Callable[[], None] | None


class ScriptQueue:
    """Scripts that run one after the other."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Key, Script]] = deque()
        self.busy = False


class Scripts:
    """All scripts of a node, its timers, and the actions that go out."""

    def __init__(self) -> None:
        self.now = Instant(0, 0.0, 0.0)
        self._out: list[Do] = []
        self._number = 0
        self._steps: dict[int, _Running] = {}
        self._gates: dict[Gate, list[_Running]] = {}
        self._timers: dict[int, Callable[[], None]] = {}

    # -- what goes out ----------------------------------------------------------------------------------------------

    def emit(self, key: Key | None, effect: Effect) -> None:
        self._out.append(Do(0, key, effect))

    def take(self) -> list[Do]:
        """What is to be done now."""
        out, self._out = self._out, []
        return out

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Have ``call`` called then; the timer's number, for ``cancel``."""
        self._number += 1
        self._timers[self._number] = call
        self.emit(None, StartTimer(self._number, max(0.0, seconds)))
        return self._number

    def cancel(self, timer: int) -> None:
        """Harmless for one that has fired."""
        if self._timers.pop(timer, None) is not None:
            self.emit(None, CancelTimer(timer))

    # -- scripts ----------------------------------------------------------------------------------------------------

    def start(self, key: Key | None, script: Script) -> None:
        """Run beside all others."""
        self._advance(_Running(key, script, None), None, None)

    def queue(self, line: ScriptQueue, key: Key, script: Script) -> None:
        """Run once those queued before have come to their end."""
        line.waiting.append((key, script))
        if not line.busy:
            self._next(line)

    def _next(self, line: ScriptQueue) -> None:
        line.busy = bool(line.waiting)
        if line.busy:
            key, script = line.waiting.popleft()
            self._advance(_Running(key, script, lambda: self._next(line)), None, None)

    def open(self, gate: Gate, value: Any = None) -> None:
        """Let those go on who wait at the gate, or will."""
        if not gate.opened:
            gate.opened, gate.value = True, value
            for running in self._gates.pop(gate, []):
                self._advance(running, value, None)

    # -- what comes in ----------------------------------------------------------------------------------------------

    def done(self, number: int, value: Any) -> None:
        running = self._steps.pop(number, None)
        if running is not None:
            self._advance(running, value, None)

    def failed(self, number: int, error: ActionFailed) -> None:
        running = self._steps.pop(number, None)
        if running is not None:
            self._advance(running, None, error)

    def fired(self, timer: int) -> None:
        call = self._timers.pop(timer, None)
        if call is not None:
            call()

    def _advance(self, running: _Running, value: Any, error: ActionFailed | None) -> None:
        """To its next step, or its end. An error that a script does not expect ends it, as a bug."""
        while True:
            try:
                step = running.script.send(value) if error is None else running.script.throw(error)
            except StopIteration:
                break
            except Exception:
                self.emit(running.key, Log("bug", traceback.format_exc()))
                break
            if isinstance(step, Gate) and step.opened:
                value, error = step.value, None
                continue
            if isinstance(step, Gate):
                self._gates.setdefault(step, []).append(running)
            else:
                self._number += 1
                self._steps[self._number] = running
                self._out.append(Do(self._number, running.key, step))
            return
        if running.then is not None:
            running.then()
