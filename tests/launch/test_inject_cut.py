"""Real ranks, cut at random moments, the store and their addresses elsewhere each time: bitwise the same in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tidewright.base.errors import WorldError
from tidewright.launch.inject._tidewright import page as pg

from .gang import INJECT, Gang, harass
from .warm import Warm

pytestmark = pytest.mark.processes

PROGRAMS = {
    "ddp": (2, ["ddp.py", "120", "accumulate", "unused"]),
    "ddp-static-amp": (2, ["ddp.py", "120", "static", "amp"]),
    "zero": (2, ["ddp.py", "80", "zero"]),
    "groups": (4, ["groups.py", "20"]),
    "groups-default-backend": (4, ["groups.py", "10", "default"]),
    "fsdp": (2, ["fsdp.py", "40", "amp"]),
    "hsdp": (4, ["fsdp.py", "20", "hsdp"]),
}
LONG = {
    "ddp": (2, ["ddp.py", "3000"]),
    "groups": (4, ["groups.py", "100"]),
    "fsdp": (2, ["fsdp.py", "400"]),
}


def run(place: Path, size: int, argv: list[str], wrapped: bool, cuts: int, seed: int, pause_s: float = 0.1, warm=None):
    gang = Gang(place, size, argv, wrapped=wrapped, warm=warm)
    try:
        gang.start(free_port())
        reports = harass(gang, seed, cuts, pause_s) if cuts else []
        return gang.wait(), reports
    finally:
        gang.end()


def test_cuts_change_nothing_nor_does_a_hold_that_fails(tmp_path: Path, warm: Warm) -> None:
    size, argv = PROGRAMS["ddp"]
    plain, _ = run(tmp_path / "plain", size, argv, False, 0, 0, warm=warm)
    gang = Gang(tmp_path / "cut", size, argv, warm=warm)
    try:
        gang.start(free_port())
        stop_one(gang)
        gang.cut()
        gang.release()
        reports = harass(gang, seed=1, cuts=10, pause_s=0.1)
        assert gang.wait() == plain and reports
    finally:
        gang.end()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[Gang]:
    """Ranks that train on and on: each test leaves them as it found them."""
    gang = Gang(tmp_path_factory.mktemp("endless") / "gang", 2, ["ddp.py", "100000"], warm=warm)
    try:
        gang.start(free_port())
        yield gang
    finally:
        gang.end()


def test_ranks_that_train_stand_where_a_step_begins(endless: Gang) -> None:
    """There they are most alike, so their images are. A busy machine may make them too slow for it now and then."""
    until_cut(endless, lambda: endless.pages().read()[0].step_us > 0)
    endless.release()
    stood = 0
    for _ in range(10):
        time.sleep(0.05)
        endless.cut()
        stood += all(page.standing for page in endless.pages().read())
        endless.release()
    assert stood >= 5


def until_cut(gang: Gang, more: Callable[[], bool] = lambda: True) -> None:
    """Hold all of them, once they have met and ``more`` holds."""
    while not ((report := gang.cut()).worlds and report.ranks == gang.size and more()):
        gang.release()
        time.sleep(0.05)


@pytest.mark.full
def test_ranks_that_were_released_twice_build_their_connections_once(endless: Gang) -> None:
    """The first waits for the second, which is stopped; meanwhile a cut fails and lets both go again."""
    for _ in range(3):
        stop_one(endless)
        until(endless, lambda: all(page.state == pg.RUNNING for page in endless.pages().read()))


def until(gang: Gang, true: Callable[[], bool]) -> None:
    late = time.monotonic() + 30
    while not true():
        assert time.monotonic() < late, gang.pages().read()
        time.sleep(0.01)


def stop_one(gang: Gang) -> None:
    """A rank is stopped by a signal: it neither comes nor says why. It is named, and all may go on."""
    until_cut(gang)
    os.kill(gang.ranks[1].pid, signal.SIGSTOP)
    gang.release()

    def named() -> bool:
        with pytest.raises(WorldError) as failed:
            gang.cut(timeout_s=1)
        return "rank 1" in str(failed.value)

    until(gang, named)  # on a busy machine the other may not have come back within the first second
    os.kill(gang.ranks[1].pid, signal.SIGCONT)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "ddp"])
def test_cuts_change_nothing_in_more_programs(name: str, tmp_path: Path) -> None:
    size, argv = PROGRAMS[name]
    plain, _ = run(tmp_path / "plain", size, argv, False, 0, 0)
    cut, reports = run(tmp_path / "cut", size, argv, True, 10, seed=2)
    assert reports and cut == plain


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(LONG))
def test_a_thousand_cuts(name: str, tmp_path: Path) -> None:
    """Over the three programs together, at moments a seed draws; run again until there were that many."""
    size, argv = LONG[name]
    plain, _ = run(tmp_path / "plain", size, argv, False, 0, 0)
    count, seed = 0, 0
    while count < 340:
        cut, reports = run(tmp_path / f"cut{seed}", size, argv, True, 340 - count, seed, pause_s=0.05)
        count, seed = count + len(reports), seed + 1
        assert cut == plain, f"seed {seed - 1}"


RAISES = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from _tidewright import page
from _tidewright.process_control import control

def late(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, late)
control.words[page.HOLD] = page.STOP
control.page = type("Page", (), {"behind": staticmethod(lambda: False)})
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    control.between_steps()
except TimeoutError:
    print(control.words[page.STANDING])
"""


def test_who_is_called_away_by_a_signal_does_not_seem_to_stand_still() -> None:
    """A handler that raises takes the thread away from where its step begins, and the next cut must not count on it."""
    found = subprocess.run([sys.executable, "-c", RAISES, str(INJECT)], capture_output=True, text=True, timeout=60)
    assert found.stdout == "0\n", found.stderr
