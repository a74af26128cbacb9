"""What a review of the controller found."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from tidewright.checkpoint.cgroup import wait_until
from tidewright.drive.record import StepRecord, encode
from tidewright.engine.commands import Ended
from tidewright.live.api import logs
from tidewright.live.api.logs import RankPaths, Tail, log_path
from tidewright.live.journal.archive import row_of
from tidewright.live.journal.doctor import doctor, repair
from tidewright.live.journal.store import Journal
from tidewright.model.job import JobSpec


def collected(paths: list[Path], tail: int | None) -> bytes:
    async def given() -> list[Path]:
        return paths

    async def read() -> bytes:
        return b"".join([chunk async for chunk in Tail(given, lambda: True, tail).read(True)])

    return asyncio.run(asyncio.wait_for(read(), 10))


def test_a_log_that_is_a_pipe_does_not_stop_the_controller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "log").write_bytes(b"one\ntwo\n")
    assert collected([tmp_path / "pipe", tmp_path / "log", Path("/dev/zero")], None) == b"one\ntwo\n"
    assert collected([tmp_path / "log", tmp_path / "pipe"], 1) == b"two\n"
    assert collected([tmp_path / "pipe"], 3) == b""


def test_a_reader_searches_only_the_logs_of_its_rank_and_each_that_is_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[int, int]] = []

    def search(state: Path, job: int, spec: JobSpec, attempt: int, rank: int) -> Path:
        searched.append((attempt, rank))
        return log_path(state, job, spec, attempt, rank)

    monkeypatch.setattr(logs, "log_path", search)
    folder = tmp_path / "logs" / "7"
    folder.mkdir(parents=True)
    for attempt in (1, 2, 3):
        (folder / f"rank1.{attempt}.log").touch()
    spec, reported = JobSpec(name="gang", command=("x",), ranks=4), {2: "/reported"}
    paths = RankPaths(tmp_path, 7, 1, lambda: (spec, 3), reported.get)

    async def twice() -> list[list[Path]]:
        return [await paths(), await paths()]

    expected = [folder / "rank1.1.log", Path("/reported"), folder / "rank1.3.log"]
    assert asyncio.run(twice()) == [expected, expected]
    assert searched == [(1, 1), (3, 1), (3, 1)], "the attempt that goes on may move to another host"


def test_a_queued_job_says_that_it_waits_not_that_it_was_admitted(running) -> None:  # type: ignore[no-untyped-def]
    def spec(name: str) -> JobSpec:
        return JobSpec(name=name, command=("sleep", "60"), devices=4, ranks=4)

    with running() as server, server.client() as client:
        holder, _ = client.submit([spec("holder"), spec("late")]).ids
        assert wait_until(lambda: client.job(holder).state == "running", 10)
        assert client.job("late").cause.code == "WaitsForDevices"
        assert client.suspend("late").warning == "" and client.resume("late").warning == ""
        assert client.job("late").cause.code == "WaitsForDevices"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE ended SET record = replace(record, 'job-3', 'job-4') WHERE job = 3",
        "UPDATE ended SET seal = x'00' WHERE job = 3",
        "UPDATE ended SET held = 1e9 WHERE job = 3",
        "UPDATE snapshots SET body = x'00'",
    ],
)
def test_doctor_finds_what_is_altered_beside_the_turns_and_makes_it_again(tmp_path: Path, damage: str) -> None:
    def ended(job: int) -> Ended:
        return Ended(job, 8, JobSpec(name=f"job-{job}", command=("x",)), 0, 1, 2, 1, 10**9, 10**9, 1, 1, 0, "finished")

    journal = Journal(tmp_path)
    for job in range(1, 6):
        journal.append(encode(StepRecord(job, job, [], [ended(job)])))
        journal.end(row_of(job, ended(job)))
    journal.commit()
    journal.snapshot(b"the book")
    journal.close()
    assert doctor(tmp_path).sound
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute(damage)
    db.close()
    assert not doctor(tmp_path).sound
    report, _ = repair(tmp_path)
    assert (report.keep_from, report.keep_to) == (0, 5) and doctor(tmp_path).sound
    journal = Journal(tmp_path)
    assert [one.job for one in journal.archive.find(9)] == [5, 4, 3, 2, 1]
    assert [one.body for one in journal.snapshots()] in ([b"the book"], [])
    journal.close()
