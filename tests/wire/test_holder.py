"""Whom a lock file names: its holder and no process that merely has the pid."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidewright.wire.holder import Process, alive, end, held, holder, sign

_HOLD = """
import fcntl, sys, time
from tidewright.wire.holder import sign
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
sign(file.fileno())
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.processes
def test_a_holder_is_named_and_can_be_ended(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("1 1\n")
    assert not held(lock) and holder(lock) is None and not held(tmp_path / "none")
    child = subprocess.Popen([sys.executable, "-c", _HOLD, str(lock)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    found = holder(lock)
    assert found is not None and found.pid == child.pid and alive(found)
    assert not end(Process(found.pid, found.start + 1), signal.SIGKILL)  # the same pid, another process
    assert child.poll() is None
    assert end(found, signal.SIGKILL) and child.wait(10) == -9
    assert not end(found) and not alive(found) and holder(lock) is None
    child.stdout.close()


@pytest.mark.processes
def test_a_stopped_holder_can_be_ended(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    child = subprocess.Popen([sys.executable, "-c", _HOLD, str(lock)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    child.send_signal(signal.SIGSTOP)
    found = holder(lock)
    assert found is not None and end(found) and child.wait(10) == -signal.SIGTERM
    child.stdout.close()


def test_a_lock_that_nobody_signed_names_nobody(tmp_path: Path) -> None:
    with (tmp_path / "l").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for text in ("", "12", "a b", f"{os.getpid()} 1", "999999999 5"):
            (tmp_path / "l").write_text(text)
            assert held(tmp_path / "l") and holder(tmp_path / "l") is None
        sign(file.fileno())
        found = holder(tmp_path / "l")
        assert found is not None and found.pid == os.getpid()
