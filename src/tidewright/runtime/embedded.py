"""A runtime of one's own, as a library: a daemon in a child process, on a private socket.

with Runtime() as runtime:
    rt, be = runtime.client("rt"), runtime.client("be")
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ..base.errors import WorldError
from .client import RuntimeClient

_GRACE_S = 20.0


class Runtime:
    """Started when it is made, with the options of ``python -m tidewright.runtime.daemon`` (``stop="gate"`` is ``--stop gate``).
    ``module``: another daemon, of a device of one's own. Raises WorldError with what the daemon says where it does not start."""

    def __init__(self, *, module: str = "tidewright.runtime.daemon", **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidewright-runtime-")
        self.socket = Path(self._folder.name) / "socket"
        self.log = Path(self._folder.name) / "log"
        given = [text for name, value in options.items() for text in _option(name, value)]
        command = [sys.executable, "-m", module, "--socket", str(self.socket), *given]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            text = self.log.read_text(errors="replace").strip()
            self.close()
            raise WorldError(f"the runtime did not start: {text}")

    def client(self, kind: Literal["rt", "be"] = "be", **options: Any) -> RuntimeClient:
        """A queue of this runtime (the options of RuntimeClient); the caller closes it."""
        return RuntimeClient(self.socket, kind, **options)

    def close(self) -> None:
        """End it; its clients get errors."""
        self.process.terminate()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [] if value is False or value is None else [flag, str(value)]
