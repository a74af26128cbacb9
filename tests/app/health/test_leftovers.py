"""``tide doctor`` on what jobs that have ended left behind: found by the journal, removed when nothing uses it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import small_disk_at
from tidewright.agent.layout import AgentLayout
from tidewright.app import health
from tidewright.app.health import Finding
from tidewright.app.health.leftovers import check_leftovers, ended
from tidewright.app.health.processes import check_controller
from tidewright.base.control_groups import hierarchies
from tidewright.checkpoint.store import ImageName, ImageStore
from tidewright.launch.environment import MARK
from tidewright.live.controller.disk_space import free_bytes

from .planting import journal_of_ended, locked, mended, quiet


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Jobs 1 and 2 have ended, 9 lives; ranks and images of all are here."""
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    journal_of_ended(path, 1, 2)
    for folder in (
        "ranks/1.1/0",
        "ranks/2.3/0",
        "ranks/9.1/0",
        "images/work/1.2",
        "images/work/9.1",
        "images/work/.draft",
    ):
        (path / folder).mkdir(parents=True)
    return path


def _found(state: Path, running: bool = False) -> dict[str, Finding]:
    return {one.what: one for one in check_leftovers(state, running, quiet)}


def test_jobs_have_ended_by_the_journal_alone(state: Path, tmp_path: Path) -> None:
    assert ended(state, range(2000)) == {1, 2} and ended(tmp_path, [1]) == set()
    (state / "journal.db").write_bytes(b"damaged" * 1000)
    (found,) = check_leftovers(state, False, quiet)
    assert found.level == "note" and "not looked at" in found.text and found.mend is None


def test_jobs_that_go_on_without_a_controller_are_named(state: Path) -> None:
    def said() -> str:
        return check_controller(state, None)[0][0].text

    assert said() == "not running; job 9 goes on without it, or waits for it"
    (state / "ranks" / "9.1" / "0").rmdir()
    (state / "ranks" / "9.1").rmdir()
    assert said() == "not running; no job has been left here", "jobs 1 and 2 have ended"
    (state / "ranks" / "9.1").mkdir()
    (state / "journal.db").write_bytes(b"damaged" * 1000)
    assert "jobs that run here go on without it" in said()


def test_rank_directories_of_ended_jobs_are_removed(state: Path) -> None:
    found = _found(state)["rank directories"]
    assert found.level == "note" and "2 of jobs 1, 2, which ended" in found.text
    assert str(state / "ranks" / "1.1") in mended(found)
    assert [path.name for path in (state / "ranks").iterdir()] == ["9.1"]
    assert "rank directories" not in _found(state)


def test_what_ended_jobs_left_can_be_removed_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "small", 4) as small:
        journal_of_ended(small, 1)
        small.chmod(0o700)
        (small / "agent.lock").touch()
        (small / "controller.lock").touch()
        (small / "images" / "work" / "1.2").mkdir(parents=True)
        with contextlib.suppress(OSError), (small / "images" / "work" / "1.2" / "pages").open("wb", 0) as pages:
            while True:
                pages.write(bytes(4096))
        assert free_bytes(small) == 0
        options = Finding("options", "bad", "", mend=lambda: str((small / "options").write_bytes(bytes(8192))))
        done = health.mend([options, *_found(small).values()])
        assert [one.ok for one in done] == [True, True], "what frees space is repaired first"
        assert "removed 1 image of job 1" in done[0].text
        assert free_bytes(small) > 2**20


def test_images_of_ended_jobs_are_removed(state: Path, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "pages").write_bytes(os.urandom(100_000))
    store = ImageStore(state / "images" / "store")
    kept, gone = ImageName("team", 9, 1, 0), ImageName("team", 2, 1, 0)
    for name in (kept, gone):
        store.put(name, tmp_path / "image")
    found = _found(state)["images of jobs"]
    assert "2 images of jobs 1, 2, which ended" in found.text
    assert "removed 2 images" in mended(found)
    assert store.names() == [kept] and store.verify() == []
    assert sorted(path.name for path in (state / "images" / "work").iterdir()) == [".draft", "9.1"]


@pytest.mark.parametrize("lock", ["agent.lock", "controller.lock"])
def test_nothing_is_removed_while_a_daemon_uses_it(state: Path, lock: str) -> None:
    before = _found(state)
    with locked(state / lock):
        failed = health.mend(before.values())
        assert [one.ok for one in failed] == [False, False] and "is held" in failed[0].text
        during = _found(state, running=lock == "controller.lock")
        assert [one.level for one in during.values()] == ["ok", "ok"] and all(
            one.mend is None for one in during.values()
        )
    assert (state / "ranks" / "1.1").exists() and (state / "images" / "work" / "1.2").exists()


def test_the_directory_of_a_rank_that_still_runs_stays(state: Path) -> None:
    mark = AgentLayout(state).mark(1, 1, 0)
    with subprocess.Popen(["sleep", "60"], env={MARK: mark, "PATH": os.environ["PATH"]}) as rank:
        try:
            assert "1 of job 2, which ended" in _found(state)["rank directories"].text
        finally:
            rank.kill()


@pytest.fixture
def base() -> Path:
    """A place for control groups."""
    trees = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mounts").read_text())
    usable = [tree.group for tree in trees if os.access(tree.group, os.W_OK)]
    if os.geteuid() != 0 or not usable:
        pytest.skip("no control group can be made here")
    return usable[0]


@pytest.fixture
def groups(state: Path, base: Path) -> Iterator[list[Path]]:
    """Of a job that ended, of one without an attempt here, of one that lives; the first has a group of its own making."""
    layout = AgentLayout(state)
    made = [base / layout.mark(1, 1, 0), base / layout.mark(7, 1, 0), base / layout.mark(9, 1, 0)]
    for path in (*made, made[0] / "inner"):
        path.mkdir()
    yield made
    for path in (made[0] / "inner", *made):
        if path.exists():
            path.rmdir()


def test_control_groups_of_ended_jobs_are_removed(state: Path, groups: list[Path]) -> None:
    found = _found(state)["cgroups of jobs"]
    assert found.level == "note" and "2 control groups of jobs 1, 7 without a process" in found.text
    assert "cgroups of jobs" not in _found(state, running=True), "a running agent removes its own"
    assert mended(found) == "removed 2 control groups"
    assert [path.exists() for path in groups] == [False, False, True]


def test_a_process_of_an_ended_job_is_named_and_left_alone(state: Path, groups: list[Path]) -> None:
    with subprocess.Popen(["sleep", "60"]) as rank:
        try:
            (groups[0] / "inner" / "cgroup.procs").write_text(str(rank.pid))
            found = _found(state)
            assert found["cgroups of jobs"].level == "bad" and f"pids {rank.pid}" in found["cgroups of jobs"].text
            assert found["cgroups of jobs"].mend is None and "job 2," in found["rank directories"].text
            assert rank.poll() is None
        finally:
            rank.kill()
            rank.wait()
