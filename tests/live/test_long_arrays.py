"""Arrays as long as they may be: what lists and requests cost, and requests that come again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tidewright.base.errors import Conflict
from tidewright.engine import events as ev
from tidewright.live.api import cooperative, submission, views
from tidewright.live.api.listing import Query, listing, words
from tidewright.live.journal.archive import Archive, EndedMember
from tidewright.model.job import ArrayMember, JobSpec
from tidewright.testing.worldlet import Worldlet
from tidewright.wire import api
from tidewright.wire.array_refs import MAX_MEMBERS
from tidewright.wire.calls.completion import MOST_WORDS, Word
from tidewright.wire.calls.job_changes import RequeueRequest

from .fakes import FakeFabric

PAUSE = threading.Event()


def _members(size: int) -> list[JobSpec]:
    return [JobSpec(name=f"a[{at}]", command=("sleep", "9"), array=ArrayMember("a", at, size)) for at in range(size)]


def _until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        PAUSE.wait(0.01)
    raise AssertionError("it never became true")


def test_the_list_of_a_long_array_is_short_and_costs_a_view_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    world, made = Worldlet(), []
    events = [
        ev.Submit(
            JobSpec(name=f"a[{at}]", command=("x",), array=ArrayMember("a", at, MAX_MEMBERS, 4)), f"o.{at}", "o.0"
        )
        for at in range(MAX_MEMBERS)
    ]
    world.driver.step(0, events)
    real = views.live_job

    def counted(*given: Any, **more: Any) -> api.JobView:
        made.append(given)
        return real(*given, **more)

    monkeypatch.setattr(views, "live_job", counted)
    body = asyncio.run(listing(world.engine.book, None, Query(collapse=True), 1))  # type: ignore[arg-type]
    rows = msgspec.json.decode(body, type=api.JobList).jobs
    assert [(row.state, row.array_waiting) for row in rows] == [("queued", "0-3"), ("held", f"4-{MAX_MEMBERS - 1}")]
    assert len(made) == 2 and len(body) < 10_000


def test_a_request_that_comes_again_is_about_the_same_members(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        first = client.submit([replace(member, hold=True) for member in _members(4)]).ids[0]
        client.release(f"{first}_0")
        _until(lambda: client.job(f"{first}_0").state == "running")
        requeue = RequeueRequest(hold=True, op_id="again")
        ask = partial(client._ask, "POST", f"/v1/jobs/{first}/requeue", api.ActionReply, requeue)
        before = ask()
        _until(lambda: client.job(f"{first}_0").state == "held")
        client.release(f"{first}_1")
        _until(lambda: client.job(f"{first}_1").state == "running")
        assert before.jobs == (first,) and ask() == before
        assert client.job(f"{first}_1").state == "running" and client.job(f"{first}_1").attempt == 1
        cancel = api.ActionRequest(op_id="gone")
        ask = partial(client._ask, "POST", f"/v1/jobs/{first}/cancel", api.ActionReply, cancel)
        before = ask()
        assert client.wait(f"{first}_[0-3]", 10).final and len(before.jobs) == 4
        assert ask() == before
        with pytest.raises(Conflict, match="array"):
            client.cancel(f"{first}_[0-3]")


def test_ended_members_are_read_beside_the_event_loop(running, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    readers = []
    real = Archive.members

    def members(archive: Archive, array: int, index: int | None = None) -> list[EndedMember]:
        readers.append(threading.current_thread())
        return real(archive, array, index)

    with running() as server, server.client() as client:
        first = client.submit(_members(3)).ids[0]
        client.cancel(str(first))
        client.wait(str(first), 10)
        monkeypatch.setattr(Archive, "members", members)
        assert len(client.lookup(f"{first}_[0-1]").array.members) == 2
        after = replace(_members(3)[2], array=ArrayMember("b", 2, 3))
        client.submit([after], after=(f"aftercorr:{first}",))
        assert len(readers) >= 3 and server._thread not in readers


def test_others_have_their_turn_while_words_are_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Worldlet()
    events = [ev.Submit(JobSpec(name=f"w{at}", command=("x",)), f"o.{at}") for at in range(MOST_WORDS * 2)]
    world.driver.step(0, events)
    monkeypatch.setattr(cooperative, "PART_S", 0.0)
    turns = []

    async def other() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    async def both() -> tuple[Word, ...]:
        beside = asyncio.create_task(other())
        try:
            return await words(world.engine.book, None, "jobs", "w")  # type: ignore[arg-type]
        finally:
            beside.cancel()

    assert len(asyncio.run(both())) == MOST_WORDS and len(turns) >= len(events)


def test_an_index_that_comes_again_begins_another_array_and_looks_at_no_other_name() -> None:
    firsts = submission._ArrayFirsts()
    member = _members(2)[0]
    other = replace(member, array=ArrayMember("b", 0, 2))
    found = [firsts.first(key, spec) for key, spec in (("a1", member), ("b1", other), ("a2", member), ("b2", other))]
    assert found == ["a1", "b1", "a2", "b2"]
    before = firsts._seen["b"]
    firsts.first("a3", member)
    assert firsts._seen["b"] is before and firsts._seen == {"a": {0}, "b": {0}}
