"""Ranks forked from a process that has imported PyTorch, which takes a rank longer than all that it does in a test.

The wrapper patches modules that are there when it begins just as those that come later (``hooks.install``). Ranks that import
PyTorch themselves: the long tests, and tests/unmodified/test_spread.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARENT = """
import gc, json, os, sys
import numpy, torch, torch.distributed, torch._dynamo

gc.freeze()


def become(environ, directory, log, argv):
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.closerange(3, 64)
    sys.argv, sys.path[:0] = argv, environ["PYTHONPATH"].split(":")
    if "TIDE_BOX" in environ:
        sys.modules.pop("sitecustomize", None)
        import sitecustomize


for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        pid, status = os.waitpid(asked, os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        become(**asked)
        break
else:
    os._exit(0)
with open(sys.argv[0]) as file:
    exec(compile(file.read(), sys.argv[0], "exec"))
"""


class Warm:
    """The process that ranks are forked from. Their environment is as they want it but for what is read as Python begins."""

    def __init__(self, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environ,
        )

    def ask(self, what: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class WarmRank:
    """As much of subprocess.Popen as a gang needs of a rank."""

    def __init__(self, parent: Warm, argv: list[str], environ: dict[str, str], directory: Path, log: Path) -> None:
        self._parent, self.returncode = parent, None
        self.pid = parent.ask({"environ": environ, "directory": str(directory), "log": str(log), "argv": argv})

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask(self.pid)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
