"""``tide`` as a user types it. Within this process, as another one takes longer to load than most commands to run; a controller,
which outlives its command, is forked from a process that has loaded it."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tests.forked import Forked, forks
from tidewright.app import start
from tidewright.cli.shell import run

TIDE = (sys.executable, "-c", "from tidewright.cli import main; main()")
DAEMON = "tidewright.app.daemon"
LIMIT_S = 120


def heed_ctrl_c() -> None:
    """Before a program is started: what a shell script starts in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Finished:
    """What a command has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def tide(state: Path, *arguments: str, cwd: Path | None = None) -> Finished:
    """Run one command on a state directory, in ``cwd``."""
    if arguments[0] != "up":
        return here("--state", str(state), *arguments, cwd=cwd)
    with controllers_forked():
        return here("--state", str(state), *arguments, cwd=cwd)


def controllers_forked() -> contextlib.AbstractContextManager[object]:
    """In here commands that start a controller have it forked."""
    return mock.patch.object(start, "subprocess", SimpleNamespace(Popen=_controller, DEVNULL=subprocess.DEVNULL))


def _controller(argv: list[str], *, cwd: str, stdout: int, **_: object) -> Forked:
    """In place of the process that ``tide up`` would start."""
    assert argv[:3] == [sys.executable, "-m", DAEMON]
    return forks(DAEMON).start(*argv[3:], cwd=cwd, log=str(Path(f"/proc/self/fd/{stdout}").readlink()))


def executed(state: Path, *arguments: str, cwd: Path | None = None) -> Finished:
    """The same by the program itself, with all the processes that it starts."""
    argv = [*TIDE, "--state", str(state), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


def here(*arguments: str, cwd: Path | None = None) -> Finished:
    """Run one command, whatever it is about, within this process; it may be in a thread of its own."""
    printed, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        code = run(list(arguments))
    return Finished(code, *(stream.buffer.getvalue().decode() for stream in (printed, errors)))
