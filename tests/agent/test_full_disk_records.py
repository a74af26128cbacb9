"""Small records on a file system without a byte to spare: what must be written has its room, the rest is done without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import small_disk_at
from tidewright.agent.layout import write_if_room
from tidewright.agent.node_services import read_token
from tidewright.agent.server import Epoch
from tidewright.launch import shim
from tidewright.live.controller import lock
from tidewright.wire.holder import sign


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk_at(tmp_path, 1) as place:
        yield place


def _fill(small: Path) -> None:
    with (small / "filler").open("ab", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))


def test_the_end_of_a_rank_is_told(small: Path) -> None:
    shim.reserve_space(str(small), "exit")
    _fill(small)
    shim.write_whole(str(small), "exit", {"code": 7, "signal": 0, "ended": 1.5})
    assert b'"code": 7' in (small / "exit").read_bytes()
    with pytest.raises(OSError):
        shim.write_whole(str(small), "other", {"code": 7})


def test_an_agent_obeys_a_new_controller(small: Path) -> None:
    epoch = Epoch(small / "agent.epoch")
    assert epoch.admit(9)
    _fill(small)
    assert epoch.admit(10) and not epoch.admit(9)
    assert Epoch(small / "agent.epoch").value == 10
    assert not list(small.glob(".agent*"))


def test_a_controller_counts_its_starts_and_signs_its_lock(small: Path) -> None:
    state = small / "state"
    lock.StateLock(state).release()
    _fill(small)
    again = lock.StateLock(state)
    assert again.epoch == 2 and (state / "controller.lock").read_text().startswith(f"{os.getpid()} ")
    again.release()


def test_a_lock_opened_to_append_is_signed_all_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        with (tmp_path / "agent.lock").open("a") as file:
            sign(file.fileno())
    words = (tmp_path / "agent.lock").read_text().split()
    assert len(words) == 2 and words[0] == str(os.getpid())


def test_nothing_half_written_is_left_to_be_believed(small: Path) -> None:
    write_if_room(small / "port", b"1 2\n")
    _fill(small)
    with pytest.raises(OSError):
        read_token(small / "agent.token")
    write_if_room(small / "port", b"3 4\n")
    with pytest.raises(OSError):
        lock.write_whole(small / "token", "x" * 40)
    assert {path.name for path in small.iterdir()} == {"filler", "port"}
    assert (small / "port").read_text() == "1 2\n"
