"""Feeding a machine: events one after the other, and its actions in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .actions import Do
from .events import Event
from .node import NodeMachine
from .scripts import Instant


class MachineLoop:
    """``perform`` carries an action out; what it feeds meanwhile is handled when the actions before it are done. An error of
    ``perform`` ends an agent at that very action, as a kill does."""

    def __init__(self, machine: NodeMachine, now: Callable[[], Instant], perform: Callable[[Do], None]) -> None:
        self.machine, self._now, self._perform = machine, now, perform
        self._events: deque[Event] = deque()
        self._feeding = False

    def feed(self, event: Event) -> None:
        """Returns when nothing is left to be done at once."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                for do in self.machine.handle(self._now(), self._events.popleft()):
                    self._perform(do)
        finally:
            self._feeding = False
