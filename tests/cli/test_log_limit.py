"""``tide up --log-limit`` with real daemons: a rank that prints without end, followed, suspended and resumed meanwhile."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidewright.cli.shell import run
from tidewright.wire.client import Client

pytestmark = pytest.mark.processes
PROGRAM = """
import os, sys, time
number = 0
while not (stop := os.path.exists(sys.argv[1])) or number < 80_000:
    for _ in range(1_000):
        print(f"counter {number:09d} " + "x" * 60)
        number += 1
    sys.stdout.flush()
    time.sleep(0.02)
print("end", number)
"""


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_log_stays_below_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, go = tmp_path / "state", tmp_path / "go"
    (tmp_path / "program.py").write_text(PROGRAM)

    def tide(*arguments: str) -> str:
        capsys.readouterr()
        assert run(["--state", str(state), *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    tide("up", "--slots", "1", "--log-limit", "1MiB")
    try:
        tide("run", "--name", "loud", "--", sys.executable, str(tmp_path / "program.py"), str(go))
        heard: list[bytes] = []
        follower = threading.Thread(target=lambda: heard.extend(Client(state).logs("loud", follow=True)))
        follower.start()
        log = state / "logs" / "1" / "rank0.1.log"
        _until(lambda: log.exists() and log.stat().st_size > 3 * 2**20)
        tide("suspend", "loud")
        _until(lambda: Client(state).job(1).state == "held")
        _until(lambda: log.stat().st_blocks * 512 <= 2**20)
        go.touch()
        tide("resume", "loud")
        tide("wait", "1")
        follower.join(30)
        shown = tide("logs", "1")
        assert log.stat().st_blocks * 512 <= 2 * 2**20 < log.stat().st_size
        assert "\0" not in shown and "were removed here" in shown and re.search(r"^end \d+$", shown, re.M)
        assert _counters(shown)[0] == 0 and len(_counters(shown)) < 30_000
        text = b"".join(heard).decode()
        assert "\0" not in text and shown.splitlines()[-1] in text, "a follower loses no later line"
        assert len(tide("logs", "--tail", "3", "1").splitlines()) == 3
    finally:
        go.touch()
        tide("down", "--jobs")


def _counters(text: str) -> list[int]:
    """The numbers in a log, which must rise: nothing is there twice, not even after the rank came back from an image."""
    found = [int(number) for number in re.findall(r"^counter (\d{9}) x{60}$", text, re.M)]
    assert found == sorted(set(found))
    return found
