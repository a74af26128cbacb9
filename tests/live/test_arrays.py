"""Arrays as one handle in the API of a real controller: references, one request to many members, lists, dependencies."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest

from tidewright.base.errors import Conflict, NotFound, UsageError
from tidewright.model.job import ArrayMember, Dependency, JobSpec
from tidewright.model.spec_changes import SpecChanges
from tidewright.wire import api

from .fakes import FakeFabric

PAUSE = threading.Event()


def _members(name: str, size: int, limit: int = 0, **more: Any) -> list[JobSpec]:
    fields = {"command": ("sleep", "9"), **more}
    return [JobSpec(name=f"{name}[{at}]", array=ArrayMember(name, at, size, limit), **fields) for at in range(size)]


def _until(ask: Any, wanted: Any) -> None:
    for _ in range(400):
        if (found := ask()) == wanted:
            return
        PAUSE.wait(0.01)
    raise AssertionError(f"{found} never became {wanted}")


def _states(client: Any, ref: str) -> dict[str, int]:
    array = client.lookup(ref).array
    return array.states if array is not None else {}


def test_an_array_is_addressed_as_a_whole_and_by_its_members(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first, *rest = client.submit(_members("sweep", 6, 2)).ids
        _until(lambda: _states(client, str(first)), {"running": 2, "held": 4})
        reply = client.lookup(first)
        assert reply.job.id == first and reply.array is None, "a number is one job, the first member"
        assert (reply.job.array, reply.job.array_index, reply.job.array_limit) == (first, 0, 2)
        whole = client.lookup("sweep").array
        assert (whole.id, whole.size, whole.limit, [one.index for one in whole.members]) == (first, 6, 2, [*range(6)])
        assert client.job(f"{first}_3").id == rest[2] and client.job("sweep[3]").id == rest[2]
        assert [one.job for one in client.lookup(f"{first}_[1,3-4%2]").array.members] == [rest[0], rest[2], rest[3]]
        why = client.why(str(first), changes=False)
        assert (why.array, why.waiting, why.job, why.reason) == (first, 4, rest[1], "ArrayLimit")
        assert client.eta("sweep").job == rest[1]
        for ask in (client.migrate, lambda ref: b"".join(client.logs(ref))):
            with pytest.raises(Conflict, match="several members of array sweep") as error:
                ask(str(first))
            assert error.value.remedy == f"name one of them, e.g. '{first}_0'"
        with pytest.raises(NotFound, match=rf"array {first} \(sweep\) has no members 7-9") as missing:
            client.cancel(f"{first}_[7-9]")
        assert missing.value.remedy == "list its members: tide ps --all --name sweep"
        for unknown in ("99_3", f"{rest[0]}_1", "१", f"{first}_१"):
            with pytest.raises(NotFound, match="no job called"):
                client.job(unknown)


def test_one_request_acts_on_every_member_and_says_what_it_left(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first, *rest = client.submit(_members("sweep", 5, 2)).ids
        _until(lambda: _states(client, "sweep"), {"running": 2, "held": 3})
        held = client.suspend(str(first))
        assert (held.array, held.jobs, held.refused) == (first, (first, *rest), 0)
        _until(lambda: _states(client, "sweep"), {"held": 5})
        assert client.resume(f"{first}_[0,4]").jobs == (first, rest[3])
        assert client.resume("sweep").jobs == tuple(rest[:3]), "those that are not suspended are not concerned"
        with pytest.raises(Conflict, match="not held"):
            client.resume(str(first))
        client.cancel(f"{first}_4")
        left = client.cancel(f"{first}_[3-4]")
        assert left.jobs == (rest[2],)
        assert client.cancel(first).jobs == () and client.wait(first, 10).state == "cancelled"
        assert client.job(rest[0]).state not in api.FINAL_STATES, "a number cancels one job alone"
        client.cancel(str(first))
        done = client.wait(str(first), 10)
        assert (done.final, done.array, done.exit_code, done.failed) == (True, first, 143, 5)
        assert done.why == "5 of 5 members did not complete (5 cancelled)"
        with pytest.raises(Conflict, match=f"every member of array {first} has already ended"):
            client.cancel(str(first))


def test_a_wait_for_an_array_ends_with_the_worst_exit_code(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        ids = client.submit(_members("sweep", 4)).ids
        _until(lambda: _states(client, "sweep"), {"running": 4})
        for job, code in zip(ids, (0, 3, 7, 0), strict=True):
            assert not client.wait("sweep", 0.0).final
            server.soon(lambda job=job, code=code: fabric.finish((job, 1), code))
        done = client.wait(str(ids[0]), 10)
        assert (done.exit_code, done.failed, [one.index for one in done.members]) == (7, 2, [1, 2])
        assert client.wait(f"{ids[0]}_[0,3]", 10).exit_code == 0 and client.wait(f"{ids[0]}_1", 10).exit_code == 3
        shown = client.lookup("sweep")
        assert shown.array.states == {"completed": 2, "failed": 2} and [
            one.exit_code for one in shown.array.members
        ] == [0, 3, 7, 0]
        assert client.job(f"{ids[0]}_2").exit_code == 7 and len(client.jobs(all=True, name="sweep").jobs) == 4


def test_the_list_has_one_entry_for_members_that_wait_alike(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first = client.submit(_members("sweep", 2000, 3)).ids[0]
        client.submit([JobSpec(name="other", command=("sleep", "9"))])
        _until(lambda: _states(client, "sweep"), {"running": 3, "held": 1997})
        rows = client.jobs(collapse=True).jobs
        assert [(row.name, row.array_waiting) for row in rows[:4]] == [
            ("sweep[0]", ""), ("sweep[1]", ""), ("sweep[2]", ""), ("sweep", "3-1999"),
        ]  # fmt: skip
        assert len(rows) == 5 and rows[3].array_limit == 3 and rows[4].name == "other"
        assert len(client.jobs(collapse=True, name="sweep", state="held").jobs) == 1
        assert len(client.jobs(name="sweep").jobs) == 2000
        client.suspend(f"{first}_[10-19]")
        rows = client.jobs(collapse=True, state="held").jobs
        assert [(row.array_waiting, row.reason) for row in rows] == [
            ("3-9,20-1999", "ArrayLimit"),
            ("10-19", "UserHold"),
        ]
        assert client.array_limit("sweep", 0).job == first and len(client.jobs(state="held").jobs) == 10
        for ref, limit, error in ((f"{first}_1", 2, UsageError), ("other", 2, NotFound), ("sweep", -1, UsageError)):
            with pytest.raises(error):
                client.array_limit(ref, limit)


def test_an_array_may_come_in_several_requests(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        one, two = _members("sweep", 4)[:2], _members("sweep", 4)[2:]
        first = client.submit(one).ids[0]
        joined = [JobSpec(name=spec.name, command=spec.command, array=ArrayMember("sweep", spec.array.index, 4, 0, first))
                  for spec in two if spec.array]  # fmt: skip
        client.submit(joined)
        assert len(client.lookup(str(first)).array.members) == 4
        alone = client.submit([JobSpec(name="alone", command=("sleep", "9"))]).ids[0]
        for array in (
            ArrayMember("sweep", 9, 9, 0, 99),
            ArrayMember("sweep", 9, 9, 0, alone),
            ArrayMember("x", 9, 9, 0, first),
        ):
            with pytest.raises(NotFound, match="submitted no array"):
                client.submit([JobSpec(command=("x",), array=array)])
        twice = client.submit([*_members("twin", 2), *_members("twin", 2)]).ids
        assert client.job(twice[2]).array == twice[2] and client.job(twice[1]).array == twice[0]


def test_dependencies_are_looked_up_when_they_are_submitted(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        prep = client.submit([JobSpec(name="prep", command=("sleep", "9"))]).ids[0]
        first, *rest = client.submit(_members("sweep", 3)).ids

        def after(*words: str, **more: Any) -> tuple[Dependency, ...]:
            (job,) = client.submit([JobSpec(command=("x",), **more)], after=words).ids
            spec = client.job(job).spec
            return spec.after if spec is not None else ()

        assert after("afterok:prep,afterany:sweep") == (
            Dependency("afterok", prep),
            Dependency("afterany", first, True),
        )
        assert after(f"afterok:{first}") == (Dependency("afterok", first, True),)
        assert after(f"afternotok:{first}_2:sweep[0]") == (
            Dependency("afternotok", rest[1]),
            Dependency("afternotok", first),
        )
        assert after(f"afterok:{first}_[0-1]") == (Dependency("afterok", first), Dependency("afterok", rest[0]))
        ids = client.submit(_members("next", 3), after=["aftercorr:sweep"]).ids
        found = [client.job(job).spec.after for job in ids]
        assert found == [(Dependency("afterok", job),) for job in (first, *rest)]
        for words, said in (
            ("afterok:nothing", "afterok:nothing: no job called 'nothing'"),
            (f"afterok:{first}_9", rf"afterok:{first}_9: array {first} \(sweep\) has no member 9"),
            ("afterok:99", "depends on job 99, which is unknown"),
            ("aftercorr:prep", "aftercorr:prep: this is no array"),
            ("aftercorr:sweep", "aftercorr:sweep: the job is no member of an array"),
            ("never:1", "not a dependency"),
        ):
            with pytest.raises(UsageError, match=said):
                after(words)
        with pytest.raises(NotFound, match="aftercorr:sweep: it has no member 3"):
            client.submit(_members("more", 4), after=["aftercorr:sweep"])
        again = _members("sweep", 2)
        ids = client.submit(again, after=["afterok:sweep"]).ids
        assert client.job(ids[1]).spec.after == (Dependency("afterok", first, True),)


def test_ended_members_are_found_after_a_restart_and_in_a_repaired_journal(running) -> None:  # type: ignore[no-untyped-def]
    from tidewright.live.journal.doctor import repair

    with running() as server, server.client() as client:
        ids = client.submit(_members("sweep", 3, command=("true",))).ids
        assert client.wait(str(ids[0]), 10).exit_code == 0
        state = server.state
    with running() as server, server.client() as client:
        assert _states(client, f"{ids[0]}_[0-2]") == {"completed": 3} and client.job(f"{ids[0]}_2").id == ids[2]
    db = sqlite3.connect(state / "journal.db")
    db.execute("UPDATE ended SET seal = x'00' WHERE job = ?", (ids[1],))
    db.execute("DROP TABLE array_members")
    db.commit()
    db.close()
    repair(state)
    with running() as server, server.client() as client:
        assert _states(client, "sweep") == {"completed": 3}
        assert client.submit([JobSpec(command=("true",))], after=["afterok:sweep"]).ids


def test_an_array_is_changed_held_released_and_requeued_as_one(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first, *rest = client.submit(_members("sweep", 4, 2)).ids
        _until(lambda: _states(client, "sweep"), {"running": 2, "held": 2})
        assert client.update("sweep", SpecChanges(tier="basic")).jobs == (first, *rest)
        assert {job.tier for job in client.jobs().jobs} == {"basic"}
        assert client.hold(str(first)).jobs == tuple(rest[1:]), "those that run are not concerned"
        assert client.release("sweep").jobs == tuple(rest[1:])
        assert client.requeue(f"{first}_[0-1]", hold=True).jobs == (first, rest[0])
        with pytest.raises(NotFound, match="is one job, and the limit is of an array"):
            client.array_limit(str(client.submit([JobSpec(command=("true",))]).ids[0]), 3)
        assert client.hold(rest[1]).job == rest[1] and client.job(rest[2]).reason == "ArrayLimit"


def test_a_suspension_says_which_members_had_no_devices_and_a_log_needs_a_start(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first, *rest = client.submit(_members("sweep", 4, 2)).ids
        _until(lambda: _states(client, "sweep"), {"running": 2, "held": 2})
        assert client.job(first).logs and client.job(rest[2]).logs == (), "no rank of it has ever been on a node"
        reply = client.suspend("sweep")
        assert (len(reply.jobs), reply.waiting) == (4, 2)
        assert client.suspend(rest[2]).waiting == 1
