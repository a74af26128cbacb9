"""Many jobs: taken in by slices in one turn, listed by pages, summed without looking at each."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.drive.record import decode
from tidewright.engine import events as ev
from tidewright.engine.commands import Reply
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.live.api import cooperative as pause
from tidewright.live.api import listing, views
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec
from tidewright.wire import api

from ..sizes import examples
from .test_api import _raw, _spec, _until, _until_node


def _post(state, body: bytes) -> tuple[int, dict[str, object]]:  # type: ignore[no-untyped-def]
    head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    status, _, data = _raw(state, head + body)
    return status, json.loads(data)


def test_more_specs_than_one_request_may_bring(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        body = b'{"specs":[' + b",".join([b'{"command":["a"]}'] * (api.MAX_SPECS + 1)) + b"]}"
        status, error = _post(server.state, body)
        assert status == 413 and error["code"] == "toolarge" and "10000 at most" in str(error["error"])
        assert server.client().jobs().jobs == ()


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (b'{"command":["a"],"devices":"four"}', "$.specs[1200].devices"),
        (b'{"command":["a"],"gpus":4}', "$.specs[1200]"),
        (b'{"command":["a"],"devices":-4}', "specs[1200]: "),
        (b"7", "$.specs[1200]"),
    ],
)
def test_one_bad_spec_among_many_is_named_and_nothing_admitted(running, last: bytes, says: str) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        body = b'{"specs":[' + b",".join([b'{"command":["a"]}'] * 1200 + [last]) + b"]}"
        status, error = _post(server.state, body)
        assert status == 400 and says in str(error["error"])
        assert server.client().jobs(all=True).jobs == () and server.client().info().live_jobs == 0


def test_a_big_batch_is_one_turn_and_lets_others_have_theirs(running, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pause, "PART_S", 0.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with running() as server, server.client() as client:
        _until_node(client)
        server.soon(lambda: asyncio.ensure_future(count()))
        client.info()
        before = turns
        ids = client.submit([_spec(f"j{n}", tier="basic") for n in range(800)], op_id="big").ids
        assert len(set(ids)) == 800 and client.submit([_spec("j0")], op_id="big").ids == ids[:1]
        # Read, checked, made into events, taken by the engine and observed: each of them one by one.
        assert turns - before >= 5 * 800
        with closing(sqlite3.connect(server.state / "journal.db")) as db:
            bodies = [decode(body) for (body,) in db.execute("SELECT body FROM turns")]
        submitted = [sum(isinstance(event, ev.Submit) for event in record.events) for record in bodies]
        assert max(submitted) == 800
        assert [job.id for job in client.jobs(limit=900).jobs] == sorted(ids)


def test_a_page_costs_what_is_on_it(running, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made = 0
    real = views.live_job

    def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal made
        made += 1
        return real(*args, **kwargs)

    with running() as server, server.client() as client:
        specs = [_spec(f"j{n}", team=f"t{n % 3}", devices=4, ranks=4) for n in range(300)]
        ids = client.submit(specs).ids
        _until(client, ids[0], "running")
        user = client.job(ids[0]).user
        monkeypatch.setattr(views, "live_job", counted)
        page = client.jobs(limit=3)
        assert [job.id for job in page.jobs] == list(ids[:3]) and page.more and made <= 4
        page = client.jobs(limit=3, team="t1", user=user)
        assert [job.name for job in page.jobs] == ["j1", "j4", "j7"] and page.more and made <= 8
        assert [job.id for job in client.jobs(state="running", limit=3).jobs] == [ids[0]] and made <= 9
        assert client.jobs(name="nobody").jobs == () and made <= 9


def test_lists_of_live_and_ended_jobs_are_whole_and_in_order(running, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(listing, "PAGE", 3)
    monkeypatch.setattr(listing, "CHUNK", 2)
    with running() as server, server.client() as client:
        ids = client.submit([_spec(f"j{n}", team=f"t{n % 2}", devices=4, ranks=4) for n in range(20)]).ids
        for job in ids[5:17]:
            client.cancel(job)
        for job in ids[5:17]:
            client.wait(job, 10)
        live, ended = [*ids[:5], *ids[17:]], list(ids[5:17])[::-1]
        assert [job.id for job in client.jobs().jobs] == live
        assert [job.id for job in client.jobs(all=True).jobs] == live + ended
        assert [job.id for job in client.jobs(state="cancelled").jobs] == ended
        assert [job.id for job in client.jobs(state="cancelled", team="t1").jobs] == [n for n in ended if n % 2 == 0]
        for limit in range(1, 22):
            page = client.jobs(all=True, limit=limit)
            assert [job.id for job in page.jobs] == (live + ended)[:limit] and page.more == (limit < 20)
        assert client.info().ended_jobs == 12
        (row,) = (row for row in client.usage("team").rows if row.key == "t0")
        mine = [job for job in client.jobs(all=True).jobs if job.team == "t0"]
        assert (row.jobs, row.live) == (10, sum(job.end < 0 for job in mine))
        assert row.preemptions == sum(job.preemptions for job in mine)
        assert row.held_gpu_s == pytest.approx(sum(job.held_gpu_s for job in mine), abs=1.0)
        assert row.fraction == pytest.approx(sum(job.fraction for job in mine) / 10, abs=0.1)
    with running() as server, server.client() as client:
        assert client.info().ended_jobs == 12


_SPECS = st.builds(
    JobSpec, command=st.just(("x",)), tier=st.sampled_from(["premium", "standard", "basic"]), devices=st.just(1),
    gpu_memory=st.sampled_from([0, 0, 2**30, 3 * 2**29]),
)  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(_SPECS | st.just(None), max_size=8), max_size=4), st.sampled_from([0, 2**32]))
def test_warnings_of_jobs_in_one_step_are_those_of_jobs_one_by_one(steps: list, memory: int) -> None:  # type: ignore[type-arg]
    """``None`` is a cancellation of the first job that is left."""
    together, apart = Engine(live_settings()), Engine(live_settings())
    node = ev.NodeUp(NodeSpec(name="n", kind="h100", devices=1, device_memory=memory), "boot")
    replies: dict[Engine, list[Reply]] = {together: [], apart: []}
    for engine in (together, apart):
        engine.step(1, [node])
    for at, step in enumerate(steps):
        events = [
            ev.Submit(spec, f"{at}.{n}") if spec is not None else ev.Cancel(min(together.book.specs, default=1))
            for n, spec in enumerate(step)
        ]
        replies[together] += [one for one in together.step(10 + at, events) if isinstance(one, Reply)]
        for event in events:
            replies[apart] += [one for one in apart.step(10 + at, [event]) if isinstance(one, Reply)]
    assert [one for one in replies[together] if one.warning] == [one for one in replies[apart] if one.warning]


def test_a_step_in_parts_is_the_same_step() -> None:
    events = [ev.Submit(JobSpec(command=("x",), name=f"j{n}"), f"op{n}") for n in range(20)]
    whole, parts = Engine(live_settings()), Engine(live_settings())
    commands = whole.step(5, events)
    assert sum(1 for _ in parts.step_in_parts(5, events)) == 20
    assert msgspec.json.encode(parts.book.out) == msgspec.json.encode(commands)
    assert parts.snapshot() == whole.snapshot()


def test_a_dry_run_of_many_changes_nothing(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        _until_node(client)
        reply = client.submit([_spec(f"d{n}") for n in range(50)], dry_run=True)
        assert len(reply.forecast) == 50 and client.jobs().jobs == ()
        with pytest.raises(UsageError, match="has 4"):
            client.submit([_spec(devices=5, ranks=5)], dry_run=True)
