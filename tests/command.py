"""``tide`` as a user types it. Within this process, as another one takes longer to load than most commands to run; what outlives
its command (a controller, a service) is started by a real one."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tidewright.cli.shell import run

TIDE = (sys.executable, "-c", "from tidewright.cli import main; main()")
LIMIT_S = 120


@dataclass(frozen=True)
class Finished:
    """What a command has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def tide(state: Path, *arguments: str, cwd: Path | None = None) -> Finished:
    """Run one command on a state directory, in ``cwd``."""
    if arguments[0] == "up":
        argv = [*TIDE, "--state", str(state), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)
    return here("--state", str(state), *arguments, cwd=cwd)


def here(*arguments: str, cwd: Path | None = None) -> Finished:
    """Run one command, whatever it is about, within this process; it may be in a thread of its own."""
    printed, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        code = run(list(arguments))
    return Finished(code, *(stream.buffer.getvalue().decode() for stream in (printed, errors)))  # type: ignore[attr-defined]
