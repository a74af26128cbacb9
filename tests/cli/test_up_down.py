"""``tide up`` and ``tide down`` with real daemons in a temporary state directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import command
from tests.command import Finished
from tidewright.app.start import controller_pid

pytestmark = pytest.mark.processes


class Real:
    """Types ``tide`` commands at real daemons."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, *arguments: str) -> Finished:
        return command.tide(self.state, *arguments, cwd=self.state.parent)


@pytest.fixture
def tide(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path / "state")
    yield real
    real("down", "--jobs")


def test_up_twice_run_down_and_up_again(tide: Real) -> None:
    first = command.executed(tide.state, "up", "--slots", "2", cwd=tide.state.parent)
    assert first.returncode == 0, first.stderr
    assert "2 CPU slots" in first.stdout and first.stdout.count("stand in") == 1
    again = tide("up")
    assert again.returncode == 0 and "already up" in again.stdout
    other = tide("up", "--policy", "fifo")
    assert other.returncode == 2 and "tide down" in other.stderr
    done = tide("run", "--follow", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE; exit 7")
    assert done.returncode == 7 and "0 of 1" in done.stdout
    assert tide("run", "--parsable", "--", "sleep", "300").stdout == "2\n"
    down = tide("down")
    assert down.returncode == 0 and "1 job runs on" in down.stdout
    assert controller_pid(tide.state) is None and tide("ps").returncode == 5
    assert "1 live job" in tide("up").stdout
    assert "1 job ended" in tide("down", "--jobs").stdout
    assert "nothing runs" in tide("down").stdout


def test_a_killed_controller_leaves_a_stale_pid_file_that_stops_nobody(tide: Real) -> None:
    assert tide("up", "--slots", "1").returncode == 0
    pid = controller_pid(tide.state)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while controller_pid(tide.state) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tide.state / "controller.pid").exists()
    assert tide("up").returncode == 0 and controller_pid(tide.state) not in (None, pid)


def test_a_deleted_socket_is_no_dead_end(tide: Real) -> None:
    assert tide("up", "--slots", "1").returncode == 0
    sock = tide.state / "controller.sock"
    for arguments in (("ps",), ("up",), ("run", "--parsable", "--", "sleep", "300")):
        sock.unlink()
        done = tide(*arguments)
        assert done.returncode == 0, done.stderr
    while not sock.exists():
        time.sleep(0.05)
    sock.unlink()
    (sock / "in the way").mkdir(parents=True)  # now it cannot be made again
    pid = controller_pid(tide.state)
    said = tide("ps")
    assert (
        said.returncode == 5 and f"(pid {pid}) runs, but does not answer" in said.stderr and "tide down" in said.stderr
    )
    down = tide("down")
    assert down.returncode == 0 and f"ended by pid {pid}" in down.stderr, down.stderr
    assert controller_pid(tide.state) is None and not (tide.state / "agent.pid").exists()
    shutil.rmtree(sock)
    again = tide("up")
    assert again.returncode == 0 and "1 live job" in again.stdout, again.stderr


def test_what_stops_a_start_is_reported(tide: Real) -> None:
    tide.state.mkdir(mode=0o700)
    (tide.state / "config.yaml").write_text("slots: 1\npolcy: sla\n")
    said = tide("up")
    assert said.returncode == 2 and "config.yaml:2" in said.stderr and "did you mean 'policy'" in said.stderr
    (tide.state / "config.yaml").write_text("slots: 1\npolicy: slaa\n")
    said = tide("up")
    assert said.returncode == 2 and "did you mean 'sla'" in said.stderr
    report = tide("doctor")
    assert report.returncode == 0 and "not running" in report.stdout


def test_hosts_are_nodes_that_a_later_start_finds_again(tide: Real) -> None:
    first = tide("up", "--hosts", "2", "--slots", "1")
    assert first.returncode == 0, first.stderr
    assert "node host-1: 1 CPU slot" in first.stdout and "node host-2: 1 CPU slot" in first.stdout
    assert tide("run", "--parsable", "--", "sleep", "300").stdout == "1\n"
    assert tide("nodes", "-o", "name").stdout == "host-1\nhost-2\n"
    assert tide("up", "--hosts", "2").returncode == 2, "what runs is not changed by a second start"
    assert tide("down").returncode == 0
    again = tide("up")
    assert "node host-1" in again.stdout and "1 live job" in again.stdout
    assert {path.name for path in (tide.state / "hosts").iterdir()} == {"host-1", "host-2"}
    ended = tide("down", "--jobs")
    assert "1 job ended" in ended.stdout
    wrong = tide("up", "--hosts", "2", "--host", "a")
    assert wrong.returncode == 2 and "exclude each other" in wrong.stderr


def test_options_outlive_kills_of_controller_and_agent(tide: Real) -> None:
    assert tide("up", "--slots", "3", "--policy", "las", "--image-quota", "1GiB").returncode == 0
    assert tide("run", "--parsable", "--", "sleep", "300").stdout == "1\n"
    kill(tide, "controller.pid")
    again = tide("up")
    assert "policy las" in again.stdout and "3 CPU slots" in again.stdout and "as in earlier starts" in again.stdout
    kill(tide, "agent.pid")
    assert tide("run", "--wait", "-g", "2", "--ranks", "1", "--", "true").returncode == 0
    assert tide("up", "--slots", "3").returncode == 0, "what runs already is asked for"
    tide("down")
    less = tide("up", "--slots", "2", "--image-quota", "0")
    assert "changed: slots 2 (was 3)" in less.stdout and "image quota 0" in less.stdout
    assert "2 CPU slots" in less.stdout, less.stdout + less.stderr


def kill(tide: Real, name: str) -> None:
    """kill -9, and wait until the process is gone."""
    pid = int((tide.state / name).read_text())
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_down_with_jobs_lets_no_waiting_job_start(tide: Real, tmp_path: Path) -> None:
    """Where a running one has just ended."""
    assert tide("up", "--slots", "1").returncode == 0
    assert tide("run", "--", "sleep", "300").returncode == 0
    assert tide("run", "--array", "0-59", "--", "sh", "-c", f"touch {tmp_path}/started").returncode == 0
    ended = tide("down", "--jobs")
    assert ended.returncode == 0 and "61 jobs ended" in ended.stdout, ended.stdout + ended.stderr
    assert not (tmp_path / "started").exists()


def test_two_starts_at_once_are_one_controller_and_both_say_that_it_is_up(tide: Real) -> None:
    argv = [*command.TIDE, "--state", str(tide.state), "up", "--slots", "1"]
    both = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tide.state.parent)
        for _ in range(2)
    ]
    said = [(*one.communicate(timeout=command.LIMIT_S), one.returncode) for one in both]
    assert [code for _, _, code in said] == [0, 0], said
    pid = controller_pid(tide.state)
    assert all(f"pid {pid}" in text and "1 CPU slot" in text for text, _, _ in said), said
    assert sorted("already" in text for text, _, _ in said) == [False, True]
