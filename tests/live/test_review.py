"""What a review of the controller found."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tidewright.live.logs import Tail
from tidewright.model.job import JobSpec


def collected(paths: list[Path], tail: int | None) -> bytes:
    async def read() -> bytes:
        return b"".join([chunk async for chunk in Tail(lambda: paths, lambda: True, tail).read(True)])

    return asyncio.run(asyncio.wait_for(read(), 10))


def test_a_log_that_is_a_pipe_does_not_stop_the_controller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "log").write_bytes(b"one\ntwo\n")
    assert collected([tmp_path / "pipe", tmp_path / "log", Path("/dev/zero")], None) == b"one\ntwo\n"
    assert collected([tmp_path / "log", tmp_path / "pipe"], 1) == b"two\n"
    assert collected([tmp_path / "pipe"], 3) == b""


def test_a_queued_job_says_that_it_waits_not_that_it_was_admitted(running) -> None:  # type: ignore[no-untyped-def]
    def spec(name: str) -> JobSpec:
        return JobSpec(name=name, command=("true",), devices=4, ranks=4)

    with running() as world, world.client() as client:
        client.submit([spec("holder"), spec("late")])
        assert client.job("late").why == "waits for devices"
        assert client.suspend("late").warning == "" and client.resume("late").warning == ""
        assert client.job("late").why == "waits for devices"
