"""An id names one job for good, whatever a journal has lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tidewright.base.errors import DamagedJournal
from tidewright.drive.driver import EngineDriver
from tidewright.engine.engine import Engine
from tidewright.engine.events import JobIdsUsed, Submit
from tidewright.live.controller.job_ids import next_unused
from tidewright.live.journal.doctor import repair
from tidewright.live.journal.store import Journal
from tidewright.live.journal.watermark import Watermark, WatermarkFile, read_watermark
from tidewright.model.job import JobSpec

from .fakes import FakeFabric
from .harness import Running


def _ran(state: Path, jobs: int, first: int = 1) -> list[int]:
    with Running(state, FakeFabric()) as server, server.client() as client:
        ids = [client.submit([JobSpec(command=("true",))]).ids[0] for _ in range(jobs)]
        for job in ids:
            client.wait(job, 10)
    assert ids == list(range(first, first + jobs))
    return ids


def _spoil(state: Path, what: str) -> None:
    db = state / "journal.db"
    if what == "all of it":
        db.write_bytes(os.urandom(db.stat().st_size))
        return
    with sqlite3.connect(db) as connection:
        late = "(SELECT max(turn) - 9 FROM turns)" if what == "the last turns" else "2"
        connection.execute("DELETE FROM snapshots")
        connection.execute(f"DELETE FROM turns WHERE turn >= {late}")
    connection.close()


@pytest.mark.parametrize("what", ["the last turns", "nearly all turns", "all of it"])
def test_no_repair_gives_an_id_out_again(tmp_path: Path, what: str) -> None:
    state = tmp_path / "state"
    _ran(state, 4)
    _spoil(state, what)
    with pytest.raises(DamagedJournal):
        Journal(state)
    repair(state)
    _ran(state, 2, first=5)
    _ran(state, 1, first=7)


def test_without_a_watermark_what_lies_in_the_directory_counts(tmp_path: Path) -> None:
    state = tmp_path / "state"
    _ran(state, 2)
    for place in ("logs/7", "ranks/9.1", "ranks/.11.1.new", "hosts/east/logs/12", "hosts/east/images/work/14.3"):
        (state / place).mkdir(parents=True)
    (state / "logs" / "no-id").mkdir()
    assert next_unused(state) == 15
    for name in ("journal.db", "journal.mark"):
        (state / name).unlink()
    with Running(state, FakeFabric()) as server, server.client() as client:
        assert client.submit([JobSpec(command=("true",))]).ids == (15,)
        assert "1 to 14" in "".join(client.info().notices)


def test_a_torn_transaction_loses_turns_and_no_id(tmp_path: Path) -> None:
    """Its jobs may have been acknowledged and started."""
    state = tmp_path / "live"
    journal = Journal(state)
    driver = EngineDriver(Engine(), journal)
    for turn in range(1, 5):
        driver.step(turn, [Submit(JobSpec(command=("x",)), f"op{turn}")])
        journal.next_job = driver.engine.book.next_job
        journal.commit()
        if turn == 3:
            shutil.copytree(state, tmp_path / "torn")
    shutil.copy(state / "journal.mark", tmp_path / "torn" / "journal.mark")
    journal.close()
    torn = Journal(tmp_path / "torn")
    assert torn.turn == 3 and torn.next_job == 5
    torn.close()


def test_a_mark_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    mark = Watermark(3, 8, b"p" * 32, 9, b"h" * 32, 17)
    WatermarkFile(tmp_path / "mark", mark).close()
    assert read_watermark(tmp_path / "mark") == mark
    data = bytearray((tmp_path / "mark").read_bytes())
    data[512 + 112 : 512 + 128] = bytes(16)
    (tmp_path / "mark").write_bytes(data)
    assert read_watermark(tmp_path / "mark") == Watermark(3, 8, b"p" * 32, 9, b"h" * 32)


def test_ids_never_go_back() -> None:
    engine = Engine()
    engine.step(1, [JobIdsUsed(10), JobIdsUsed(4)])
    assert engine.book.next_job == 10
