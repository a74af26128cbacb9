"""A state directory that is removed, replaced or renamed under its daemons: they end, and ``tide up`` begins anew beside none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.app.health.removed import check_removed, left_running
from tidewright.app.start import controller_pid
from tidewright.wire.holder import Process, alive, holder

from .test_up_down import Real

pytestmark = pytest.mark.processes
PATIENCE_S = 60.0


@pytest.fixture
def tide(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path / "state")
    yield real
    for left in left_running(real.state):
        os.kill(left.pid, signal.SIGKILL)
    real("down", "--jobs")
    for left in left_running(real.state):
        os.kill(left.pid, signal.SIGKILL)


def daemons(state: Path, agent: str = "") -> tuple[Process, Process]:
    """The controller and an agent."""
    found = holder(state / "controller.lock"), holder(state / agent / "agent.lock")
    assert found[0] is not None and found[1] is not None
    return found


def until_ended(*processes: Process) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := [one for one in processes if alive(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def until_in(text: str, path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.02)
    return path.read_text()


def start(tide: Real, *options: str) -> None:
    up = tide("up", *(options or ("--slots", "2")))
    assert up.returncode == 0, up.stderr


def run(tide: Real, *more: str) -> None:
    assert tide("run", *more, "--", "sleep", "600").returncode == 0


def test_daemons_of_a_removed_directory_end_and_up_begins_anew_beside_none(tide: Real) -> None:
    start(tide)
    run(tide)
    before, kept = daemons(tide.state), [tide.state.parent / name for name in ("controller.log", "agent.log")]
    until_running(tide)
    for path in kept:
        os.link(tide.state / path.name, path)
    shutil.rmtree(tide.state)
    up = tide("up", "--slots", "2")
    assert up.returncode == 0 and "already" not in up.stdout, up.stderr
    after = daemons(tide.state)
    assert str(after[0].pid) in up.stdout and not set(after) & set(before)
    assert "live job" not in up.stdout, "the journal of the new directory knows of none"
    until_ended(*before)
    for path in kept:
        # That the directory is gone, or that another one is there by now.
        assert "while it was in use: its daemons end" in until_in("rename it back", path)
    # The job's processes run on, and are named with what ends them.
    (left,) = left_running(tide.state)
    assert left.state is None and f"kill -9 {left.pid}" in up.stderr
    (finding,) = check_removed(tide.state)
    assert finding.level == "note"
    run(tide)  # the ranks of the new one are no finding
    until_running(tide)
    assert left_running(tide.state) == [left]
    os.kill(left.pid, signal.SIGKILL)
    assert tide("ps").returncode == 0 and controller_pid(tide.state) == after[0].pid


def until_running(tide: Real) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "running" not in (said := tide("ps").stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def test_nothing_is_written_into_a_directory_that_is_anothers(tide: Real) -> None:
    start(tide)
    before = daemons(tide.state)
    tide.state.rename(tide.state.with_name("renamed"))
    tide.state.mkdir(mode=0o700)
    (tide.state / "controller.pid").write_text("1\n")
    (tide.state / "agent.pid").write_text("1\n")
    until_ended(*before)
    assert {path.name for path in tide.state.iterdir()} == {"controller.pid", "agent.pid"}
    log = (tide.state.with_name("renamed") / "controller.log").read_text()
    assert f"another directory has been put in the place of {tide.state}" in log and "Traceback" not in log


def test_a_renamed_directory_that_is_put_back_goes_on(tide: Real) -> None:
    start(tide)
    run(tide)
    until_running(tide)
    before, away = daemons(tide.state), tide.state.with_name("away")
    tide.state.rename(away)
    until_ended(*before)
    away.rename(tide.state)
    up = tide("up")
    assert "1 live job" in up.stdout and "kill -9" not in up.stderr
    assert left_running(tide.state) == []


def test_an_orderly_end_leaves_the_directory_as_before(tide: Real) -> None:
    """SQLite removes the write-ahead log then: that is no loss."""
    start(tide)
    assert (tide.state / "journal.db-wal").exists()
    assert tide("down").returncode == 0
    names = {path.name for path in tide.state.iterdir()}
    assert "journal.reserve" in names
    assert not names & {"controller.pid", "controller.sock", "agent.pid", "agent.sock", "journal.db-wal"}
    assert "removed" not in (tide.state / "controller.log").read_text()


@pytest.mark.parametrize("name", ["controller.lock", "journal.db", "journal.db-wal", "journal.mark"])
def test_a_controller_whose_files_are_removed_ends(tide: Real, name: str) -> None:
    start(tide)
    controller, agent = daemons(tide.state)
    (tide.state / name).unlink()
    until_ended(controller)
    assert f"{tide.state / name} has been removed or renamed" in (tide.state / "controller.log").read_text()
    assert alive(agent), "its directory is as it was"
    down = tide("down")
    assert f"ended its agent (pid {agent.pid})" in down.stdout
    until_ended(agent)
    assert "nothing runs" in tide("down").stdout


def test_ranks_of_a_host_whose_directory_is_removed_are_killed_before_their_job_starts_again(tide: Real) -> None:
    start(tide, "--hosts", "2", "--slots", "1")
    tide("drain", host := sorted(path.name for path in (tide.state / "hosts").iterdir())[1])
    run(tide)
    until_running(tide)
    other = next(path.name for path in (tide.state / "hosts").iterdir() if path.name != host)
    controller, agent = daemons(tide.state, f"hosts/{other}")
    (record,) = (tide.state / "hosts" / other / "ranks").glob("1.*/0/shim")
    shim = json.loads(record.read_text())
    rank = Process(shim["pid"], shim["start"])
    assert alive(rank)
    shutil.rmtree(tide.state / "hosts" / other)
    until_ended(agent, rank)
    assert alive(controller)
    deadline = time.monotonic() + PATIENCE_S
    while not {"attempt", "2"} <= set((said := tide("show", "1").stdout).split()) or "all ranks run" not in said:
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
