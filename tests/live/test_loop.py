"""The run loop under a full disk, a lost node, a slow planner."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidewright.base.errors import UsageError
from tidewright.engine.commands import Ended
from tidewright.live.api.event_stream import EventStream, point
from tidewright.live.api.listing import Query, listing
from tidewright.live.api.routes import Routes
from tidewright.live.journal.store import Journal, JournalFull
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State
from tidewright.testing.worldlet import Worldlet
from tidewright.wire.api import NO_EXIT_CODE

from .fakes import FakeFabric, FirstFit


def _until(true, seconds: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("never")


class Disk:
    """Fills up and empties on command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = Journal._write

        def write(journal: Journal, work) -> None:  # type: ignore[no-untyped-def]
            if self.full:
                raise JournalFull("journal.db cannot be written: database or disk is full")
            real(journal, work)

        monkeypatch.setattr(Journal, "_write", write)
        monkeypatch.setattr("tidewright.live.controller.loop.COMMIT_RETRY_S", 0.05)


def test_a_full_disk_turns_requests_away_and_jobs_run_on(running, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    disk, fabric = Disk(monkeypatch), FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("sleep",))]).ids
        _until(lambda: client.job(job).state == "running")
        disk.full = True
        for _ in range(2):
            with pytest.raises(UsageError, match="disk is full") as caught:
                client.submit([JobSpec(command=("late",), name="late")])
            assert "free some disk space" in caught.value.remedy
        assert [view.name for view in client.jobs(all=True).jobs] == [""], "what was refused is listed"
        with pytest.raises(UsageError):
            client.job("late")
        assert client.job(job).state == "running"
        assert any("cannot be written" in notice for notice in client.info().notices)
        server.soon(lambda: fabric.finish((job, 1), 5))
        assert not client.wait(job, 0.2).final, "an end that is not durable was reported"
        disk.full = False
        assert client.wait(job, 10).exit_code == 5
        (after,) = client.submit([JobSpec(command=("true",))]).ids
        assert client.wait(after, 10).exit_code == 0
        late = [one for one in client.jobs(all=True).jobs if one.name == "late"]
        assert all(one.state == "cancelled" and one.start < 0 for one in late), "a job that was not accepted ran"


def test_an_end_that_is_not_durable_yet_is_none_to_lists_and_notifications() -> None:
    ended = Ended(
        job=7, state=int(State.FAILED), spec=JobSpec(command=("x",)), submit=1, first_start=2, end=3, ideal_us=1,
        attained_milli_us=1, held_milli_us=1, preemptions=0, attempts=1, code=5, why=Code.EXIT_CODE(5),
    )  # fmt: skip
    nothing = SimpleNamespace(get=lambda job: None)
    book = SimpleNamespace(specs={})
    loop = SimpleNamespace(
        rejected={}, pending_archive={7: ended}, driver=SimpleNamespace(engine=SimpleNamespace(book=book))
    )
    routes = object.__new__(Routes)
    routes.context = SimpleNamespace(loop=loop, journal=SimpleNamespace(archive=nothing))  # type: ignore[assignment]
    view = routes._brief(7)
    assert (view.state, view.exit_code) == ("stopping", NO_EXIT_CODE)
    asked = {"pending": {7: ended}, "equal": {"name": ""}}
    for query in (Query(**asked), Query(**asked, states=(State.STOPPING,))):
        page = asyncio.run(listing(Worldlet().engine.book, None, query, 1))  # type: ignore[arg-type]
        assert [one["state"] for one in json.loads(page)["jobs"]] == ["stopping"], "in no list while its end is written"
    for query in (Query(pending={7: ended}, equal={"name": "y"}), Query(pending={7: ended}, states=(State.RUNNING,))):
        page = asyncio.run(listing(Worldlet().engine.book, None, query, 1))  # type: ignore[arg-type]
        assert not json.loads(page)["jobs"]
    nothing.get = lambda job: ended
    assert (routes._brief(7).state, routes._brief(7).exit_code) == ("failed", 5)


def test_a_node_that_loses_its_agent_keeps_its_jobs(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("sleep",))]).ids
        _until(lambda: client.job(job).state == "running")
        server.soon(lambda: fabric.connect(False))
        _until(lambda: client.info().agent != "connected")
        client.cancel(job)
        assert client.job(job).state == "stopping"
        server.soon(lambda: fabric.finish((job, 1), 0))
        server.soon(lambda: fabric.connect(True))
        assert client.wait(job, 10).state == "cancelled"
        _until(lambda: fabric.jobs == {})


def test_a_job_whose_node_forgot_it_starts_again(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("sleep",))]).ids
        _until(lambda: client.job(job).state == "running")
        server.soon(fabric.jobs.clear)
        server.soon(lambda: fabric.connect(False))
        server.soon(lambda: fabric.connect(True))
        _until(lambda: client.job(job).attempt == 2 and client.job(job).state == "running")
        assert fabric.starts == [(job, 1), (job, 2)]


def test_a_rebooted_node_loses_what_ran_and_frozen_jobs_too(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        ids = client.submit([JobSpec(command=("sleep",)), JobSpec(command=("sleep",))]).ids
        for job in ids:
            _until(lambda job=job: client.job(job).state == "running")
        client.suspend(ids[1])
        _until(lambda: client.job(ids[1]).state == "held")

        def reboot() -> None:
            fabric.connect(False)
            fabric.jobs.clear()
            fabric.incarnation = "boot-2"
            fabric.connect(True)

        server.soon(reboot)
        _until(lambda: client.job(ids[0]).attempt == 2 and client.job(ids[0]).state == "running")
        client.resume(ids[1])
        _until(lambda: client.job(ids[1]).attempt == 2 and client.job(ids[1]).state == "running")


def test_strays_are_stopped_and_forgotten(running) -> None:  # type: ignore[no-untyped-def]
    from tidewright.wire.agent import JobReport

    fabric = FakeFabric()
    fabric.jobs[77, 1] = JobReport(job=77, attempt=1, state="running")
    with running(fabric):
        _until(lambda: fabric.jobs == {})


def test_a_slow_planner_does_not_hold_up_answers(running) -> None:  # type: ignore[no-untyped-def]
    gate = threading.Event()

    class Slow(FirstFit):
        def plan(self, view):  # type: ignore[no-untyped-def]
            if view.jobs.n > 1:
                gate.wait(10)
            else:
                time.sleep(0.05)
            return super().plan(view)

    with running(policy=Slow()) as server, server.client() as client:
        (first,) = client.submit([JobSpec(command=("sleep",))]).ids
        _until(lambda: client.job(first).state == "running")
        (second,) = client.submit([JobSpec(command=("sleep",))]).ids
        assert client.job(second).state == "queued"
        gate.set()
        _until(lambda: client.job(second).state == "running")


def test_a_restart_plans_again_for_what_waited(running, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    class Never(FirstFit):
        def plan(self, view):  # type: ignore[no-untyped-def]
            raise KeyError("broken")

    with running(policy=Never()) as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("true",))]).ids
    with running() as server, server.client() as client:
        assert client.wait(job, 10).exit_code == 0


def test_the_hub_says_when_events_were_dropped() -> None:
    from tidewright.wire.api import JobEvent

    stream = EventStream(kept=3)
    for number in range(1, 6):
        stream._unpublished.append(JobEvent(seq=f"{number}.0", at=0, job=1, name="", state="queued", what="QUEUED"))
        stream.publish()
    events, complete = stream.after((4, 0))
    assert ([event.seq for event in events], complete) == (["5.0"], True)
    assert stream.after((1, 0))[1] is False
    assert point("17.2") == (17, 2)
