"""Ranks of one dump: one that cannot be saved, whatever the reason, keeps none of the others standing still."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.criu import driver as criu
from tidewright.checkpoint.criu.driver import Criu, CriuDriver, DumpOrder
from tidewright.checkpoint.criu.unanimous import Unanimous
from tidewright.checkpoint.protocol import RankHandle

WAIT_S = 30.0
"""Only a test that fails waits so long."""


def test_one_refusal_ends_the_wait_of_the_others() -> None:
    together = Unanimous(3)
    answers: list[bool] = []
    waiting = [threading.Thread(target=lambda: answers.append(together.agree()), daemon=True) for _ in range(2)]
    for each in waiting:
        each.start()
    together.refuse()
    for each in waiting:
        each.join(WAIT_S)
    assert answers == [False, False]


def test_a_fault_that_was_not_foreseen_in_one_rank_lets_the_other_ranks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[RankHandle] = []

    class Driver(CriuDriver):
        def _dump(self, handle: RankHandle, directory: Path, order: DumpOrder) -> None:
            if handle.rank == 1:
                raise IndexError("a field of /proc that is not there")
            assert not order.together.agree()

        def resume(self, handles) -> None:
            resumed.extend(handles)

    monkeypatch.setattr(criu, "settle", lambda handle: None)
    monkeypatch.setattr(criu, "alive", lambda pid, start: True)
    handles = [RankHandle(rank=rank, pid=1, start=0) for rank in range(3)]
    driver, failed = Driver("n1", Criu(("criu",), "4.2.1")), list[Exception]()

    def dump() -> None:
        try:
            driver.dump(handles, tmp_path, leave_running=True)
        except WorldError as error:
            failed.append(error)

    thread = threading.Thread(target=dump, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert [str(each) for each in failed] == [
        "rank 1: its image failed: IndexError: a field of /proc that is not there"
    ]
    assert resumed == handles
