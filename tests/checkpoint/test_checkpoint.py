"""Checkpoint drivers on real processes: every freezer that works here, and the refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint import cgroup
from tidewright.checkpoint.cooperative import CooperativeDriver
from tidewright.checkpoint.fake import FakeDriver
from tidewright.checkpoint.freeze import FreezeDriver
from tidewright.checkpoint.processes import alive, members, send, stat
from tidewright.checkpoint.protocol import Gang, GangImage, RankHandle, RestorePlacement
from tidewright.model.job import Level
from tidewright.testing.checkpoint import check_driver

BUSY = "import os,time\nif os.fork() == 0: os.setsid()\nwhile True: pass"
FREEZERS = [freezer for freezer in cgroup.bases() if cgroup.works(freezer)] + [cgroup.Signals()]


def progress(handle: RankHandle) -> float:
    """Clock ticks of user and system time of all members."""
    total = 0
    for pid in members(handle):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


@pytest.fixture(params=FREEZERS, ids=lambda freezer: freezer.name)
def rank(request):
    """A busy process and its child in a session of its own, in the freezer's group."""
    groups = request.param.create(f"tidewright-test-{os.getpid()}")
    join = "".join(f"open({group + '/cgroup.procs'!r}, 'w').write('0')\n" for group in groups)
    environment = {"TIDE_RANK_MARK": f"test-{os.getpid()}"}
    process = subprocess.Popen([sys.executable, "-c", join + BUSY], env=environment, start_new_session=True)
    handle = RankHandle(
        rank=0,
        pid=process.pid,
        start=stat(process.pid).start,
        marker=f"TIDE_RANK_MARK=test-{os.getpid()}",
        cgroups=groups,
    )
    assert cgroup.wait_until(lambda: len(members(handle)) == 2, 10)
    yield handle
    cgroup.freezer_of(handle).thaw(handle)
    send(members(handle), signal.SIGKILL)
    process.wait()
    assert cgroup.wait_until(lambda: cgroup.remove(groups), 5)


def gang(*handles: RankHandle, world: int = 1, bounded: bool = False) -> Gang:
    return Gang(job=1, attempt=0, world_size=world, ranks=handles, bounded=bounded)


@pytest.mark.processes
def test_freeze_passes_the_kit(rank):
    driver = FreezeDriver("n1", reserve=0)
    check_driver(driver, gang(rank), "n1", lambda: progress(rank))


@pytest.mark.processes
def test_thaw_on_other_cores(rank):
    driver, core, processes = FreezeDriver("n1", reserve=0), max(os.sched_getaffinity(0)), members(rank)
    image = driver.save(gang(rank))
    assert cgroup.freezer_of(rank).frozen(rank)
    driver.restore(image, RestorePlacement(node="n1", cpus={0: (core,)}))
    assert not cgroup.freezer_of(rank).frozen(rank)
    assert members(rank) == processes, [stat(pid) for pid in processes]
    assert [os.sched_getaffinity(pid) for pid in processes] == [{core}, {core}]


@pytest.mark.processes
def test_members_are_distinguished_from_strangers(rank):
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert stranger.pid not in members(rank) and rank.pid in members(rank)
        reused = RankHandle(rank=0, pid=stranger.pid, start=1)
        assert members(reused) == [] and not alive(stranger.pid, 1), "same pid, other start: another process"
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.processes
def test_cooperative_signals_the_main_process_only(rank):
    driver = CooperativeDriver()
    assert driver.can(gang(rank), "h100").ok
    assert driver.save(gang(rank)) is None
    assert cgroup.wait_until(lambda: not alive(rank.pid, rank.start), 10)
    assert len(members(rank)) == 1
    with pytest.raises(WorldError):
        driver.restore(GangImage(driver="cooperative", job=1, attempt=0), RestorePlacement(node="n1"))


def test_freeze_refuses_with_reasons():
    driver = FreezeDriver("n1", reserve=2**30, available=lambda: 2**31)
    assert driver.can(gang(), "cpu").ok
    assert "h100" in driver.can(gang(), "h100").reason
    assert "process group" in driver.can(gang(world=2), "cpu").reason
    assert driver.can(gang(world=2, bounded=True), "cpu").ok
    poor = FreezeDriver("n1", reserve=2**30, available=lambda: 2**29)
    assert "512.0MiB" in poor.can(gang(), "cpu").reason and not poor.can(gang(), "cpu").ok


def test_a_failed_freeze_leaves_all_running(monkeypatch):
    done: list[tuple[str, int]] = []

    class Stuck:
        def freeze(self, handle):
            if handle.rank == 1:
                raise WorldError("a hung disk")
            done.append(("freeze", handle.rank))

        def thaw(self, handle):
            done.append(("thaw", handle.rank))

    monkeypatch.setattr("tidewright.checkpoint.freeze.freezer_of", lambda handle: Stuck())
    ranks = tuple(RankHandle(rank=rank, pid=0, start=0) for rank in range(2))
    with pytest.raises(WorldError, match="hung disk"):
        FreezeDriver("n1").save(gang(*ranks, world=2, bounded=True))
    assert done == [("freeze", 0), ("thaw", 0), ("thaw", 1)], "also what an earlier agent may have frozen"


def test_the_fake_passes_the_kit_and_misbehaves():
    ticks = iter(range(10**6))
    driver, frozen = FakeDriver(Level.FULL, home="n1"), [0]

    def no_progress() -> int:
        frozen[0] = frozen[0] if driver.held else next(ticks)
        return frozen[0]

    check_driver(driver, gang(), "n1", no_progress)
    driver.refusal, driver.save_error = "not today", "no room"
    assert driver.can(gang(), "cpu") == (False, "not today")
    with pytest.raises(WorldError, match="no room"):
        driver.save(gang())


def test_the_kit_notices_a_driver_that_saves_nothing():
    ticks = iter(range(10**6))
    with pytest.raises(AssertionError, match="still runs"):
        check_driver(FakeDriver(), gang(), "n1", lambda: next(ticks))
