"""Programs of the GPU bench that answer each line of their input with one line, and end with the bench however it ends.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

ANSWER_S = 120.0
"""Longest wait for an answer: the import of PyTorch and a context on the device take some ten seconds on a cold machine."""
END_S = 5.0
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """In a child, before its program: killed when its parent ends. A step that takes too long is killed by the runner, and
    cleans nothing up."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Lines:
    """``python`` with these arguments; its error messages go where ours do."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=end_with_parent,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")  # it has ended

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, text: str) -> None:
        """Have it do something; ``answer`` waits for the end. A program that is gone is noticed there."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{text}\n")
            self.process.stdin.flush()

    def answer(self, limit_s: float = ANSWER_S) -> str:
        """The next line. Raises EOFError when the program has ended, TimeoutError after ``limit_s``."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise TimeoutError(f"process {self.pid} has not answered within {limit_s:.0f} s") from None
        if not line:
            raise EOFError(f"process {self.pid} has ended; its messages are above")
        return line

    def told(self, text: str, limit_s: float = ANSWER_S) -> str:
        """Ask, and wait for the answer."""
        self.ask(text)
        return self.answer(limit_s)

    def end(self) -> None:
        """By the end of its input, so that it leaves the device in order; killed where it does not."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
