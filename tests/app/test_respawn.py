"""A real parent and its real children, killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidewright.app.respawn import MOST

pytestmark = pytest.mark.processes

SERVICE = """
import os, signal, sys, time
from tidewright.app.respawn import respawning

parent = os.getpid()
respawning(lambda line: print(line, file=sys.stderr, flush=True), served_s=float(sys.argv[2]))
with open(sys.argv[1], "a") as file:
    print(os.getpid(), os.getppid() == parent, file=file, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
exec(sys.argv[3])
"""


ORPHAN = """
if not os.fork():
    if not (orphan := os.fork()):
        time.sleep(0.3)
    else:
        open(sys.argv[1] + ".orphan", "w").write(str(orphan))
    os._exit(0)
os.wait()
time.sleep(60)
"""


class Service:
    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.process, self.place = process, place

    def children(self) -> list[int]:
        """Process ids of all that were started, in turn."""
        lines = self.place.read_text().splitlines() if self.place.exists() else []
        assert all(line.endswith(" True") for line in lines)
        return [int(line.split()[0]) for line in lines]

    def child(self, number: int) -> int:
        until(lambda: len(self.children()) >= number)
        return self.children()[number - 1]

    def ended(self) -> tuple[int, str]:
        """(exit code, what it said)."""
        said = self.process.communicate(timeout=20)[1]
        return self.process.returncode, said


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


@contextmanager
def service(place: Path, work: str = "time.sleep(60)", served_s: float = 0) -> Iterator[Service]:
    words = [sys.executable, "-c", SERVICE, str(place), str(served_s), work]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Service(process, place)
        finally:
            process.kill()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_killed_is_started_again_and_ends_by_itself_on_a_signal(tmp_path: Path) -> None:
    with service(tmp_path / "pids") as found:
        for number in (1, 2):
            os.kill(found.child(number), signal.SIGKILL)
        last = found.child(3)
        until(lambda: "SigCgt" in (status := Path(f"/proc/{last}/status").read_text()) and _catches_term(status))
        found.process.terminate()
        code, said = found.ended()
    assert code == 7 and said.count("killed by SIGKILL; starts again") == 2
    assert len(found.children()) == 3


def _catches_term(status: str) -> bool:
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)


def test_a_crash_in_service_is_no_end_and_a_failed_start_is(tmp_path: Path) -> None:
    with service(tmp_path / "served", "sys.exit(3)") as found:
        code, said = found.ended()
    assert (code, len(found.children()), said.count("exit code 3; starts again")) == (3, MOST + 1, MOST)
    with service(tmp_path / "start", "sys.exit(3)", served_s=10) as found:
        assert found.ended() == (3, "") and len(found.children()) == 1
    with service(tmp_path / "done", "sys.exit(0)") as found:
        assert found.ended() == (0, "") and len(found.children()) == 1


def test_what_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    with service(tmp_path / "pids", "os.kill(os.getpid(), signal.SIGSEGV)", served_s=10) as found:
        code, said = found.ended()
    assert (code, len(found.children()), said.count("SIGSEGV")) == (128 + signal.SIGSEGV, MOST + 1, MOST)


def test_no_child_outlives_its_parent(tmp_path: Path) -> None:
    with service(tmp_path / "pids") as found:
        child = found.child(1)
        found.process.kill()
        until(lambda: not running(child))


def test_children_of_others_are_reaped(tmp_path: Path) -> None:
    """The first process of a container is the parent of all whose own ended."""
    adopt = "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER: as pid 1 is
    words = [sys.executable, "-c", adopt + SERVICE, str(tmp_path / "pids"), "0", ORPHAN]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        found = Service(process, tmp_path / "pids")
        try:
            orphan = tmp_path / "pids.orphan"
            until(lambda: orphan.exists() and orphan.read_text() != "")
            pid = int(orphan.read_text())
            until(lambda: not Path(f"/proc/{pid}").exists())
            assert running(found.child(1)) and process.poll() is None
        finally:
            process.kill()


def test_real_time_signals_and_a_reader_that_is_gone_end_nothing(tmp_path: Path) -> None:
    with service(tmp_path / "pids") as found:
        assert found.process.stderr is not None
        first = found.child(1)
        found.process.stderr.close()
        os.kill(first, signal.SIGRTMIN + 6)
        os.kill(found.child(2), signal.SIGKILL)
        assert running(found.child(3))


def test_ignored_ends_of_children_are_heard_of(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    words = [sys.executable, "-c", ignore + SERVICE, str(tmp_path / "pids"), "0", "time.sleep(60)"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, text=True) as process:
        found = Service(process, tmp_path / "pids")
        try:
            os.kill(found.child(1), signal.SIGKILL)
            assert running(found.child(2))
        finally:
            process.kill()
