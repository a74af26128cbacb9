"""The world going wrong around a dump or a restore: no room, hung ranks, ranks that end, rolled-back files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint.programs import FILES, LOOP
from tests.checkpoint.site import Site, chain
from tests.small_disk import small_disk_at
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.processes import stat
from tidewright.checkpoint.protocol import GangImage, RestorePlacement
from tidewright.testing.checkpoint import check_goes_on, check_grows

pytestmark = pytest.mark.processes
PAUSES_S = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16)
"""From the begin of a dump to the end of the agent that makes it."""


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 3 MiB: less than one rank's memory."""
    with small_disk_at(tmp_path / "small", 3) as place:
        yield place


def test_a_full_disk_costs_the_image_only(site: Site, small_disk: Path):
    gang = site.start(2)
    driver = site.driver("a")
    for leave_running in (False, True):
        with pytest.raises(WorldError, match="rank"):
            driver.dump(gang.ranks, small_disk, leave_running=leave_running)
        assert list(small_disk.iterdir()) == [], "what was written takes the room still"
        for rank in range(2):
            check_grows(site, "a", rank, chain)


def test_a_disk_that_fills_up_while_files_are_copied(site: Site, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    gang = site.start()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidewright.checkpoint.files.capture.Capture._copy", full)
    with pytest.raises(WorldError, match="No space left"):
        site.driver("a").dump(gang.ranks, site.root, leave_running=False)
    check_grows(site, "a", 0, chain)


def test_one_rank_that_cannot_be_saved_keeps_all_running(site: Site):
    gang = site.start(2)
    os.kill(gang.ranks[1].pid, signal.SIGKILL)
    assert wait_until(lambda: stat(gang.ranks[1].pid) is None, 10)
    with pytest.raises(WorldError, match="rank 1 has ended"):
        site.driver("a").dump(gang.ranks, site.root / "images", leave_running=False)
    check_grows(site, "a", 0, chain)


HUNG = """
import os, sys
if os.fork() == 0:
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, "fifo", os.O_RDONLY, 0)])
    os._exit(0)
while True:
    print("up", flush=True)
    __import__("time").sleep(0.01)
"""
"""A child waits, uninterruptibly, for its own child to start, which waits for a writer of a pipe."""


@pytest.mark.full
def test_a_rank_in_uninterruptible_sleep_runs_on(site: Site, tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    gang = site.start(command=[sys.executable, "-I", "-c", HUNG])
    handle = gang.ranks[0]
    assert wait_until(lambda: "D" in _states(handle.pid), 10), _states(handle.pid)
    with pytest.raises(WorldError, match="state D"):
        site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=False)
    check_goes_on(lambda: len(site.output("a")), "after the dump was given up")
    (tmp_path / "fifo").write_text("")  # opens, and so ends the wait
    assert wait_until(lambda: "D" not in _states(handle.pid), 10)


def _states(pid: int) -> str:
    """States of a process's children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(found.state for child in children if (found := stat(int(child))) is not None)


def test_files_go_back_with_the_rank(site: Site, tmp_path: Path):
    """Killed after its image was taken, it comes back on the same node to files that have grown and changed since."""
    (tmp_path / "read-only").write_text("first\nsecond\n")
    gang = site.start(command=[sys.executable, "-I", "-c", FILES + LOOP])
    driver = site.driver("a")
    check_goes_on(lambda: len(site.output("a")), "at first")
    (tmp_path / "images").mkdir()
    driver.dump(gang.ranks, tmp_path / "images", leave_running=True)
    taken = int(site.output("a")[-1])
    assert wait_until(lambda: int(site.output("a")[-1]) > taken + 20, 10)
    driver.finish(gang.ranks)
    longer = (tmp_path / "own.csv").stat().st_size
    image = GangImage(driver="criu", job=1, attempt=1, location=str(tmp_path / "images"), ranks=gang.ranks)
    driver.restore(image, RestorePlacement(node="a"))
    check_goes_on(lambda: (tmp_path / "own.csv").stat().st_size - longer, "past where it had been")
    lines = site.output("a")
    assert lines == [str(number) for number in range(len(lines))], "steps are lost or logged twice"


def test_another_file_in_its_place_forbids_the_restore(site: Site, tmp_path: Path):
    (tmp_path / "read-only").write_text("first\nsecond\n")
    gang = site.start(command=[sys.executable, "-I", "-c", FILES + LOOP])
    check_goes_on(lambda: len(site.output("a")), "at first")
    image = site.driver("a").save(gang)
    (tmp_path / "own.csv").rename(tmp_path / "mine.csv")
    (tmp_path / "own.csv").write_text("another program's\n")
    (tmp_path / "read-only").unlink()
    with pytest.raises(WorldError) as caught:
        site.driver("a").restore(image, RestorePlacement(node="a"))
    assert "own.csv has other content" in str(caught.value) and "read-only is missing" in str(caught.value)
    assert (tmp_path / "own.csv").read_text() == "another program's\n"
    (tmp_path / "own.csv").unlink()
    (tmp_path / "read-only").write_text("first\nsecond\n")
    site.driver("a").restore(image, RestorePlacement(node="a"))
    before = len(site.output("a"))
    check_goes_on(lambda: len(site.output("a")) - before, "once the differences were gone")


COUNTING = """
import time
number = 0
while True:
    print(number, flush=True)
    number += 1
    time.sleep(0.002)
"""
OTHER = COUNTING.replace("print(number,", "print('other code',")


def _replace(script: Path) -> None:
    """As editors save a file."""
    draft = script.with_name("draft")
    draft.write_text(OTHER)
    draft.rename(script)


CHANGES = {"rewritten": lambda script: script.write_text(OTHER), "replaced": _replace, "gone": Path.unlink}


@pytest.mark.parametrize("what", ["rewritten", pytest.param("replaced", marks=pytest.mark.full), "gone"])
def test_the_script_itself_may_change_or_go(site: Site, tmp_path: Path, what: str):
    """The program was read when it began: what is restored goes on with the code it had."""
    script = tmp_path / "script.py"
    script.write_text(COUNTING)
    gang = site.start(command=[sys.executable, "-I", str(script)])
    check_goes_on(lambda: len(site.output("a")), "at first")
    image = site.driver("a").save(gang)
    CHANGES[what](script)
    site.driver("b").restore(image, RestorePlacement(node="b"))
    before = len(site.output("b"))
    check_goes_on(lambda: len(site.output("b")) - before, f"with its script {what}")
    logged = [line for line in site.output("b") if line.strip("\0")]
    assert logged == [str(number) for number in range(int(logged[0]), int(logged[0]) + len(logged))]
    assert what == "gone" or script.read_text() == OTHER, "the restore has put the old script back"


DUMPER = """
import sys, msgspec
from pathlib import Path
from tidewright.checkpoint.criu.driver import Criu, CriuDriver
from tidewright.checkpoint.protocol import RankHandle
handle, criu = (msgspec.json.decode(text, type=kind) for text, kind in zip(sys.argv[1:3], (RankHandle, Criu)))
print("now", flush=True)
CriuDriver("a", criu).dump([handle], Path(sys.argv[3]), leave_running=False)
"""


@pytest.mark.parametrize("pauses", [PAUSES_S[::4], pytest.param(PAUSES_S, marks=pytest.mark.full)], ids=["some", "all"])
def test_the_successor_of_a_killed_agent_may_dump_at_once(site: Site, tmp_path: Path, pauses: tuple[float, ...]):
    """CRIU of the first must be gone, with all its helpers, before that of the second touches the rank."""
    gang = site.start()
    known = [msgspec.json.encode(each).decode() for each in (gang.ranks[0], site.criu)]
    for pause in pauses:
        arguments = [sys.executable, "-c", DUMPER, *known, str(tmp_path / "images")]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None and agent.stdout.readline() == b"now\n"
            time.sleep(pause)
            agent.kill()
        site.driver("b").dump(gang.ranks, tmp_path / "images", leave_running=True)
        check_grows(site, "a", 0, chain)
