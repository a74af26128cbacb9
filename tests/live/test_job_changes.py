"""Changes, holds, requeues and actions on many jobs through the API of a real controller; only the agent is made up."""

from __future__ import annotations

import getpass
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tidewright.base.errors import Conflict, UsageError
from tidewright.base.units import HOUR, MINUTE
from tidewright.live.api.why import why_live
from tidewright.model.cause import Code
from tidewright.model.job import ArrayMember, Dependency, JobSpec, State
from tidewright.model.spec_changes import SpecChanges
from tidewright.plan.explain import Change, Explanation
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet
from tidewright.wire.api import JobView
from tidewright.wire.calls.job_changes import Selection, UserSelection
from tidewright.wire.client import Client

from .fakes import FakeFabric
from .harness import Running
from .test_api import _raw, _spec, _until

ME = getpass.getuser()


def _selected(client: Client, action: str = "cancel", **filters: object) -> tuple[int, ...]:
    return client.select(action, **filters).jobs  # type: ignore[arg-type]


def test_a_change_is_seen_everywhere_and_says_who_made_it(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("old", hold=True)]).ids
        before = client.job(job)
        assert client.update(job, SpecChanges(name="new", tier="premium", max_duration_us=2 * HOUR)).job == job
        view = client.job("new")
        assert (view.id, view.tier, view.submit) == (job, "premium", before.submit)
        assert view.spec is not None and view.spec.max_duration_us == 2 * HOUR
        assert [row.tier for row in client.jobs().jobs] == ["premium"]
        line = view.story[-1]
        assert line.what == "changed" and line.why == (
            f"changed by {ME}: name from old to new, tier from standard to premium, time limit from none to 2h00m"
        )
        with pytest.raises(UsageError, match="nothing to change"):
            client.update(job, SpecChanges())
        with pytest.raises(UsageError, match="both given"):
            client.update(job, SpecChanges(max_duration_us=HOUR, limit_by_us=1))
        with pytest.raises(UsageError, match="weight"):
            client.update(job, SpecChanges(weight=-1.0))


def test_a_name_is_of_one_job_and_not_empty(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        members = [_spec(f"a[{at}]", hold=True, array=ArrayMember("a", at, 2)) for at in range(2)]
        first = client.submit(members).ids[0]
        for ref, name, why in ((f"{first}", "new", "of one job"), (f"{first}_1", "", "empty")):
            with pytest.raises(UsageError, match=why):
                client.update(ref, SpecChanges(name=name))
        assert {one.name for one in client.jobs().jobs} == {"a[0]", "a[1]"}
        with pytest.raises(UsageError, match="brackets"):
            client.update(f"{first}_1", SpecChanges(name="b[3]"))


def test_why_names_who_holds_a_job_and_what_releases_it(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        busy, waits = client.submit([_spec("busy", devices=4, ranks=4), _spec("waits", devices=4, ranks=4)]).ids
        _until(client, busy, "running")
        with pytest.raises(Conflict, match="only a job that waits") as refused:
            client.hold(busy)
        assert refused.value.remedy == f"have it release its devices: tide suspend {busy}"
        client.hold(waits)
        why = client.why(waits)
        assert why.summary == f"kept from starting by {ME}" and why.reason == "UserHold"
        assert why.consequence == "waits; released by tide release"
        assert why.remedy == f"release it: tide release {waits}" and not why.searched
        client.resume(waits)
        assert client.job(waits).state == "queued"


def test_why_names_the_hold_of_a_job_that_waits_for_another_too(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (big,) = client.submit([_spec("big")]).ids
        (both,) = client.submit([_spec("both", hold=True, after=(Dependency("afterok", big),))]).ids
        why = client.why(both)
        assert why.summary == f"waits for job {big}; also kept from starting by {ME}" == client.job(both).why
        assert why.consequence == "waits; released when the named jobs have ended as asked and its hold is over"
        assert (why.reason, why.remedy) == ("Dependency", f"release it: tide release {both}")
        client.suspend(both)
        why = client.why(both)
        assert why.summary.endswith("; also suspended by its user") and why.remedy == f"release it: tide resume {both}"
        client.resume(both)
        assert client.why(both).summary == f"waits for job {big}"


def test_release_ends_a_suspension_too(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("one")]).ids
        _until(client, job, "running")
        client.suspend(job)
        _until(client, job, "held")
        client.release(job)
        _until(client, job, "running")


def test_why_says_how_a_higher_tier_is_asked_for() -> None:
    change = Change("tier", Code.HIGHER_TIER("premium", "basic"), "--sla premium", tier="premium")
    found = Explanation(job=18, state="QUEUED", waiting=True, reason=Reason.BEHIND, changes=(change,))
    said = why_live(JobView(id=18, name="later", state="queued"), found, 0, searched=True)
    assert [one.type for one in said.changes] == ["tide update 18 --sla premium"]


def test_a_smaller_size_is_typed_as_a_command_that_starts_the_job(running) -> None:  # type: ignore[no-untyped-def]
    """The job keeps its place; submitted anew with fewer devices it would come after the next one."""
    with running(policy=make("fifo")) as server, server.client() as client:
        specs = [_spec(f"j{devices}", devices=devices, ranks=devices) for devices in (2, 4, 2)]
        busy, job, later = client.submit(specs).ids
        _until(client, busy, "running")
        smaller = next(one for one in client.why(job).changes if one.cause.code == "FewerDevices")
        assert (smaller.text, smaller.type) == ("2 devices instead of 4", f"tide scale {job} 2")
        client.scale(job, 2)
        _until(client, job, "running")
        assert client.job(later).state == "queued"


def test_a_request_that_cannot_be_changed_is_what_would_have_been() -> None:
    """The job starts at once in the same pool, had it been submitted as is said; now nothing can be typed for it."""

    def submitted(**asked: Any) -> tuple[Worldlet, int]:
        pool = Worldlet(2, 4, planner=make("fifo"))
        for _ in range(2):
            pool.submit(3)
        job = pool.submit(2, **asked)
        pool.submit(1)
        return pool, job

    pool, job = submitted()
    found, view = explain(pool.engine, pool.planner, job), JobView(id=job, name="later", state="queued")
    (said,) = [one for one in why_live(view, found, 0, True).changes if one.cause.code == "HadItAsked"]
    assert (said.text, said.type) == (
        "let its ranks spread over nodes, had it been submitted with --placement any", "",
    )  # fmt: skip
    pool, job = submitted(placement="any")
    assert pool.state(job) is State.RUNNING


def test_a_requeued_job_runs_anew_and_an_ended_one_says_what_to_do(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("again")]).ids
        _until(client, job, "running")
        client.requeue(job)
        for _ in range(400):
            view = _until(client, job, "running")
            if view.attempt == 2:
                break
        assert view.attempt == 2 and any(line.why == f"requeued by {ME}" for line in view.story)
        client.cancel(job)
        client.wait(job, timeout=10)
        with pytest.raises(Conflict, match="cannot be requeued") as refused:
            client.requeue(job)
        assert refused.value.remedy.startswith("submit it again with tide run or tide submit")


def test_jobs_are_selected_by_all_filters_together(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        member = [_spec(f"sweep[{n}]", hold=True, team="a", array=ArrayMember("sweep", n, 2)) for n in range(2)]
        ids = client.submit([*member, _spec("one", hold=True, team="b"), _spec("two", team="b")]).ids
        _until(client, ids[3], "running")
        assert _selected(client, all=True) == ids and _selected(client) == ()
        assert _selected(client, name="sweep") == ids[:2] and _selected(client, name="sweep[1],one") == ids[1:3]
        assert _selected(client, team="b", state="held") == (ids[2],)
        assert _selected(client, team="b", state="running,held") == ids[2:]
        assert _selected(client, user=ME, team="a") == ids[:2] and _selected(client, user="nobody-here", all=True) == ()
        assert client.select("release", all=True) == Selection(
            jobs=ids[:3], users=(UserSelection(user=ME, jobs=3, states={"held": 3}),), others=1
        )
        assert _selected(client, "hold", all=True) == () and _selected(client, "requeue", all=True) == (ids[3],)
        with pytest.raises(UsageError, match="have ended"):
            client.select("cancel", state="failed")
        with pytest.raises(UsageError, match="not one of cancel"):
            client.select("shrink")  # type: ignore[arg-type]


def test_many_jobs_are_changed_in_one_request_each_with_its_own_answer(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        ids = client.submit([_spec(f"w{n}", devices=4, ranks=4) for n in range(6)]).ids
        _until(client, ids[0], "running")
        (held,) = client.bulk("hold", [*ids, 999])
        assert held.done == ids[1:] and [one.job for one in held.refused] == [ids[0], 999]
        assert held.refused[0].remedy == f"have it release its devices: tide suspend {ids[0]}"
        (released,) = client.bulk("release", ids[1:3])
        assert released.done == ids[1:3]
        (requeued,) = client.bulk("requeue", ids[:1], hold=True)
        assert requeued.done == ids[:1] and _until(client, ids[0], "held").attempt == 2
        client.cancel(ids[5])
        (cancelled,) = client.bulk("cancel", ids)
        assert cancelled.done == ids[:5] and cancelled.ended == 1 and cancelled.refused == ()


def test_the_same_bulk_request_again_gets_the_same_answer(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        ids = client.submit([_spec(f"w{n}", hold=True) for n in range(3)]).ids
        body = json.dumps({"action": "cancel", "jobs": ids, "op_id": "same"}).encode()
        head = b"POST /v1/bulk HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        answers = [json.loads(_raw(server.state, head + body)[2]) for _ in range(2)]
        assert answers[0] == answers[1] and answers[0]["done"] == list(ids)
        assert client.job(ids[0]).why == f"cancelled by {ME}"


def test_thousands_of_waiting_jobs_are_cancelled_in_one_request(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        spec = JobSpec(command=("sleep", "9"), hold=True)
        ids = client.submit([spec] * 2_500).ids
        assert _selected(client, state="held") == ids
        (reply,) = client.bulk("cancel", ids)
        assert reply.done == ids and client.info().live_jobs == 0


def test_a_remote_caller_is_named_by_the_token(running) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    with running(listen=f"127.0.0.1:{port}") as server, server.client() as client:
        (job,) = client.submit([_spec("mine", hold=True)]).ids
        token = (server.state / "token").read_text().strip()
        with Client(url=f"http://127.0.0.1:{port}", token=token) as remote:
            remote.release(job)
            remote.update(job, SpecChanges(weight=2.0))
            assert _selected(remote, user=ME) == (job,)
            assert [one.done for one in remote.bulk("cancel", [job])] == [(job,)]
        found = client.job(job).story
        assert "changed by [token]: weight from 1 to 2" in [line.why for line in found]


def test_after_a_crash_all_of_it_is_as_it_was_answered(running, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The copy is what a kill -9 leaves: of an answered request everything is on disk."""
    with running() as server, server.client() as client:
        ids = client.submit([_spec("held", hold=True), _spec("moved", devices=4, ranks=4, max_duration_us=HOUR)]).ids
        _until(client, ids[1], "running")
        client.update(ids[0], SpecChanges(tier="premium", team="z", deadline_us=HOUR))
        client.update(ids[1], SpecChanges(limit_by_us=MINUTE))
        client.requeue(ids[1], hold=True)
        _until(client, ids[1], "held")
        before = [client.job(job) for job in ids]
        shutil.copytree(server.state, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock", "*.lock"))
    with Running(tmp_path / "copy", FakeFabric()) as again, again.client() as client:
        assert [_lasting(client.job(job)) for job in ids] == [_lasting(view) for view in before]
        assert client.job(ids[0]).spec.tier == "premium" and client.job(ids[1]).spec.max_duration_us == HOUR + MINUTE  # type: ignore[union-attr]


def _lasting(view: JobView) -> tuple[object, ...]:
    """What does not change while a job is held."""
    return view.id, view.name, view.state, view.why, view.tier, view.team, view.spec, view.story, view.attempt
