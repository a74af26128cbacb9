"""Time that never runs backwards, and one controller per state directory."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, SECOND
from tidewright.live.controller.clock import Clock, difference_us
from tidewright.live.controller.lock import StateLock


class Machine:
    """A wall clock that anybody may set, a steady one that nobody can, and reboots."""

    def __init__(self) -> None:
        self.wall, self.steady, self.boots = 10**15, 5 * SECOND, 0

    def clock(self, state: Path, last: int) -> Clock:
        return Clock(state, last, lambda: self.wall, lambda: self.steady, lambda: f"boot-{self.boots}")


moves = st.lists(
    st.tuples(st.sampled_from(["run", "set", "restart", "reboot"]), st.integers(-10 * HOUR, 10 * HOUR)), max_size=30
)


@given(moves=moves)
def test_time_never_runs_backwards(tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]) -> None:
    state, machine, last = tmp_path_factory.mktemp("clock"), Machine(), 0
    clock = machine.clock(state, last)
    for what, amount in moves:
        before = clock.now()
        if what == "run":
            machine.steady += abs(amount)
            machine.wall += abs(amount)
            assert clock.now() == before + abs(amount)
        elif what == "set":
            machine.wall = max(0, machine.wall + amount)
            assert clock.now() == before
        elif what == "restart":
            clock = machine.clock(state, last)
            assert clock.now() == before
        else:
            machine.boots, machine.steady = machine.boots + 1, 0
            clock = machine.clock(state, before)
            assert clock.now() == max(before, machine.wall)
        last = clock.now()


def test_a_wall_clock_set_back_an_hour_changes_nothing(tmp_path: Path) -> None:
    machine = Machine()
    now = machine.clock(tmp_path, 0).now()
    machine.wall -= HOUR
    machine.steady += SECOND
    assert machine.clock(tmp_path, now).now() == now + SECOND


def test_a_base_that_was_lost_or_garbled_falls_back_to_the_journal(tmp_path: Path) -> None:
    machine = Machine()
    (tmp_path / "clock.json").write_text("{")
    assert machine.clock(tmp_path, 2 * 10**15).now() == 2 * 10**15


def _hold(state: Path, pipe: multiprocessing.connection.Connection) -> None:  # type: ignore[name-defined]
    StateLock(state)
    pipe.send(os.getpid())
    pipe.recv()


@pytest.mark.processes
def test_a_second_controller_is_refused_and_a_dead_one_is_no_obstacle(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path, there))
    other.start()
    try:
        pid = here.recv()
        with pytest.raises(UsageError, match=f"pid {pid}"):
            StateLock(tmp_path)
        other.kill()
        other.join()
        lock = StateLock(tmp_path)
        assert lock.epoch == 2
        lock.release()
        assert not (tmp_path / "controller.pid").exists()
    finally:
        other.kill()
        other.join()


def test_the_epoch_grows_and_a_garbled_one_is_not_guessed(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        lock = StateLock(tmp_path)
        assert lock.epoch == expected
        lock.release()
    (tmp_path / "epoch").write_text("three")
    with pytest.raises(UsageError, match="does not hold a number"):
        StateLock(tmp_path)
    (tmp_path / "epoch").write_text("7")
    StateLock(tmp_path).release()


def test_the_difference_to_the_wall_clock_is_known_within_a_boot(tmp_path: Path) -> None:
    machine = Machine()

    def difference() -> int | None:
        return difference_us(tmp_path, lambda: machine.wall, lambda: machine.steady, lambda: f"boot-{machine.boots}")

    assert difference() is None
    machine.clock(tmp_path, 0)
    assert difference() == 0
    machine.wall -= HOUR
    assert difference() == HOUR
    machine.boots += 1
    assert difference() is None
