"""``tide compare`` with real processes: workers that die, a parent that is killed or interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.command import heed_ctrl_c
from tidewright.app.compare.pool import Observer, answer_all
from tidewright.app.compare.save import CELLS
from tidewright.app.compare.worker import RunDone, RunFailed, RunProgress, WorkerDied
from tidewright.app.simulate import Question

pytestmark = pytest.mark.processes

LOADS = "0.6,0.8,1.0,1.2,1.4,1.6"
JOBS = 500
WORDS = ["-t", f"synthetic:jobs={JOBS},max=1h", "-c", "10x8", "-p", "fifo", "--loads", LOADS, "-j", "1"]


class Heard(Observer):
    def __init__(self) -> None:
        self.failed: dict[int, str] = {}
        self.again: list[int] = []

    def done(self, at: int, found: RunDone | RunFailed) -> None:
        if isinstance(found, RunFailed):
            self.failed[at] = found.cause

    def retried(self, at: int, died: WorkerDied) -> None:
        self.again.append(at)


def mortal(pipe: Connection) -> None:
    """Fails by what the question's trace says: killed always, killed once, exits, or raises."""
    while True:
        try:
            question = msgspec.msgpack.decode(pipe.recv_bytes(), type=Question)
        except EOFError:
            return
        what, _, path = question.trace.partition(":")
        pipe.send_bytes(msgspec.msgpack.encode(RunProgress(0.5)))
        if what == "killed" or (what == "once" and not Path(path).exists()):
            if path:
                Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "exits":
            os._exit(3)
        pipe.send_bytes(msgspec.msgpack.encode(RunFailed("fine")))


def test_a_worker_that_dies_is_tried_once_more_and_costs_its_own_cell(tmp_path: Path) -> None:
    traces = ("killed", "fine", f"once:{tmp_path / 'mark'}", "exits")
    heard = Heard()
    answer_all([Question(trace=trace, cluster="", policy="") for trace in traces], 2, heard, mortal)
    assert sorted(heard.again) == [0, 2, 3]
    assert heard.failed[1] == heard.failed[2] == "fine"
    assert heard.failed[0].startswith("its process was killed by SIGKILL") and heard.failed[0].endswith(
        "second try too"
    )
    assert heard.failed[3] == "its process ended with exit code 3, at the second try too"


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = [str(Path(sys.executable).parent / "tide"), "compare", *WORDS, *more, "--save", str(folder), "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c)


def first_saved(folder: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(3000):
        file = folder / CELLS
        if file.exists() and file.read_bytes().count(b"\n"):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("nothing was saved in 30 s")


def test_a_comparison_goes_on_after_its_worker_and_then_its_parent_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    parent = start(folder)
    first_saved(folder, parent)
    workers = [child for child in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()
    time.sleep(0.3)
    parent.kill()
    parent.communicate()
    saved = (folder / CELLS).read_bytes().count(b"\n")
    assert 0 < saved < 6
    assert not psutil.wait_procs(workers, timeout=10)[1]
    found, errors = start(folder).communicate(timeout=60)
    data = json.loads(found)
    are = "is" if saved == 1 else "are"
    assert f"{saved} of 6 runs {are} taken from {folder}" in data["remarks"], errors
    assert [group["settings"]["load"] for group in data["groups"]] == LOADS.replace(".0", "").split(",")
    assert all(group["policies"][0]["jobs"]["completed"] == JOBS for group in data["groups"])


def interrupts_blocked(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return bool(mask >> (signal.SIGINT - 1) & 1)


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    parent = start(folder, "--seeds", "50")  # so many that it is not done before the signal
    first_saved(folder, parent)
    children = psutil.Process(parent.pid).children(recursive=True)
    (worker,) = (child for child in children if "spawn_main" in " ".join(child.cmdline()))
    assert interrupts_blocked(worker.pid), "Ctrl-C goes to the whole group"
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == 130
    assert (
        f"the runs that ended are in {folder}: give the same command to go on" in errors and "Traceback" not in errors
    )
    assert not psutil.wait_procs(children, timeout=10)[1]
