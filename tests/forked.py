"""Processes of a module's ``main()``, forked from one that has loaded it: each lives apart, and starts in a tenth of the time."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROOM = 4096
"""Bytes for the command line of what is forked."""


class Forked:
    """One of them, with what of subprocess.Popen is used of it."""

    def __init__(self, source: Forks, pid: int) -> None:
        self.pid, self._source = pid, source
        self._code: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self._pidfd = os.open(os.devnull, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self._pidfd)

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it; None while it runs."""
        if self._code is None:
            self._code = self._source.ask({"ended": self.pid})
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises TimeoutExpired after ``timeout`` seconds."""
        if self._code is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("forked", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Also to one that has just ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)


class Forks:
    """A process that has loaded a module and whatever else it will need, and forks on demand. It has no threads."""

    def __init__(self, module: str, more: Iterable[str] = ()) -> None:
        argv = [sys.executable, "-m", __name__, module, *more, "." * ROOM]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
        )
        self._turn = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def start(self, *arguments: str, cwd: str = "", log: str = "") -> Forked:
        """``main()`` under these arguments in this process's environment, in ``cwd`` or its directory, in a session of its own.
        Both its outputs are added to the file ``log``; without one only its stderr is seen."""
        return Forked(
            self, self.ask({"argv": arguments, "env": dict(os.environ), "cwd": cwd or os.getcwd(), "log": log})
        )

    def close(self) -> None:
        """What it has forked lives on."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@functools.cache
def forks(module: str, *more: str) -> Forks:
    """One for all tests of this process."""
    return Forks(module, more)


def _call_itself(words: Iterable[str]) -> None:
    """Put a command line over that of the process that was forked, for who looks for it in /proc."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), which counts from 1 and the pid
    text = "\0".join(words).encode()
    assert len(text) < end - start
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _become(main: Callable[[], int | None], request: dict[str, Any]) -> int:
    """In the forked process: what a new one would find."""
    os.setsid()
    _call_itself((sys.executable, "-m", sys.argv[1], *request["argv"]))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.devnull, "r+b") as nothing, open(request["log"] or os.devnull, "ab") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        if request["log"]:
            os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["forked", *request["argv"]]
    code: object = 1
    try:
        code = main()
    except SystemExit as done:
        code = done.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _serve(main: Callable[[], int | None]) -> None:
    ended: dict[int, int] = {}

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "argv" in request:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            answer: int | None = os.fork()
            if not answer:
                os._exit(_become(main, request))
            ended.pop(answer, None)  # of a process that had its number before
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        else:
            reap()
            answer = ended.get(request["ended"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    loaded = [importlib.import_module(name) for name in sys.argv[1:-1]]
    gc.freeze()
    _serve(loaded[0].main)
