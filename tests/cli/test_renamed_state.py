"""State directories of the same path, at different times: what runs from one of them is not touched by the daemons of another."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tidewright.agent.directory_id import NAME, DirectoryId, draw_id
from tidewright.agent.layout import AgentLayout
from tidewright.app.health import removed
from tidewright.app.health.removed import check_removed
from tidewright.base.paths import make_below
from tidewright.checkpoint.store import ImageStore
from tidewright.launch.child import open_log
from tidewright.launch.environment import MARK
from tidewright.wire.holder import Process, alive

from .test_removed_state import PATIENCE_S, daemons, run, start, until_ended, until_running
from .test_up_down import Real

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[[str], Real]]:
    """``tide`` on a state directory of this name; all of them are taken down."""
    made: dict[str, Real] = {}
    yield lambda name: made.setdefault(name, Real(tmp_path / name))
    for real in made.values():
        real("down", "--jobs")
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # what was left without a controller
        with contextlib.suppress(OSError):
            if os.fsencode(tmp_path) + b"/" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def process(state: Path, name: str = "shim", job: str = "1") -> Process:
    """Of the only rank of a job."""
    (record,) = (state / "ranks").glob(f"{job}.*/0/{name}")
    found = json.loads(record.read_text())
    return Process(found["pid"], found["start"])


def until_state(tide: Real, job: str, state: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state not in (said := tide("show", job).stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def rename_while_running(here: Real, away: Real) -> None:
    """A job runs in the directory of ``here``; that becomes the one of ``away``, and its daemons have ended."""
    start(here)
    run(here)
    until_running(here)
    before = daemons(here.state)
    here.state.rename(away.state)
    until_ended(*before)


def test_a_job_of_a_renamed_directory_is_none_of_the_next_directory_of_that_path(pool: Callable[[str], Real]) -> None:
    here, away = pool("state"), pool("away")
    rename_while_running(here, away)
    start(away)
    shim, rank = process(away.state), process(away.state, "started")
    start(here)
    assert here("run", "--follow", "--", "true").returncode == 0
    assert here("down").returncode == 0
    assert alive(shim) and alive(rank)
    until_state(away, "1", "running")
    assert away("cancel", "1").returncode == 0, "it is still found, by the name it was given where it began"
    until_ended(shim, rank)


def test_a_rank_of_a_removed_directory_shares_nothing_with_the_next_job_one(pool: Callable[[str], Real]) -> None:
    here = pool("state")
    start(here)
    run(here)
    until_running(here)
    before, shim, rank = daemons(here.state), process(here.state), process(here.state, "started")
    shutil.rmtree(here.state)
    until_ended(*before)
    start(here)
    run(here, "--level", "freeze")
    until_state(here, "1", "running")
    assert here("suspend", "1").returncode == 0
    until_state(here, "1", "suspended")
    assert here("cancel", "1").returncode == 0
    until_state(here, "1", "cancelled")
    assert alive(shim) and alive(rank)


def test_jobs_that_ran_under_names_of_an_earlier_version_are_found_and_ended(pool: Callable[[str], Real]) -> None:
    here = pool("state")
    here.state.mkdir(mode=0o700)
    old = hashlib.sha256(str(here.state).encode()).hexdigest()[:10]
    found = here.state.stat()
    (here.state / NAME).write_bytes(msgspec.json.encode(DirectoryId(old, (), found.st_dev, found.st_ino)))
    start(here)
    run(here)
    until_running(here)
    shim, rank = process(here.state), process(here.state, "started")
    assert f"{MARK}=tidewright-{old}-1.".encode() in Path(f"/proc/{rank.pid}/environ").read_bytes()
    assert here("down").returncode == 0
    (here.state / NAME).unlink()
    start(here)
    layout = AgentLayout(here.state)
    assert layout.tag != old and layout.tags == (layout.tag, old)
    until_state(here, "1", "running")
    assert alive(shim)
    assert here("cancel", "1").returncode == 0
    until_ended(shim, rank)


def test_a_directory_has_an_id_of_its_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    drawn = draw_id(one)
    assert draw_id(one) == drawn and drawn.earlier == ()
    place = one / "ranks" / "1.1" / "0"
    place.mkdir(parents=True)
    (place / "spec.json").write_text(json.dumps({"env": {MARK: f"tidewright-{drawn.tag}-1.1.0"}}))
    one.rename(other)
    assert draw_id(other) == drawn
    shutil.copytree(other, one)
    copied = draw_id(one)
    assert copied.tag != drawn.tag and copied.earlier == (drawn.tag,), "of what runs from there it has the records"
    (one / NAME).write_text("damaged")
    assert draw_id(one).tag != copied.tag


def test_no_shim_that_an_agent_has_or_can_have_is_to_be_killed(
    pool: Callable[[str], Real], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = pool("state"), pool("away")
    rename_while_running(here, away)
    up = here("up", "--slots", "1")
    assert "kill -9" not in up.stderr and f"tide --state {away.state} up takes it over" in up.stderr
    start(away)
    assert check_removed(here.state) == check_removed(away.state) == [], "another agent has it"
    assert away("down").returncode == 0
    (finding,) = check_removed(here.state)
    assert "kill" not in finding.next
    readlink = os.readlink
    monkeypatch.setattr(
        removed.os, "readlink", lambda path: "mnt:[1]" if path == "/proc/self/ns/mnt" else readlink(path)
    )
    assert check_removed(here.state) == [], "where its files lie cannot be seen from another mount namespace"


def test_ranks_that_begin_and_end_are_no_finding(pool: Callable[[str], Real], monkeypatch: pytest.MonkeyPatch) -> None:
    here = pool("state")
    start(here, "--slots", "3")
    run(here)
    until_running(here)
    shim = process(here.state)
    looks: list[set[removed.Left]] = [{removed.Left(shim.pid, shim.start, None)}, set()]
    with monkeypatch.context() as patched:
        patched.setattr(removed, "_look", lambda state: looks.pop(0))
        assert check_removed(here.state) == [] and looks == []
    assert here("run", "--array", "0-29%3", "--", "sleep", "0.05").returncode == 0
    found: set[removed.Left] = set()
    while "queued" in here("ps").stdout:
        found |= set(removed.left_running(here.state))
    assert found == set()


def test_a_link_that_is_led_elsewhere_ends_controller_and_agent_and_names_what_runs_on(
    pool: Callable[[str], Real], tmp_path: Path
) -> None:
    first, here = pool("first"), pool("link")
    for name in ("first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
    here.state.symlink_to("first")
    start(here)
    run(here)
    until_running(here)
    before, rank = daemons(here.state), process(here.state, "started")
    here.state.unlink()
    here.state.symlink_to("second")
    until_ended(*before)
    up = here("up", "--slots", "1")
    assert up.returncode == 0 and f"1 rank of {first.state}, which was at {here.state} before" in up.stderr
    start(first)
    until_state(first, "1", "running")
    assert alive(rank) and first("cancel", "1").returncode == 0
    until_ended(rank)


def test_nothing_is_made_again_in_place_of_a_directory_that_was_renamed(tmp_path: Path) -> None:
    """It could not be renamed back: mv(1) would put it into what is there by then."""
    state = tmp_path / "state"
    argv = [sys.executable, "-m", "tidewright.agent", "--state", state / "hosts" / "one", "--name", "one"]
    done = subprocess.run([*argv, "--controller", state], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and "has been removed or renamed" in done.stderr
    with pytest.raises(OSError, match="No such file"):
        ImageStore(state / "images" / "store")
    with pytest.raises(OSError, match="No such file"):
        make_below(state, state / "images" / "work")
    with pytest.raises(OSError, match="No such file"):
        open_log(str(state / "logs" / "1" / "rank0.1.log"), 0o077, False, str(state))
    assert not state.exists()
    state.mkdir()
    make_below(state, state / "images" / "work")
    os.close(open_log(str(state / "logs" / "1" / "rank0.1.log"), 0o077, False, str(state)))
    assert (state / "images" / "work").is_dir()


def test_a_removal_that_takes_a_while_kills_no_ranks(pool: Callable[[str], Real]) -> None:
    """The directory of a host goes before that of the controller."""
    here = pool("state")
    start(here, "--host", "one=1")
    run(here)
    until_running(here)
    host = here.state / "hosts" / "one"
    before, shim, rank = daemons(here.state, "hosts/one"), process(host), process(host, "started")
    kept = here.state.with_name("agent.log")
    os.link(host / "agent.log", kept)
    shutil.rmtree(host)
    time.sleep(2)
    shutil.rmtree(here.state)
    until_ended(*before)
    assert alive(shim) and alive(rank)
    log = kept.read_text()
    assert "these run on" in log and "processes of jobs run on" in log and "killed" not in log
