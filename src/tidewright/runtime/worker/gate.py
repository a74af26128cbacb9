"""The gate between operators: where best-effort work looks whether it is to stop, and waits until it may go on.

The portable way to stop (ladder level C2): exact, since what has been computed stays in the process, but as slow as the operator
that runs when the stop is asked for.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

from ..transport.messages import StoppedAtGate, send

FLAG_BYTES = 4096


class OperatorGate:
    """``flag``: a page shared with the runtime. Its first word is the number of the stop in force, 0 for none. ``resumed``: an
    eventfd that the runtime adds to when it has cleared the word."""

    def __init__(self, flag: mmap.mmap, resumed: int, connection: socket.socket) -> None:
        self._flag, self._resumed, self._connection = memoryview(flag).cast("I"), resumed, connection
        self._acknowledged = 0
        self.task = 0

    def check(self, gate: int) -> None:
        """Called before each operator, and before a task begins. Blocks while a stop is in force."""
        while number := self._flag[0]:
            if number != self._acknowledged:
                self._acknowledged = number
                send(self._connection, StoppedAtGate(self.task, gate, number))
            os.eventfd_read(self._resumed)  # may be left over from a stop that found nothing to stop: then once more


def through_gate(module: Any, gate: OperatorGate) -> tuple[Callable[..., Any], int]:
    """``module`` run operator by operator, and how many there are. Raises what torch.fx raises for what it cannot trace."""
    import torch.fx

    traced = torch.fx.symbolic_trace(module)

    class GatedInterpreter(torch.fx.Interpreter):  # type: ignore[misc]
        number = 0

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.number = 0
            return super().run(*args, **kwargs)

        def run_node(self, n: Any) -> Any:
            gate.check(self.number)
            self.number += 1
            return super().run_node(n)

    interpreter = GatedInterpreter(traced)
    return interpreter.run, len(traced.graph.nodes)


def through_yields(function: Callable[..., Any], gate: OperatorGate) -> Callable[..., Any]:
    """A generator function run to its end; each ``yield`` is a point where it may stop. What it returns are its outputs."""

    def run(*args: Any) -> Any:
        steps = function(*args)
        number = 0
        while True:
            gate.check(number)
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            number += 1

    return run
