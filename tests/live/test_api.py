"""The API of a real controller on a real unix socket; only the agent is made up."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from tests.ports import free_port
from tidewright.base.errors import Conflict, NotFound, UsageError
from tidewright.base.units import SECOND
from tidewright.model.job import ArrayMember, JobSpec
from tidewright.model.notify import Notify
from tidewright.policy.registry import make
from tidewright.wire import api
from tidewright.wire.openapi import ROUTES, document

from .fakes import FakeFabric, FirstFit
from .harness import Running


def _spec(name: str = "", command: tuple[str, ...] = ("sleep", "9"), **more: object) -> JobSpec:
    return JobSpec(name=name, command=command, **more)  # type: ignore[arg-type]


def _until(client, ref, state: str) -> api.JobView:  # type: ignore[no-untyped-def]
    for _ in range(400):
        view = client.job(ref)
        if view.state == state:
            return view
        threading.Event().wait(0.01)
    raise AssertionError(f"{ref} is {view.state}, never became {state}: {view.why}")


def test_a_job_runs_and_its_exit_code_comes_back(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        reply = client.submit([_spec("hello", ("true",), env={"SECRET": "x"})])
        done = client.wait(reply.ids[0], timeout=10)
        assert (done.final, done.exit_code, done.state) == (True, 0, "completed")
        view = client.job("hello")
        assert view.id == reply.ids[0] and view.spec is not None and view.story[0].what == "submitted"
        assert view.spec.env == {"SECRET": "…"}
        assert [job.id for job in client.jobs(all=True).jobs] == [view.id]
        assert client.jobs().jobs == ()
        assert client.usage("tier").rows[0].key == "standard"
        assert client.info().ended_jobs == 1


def test_a_suspension_for_a_time_says_when_it_ends(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("timed")]).ids
        _until(client, job, "running")
        until = client.info().now + 600 * SECOND
        client.suspend(job, until)
        assert _until(client, job, "held").held_until == until
        assert re.fullmatch(r"waits; released in (9m[0-9]+s|10m00s), or by tide resume", client.why(job).consequence)
        client.suspend(job)
        assert client.job(job).held_until == 0 and client.why(job).consequence == "waits; released by tide resume"


def test_why_looks_for_changes_where_they_may_lift_the_limit_and_says_who_is_first(running) -> None:  # type: ignore[no-untyped-def]
    with running(policy=make("fifo")) as server, server.client() as client:
        ids = client.submit([_spec(f"w{number}", devices=4, ranks=4) for number in range(4)]).ids
        _until(client, ids[0], "running")
        found = client.why(ids[2])
        assert found.searched and found.changes and found.ahead == 1
        assert [one.code for one in found.order] == ["AheadByAge"]
        assert found.first_ahead is not None and found.first_ahead.args["job"] == ids[1]
        assert not client.why(ids[2], changes=False).searched
        client.suspend(ids[3])
        held = client.why(ids[3])
        assert (held.reason, held.searched, held.changes) == ("UserHold", False, ())
        assert held.remedy == f"release it: tide resume {ids[3]}" and held.dead_end is None
        dead = client.why(client.submit([_spec("last", devices=4, ranks=4, tier="premium")]).ids[0])
        assert dead.searched and dead.changes and dead.dead_end is None and not dead.remedy
        assert not client.why(ids[0]).searched


def test_members_of_an_array_are_named_as_they_are_listed(running) -> None:  # type: ignore[no-untyped-def]
    with running(policy=make("fifo")) as server, server.client() as client:
        members = [_spec(f"sweep[{n}]", devices=4, ranks=4, array=ArrayMember("sweep", n, 12)) for n in range(12)]
        ids = client.submit(members).ids
        listed = [job.name for job in client.jobs().jobs]
        for name, job in zip(listed, ids, strict=True):
            assert client.why(name, changes=False).job == client.why(job, changes=False).job == job
        assert client.eta("sweep[2]").job == ids[2]
        client.cancel("sweep[11]")
        _until(client, ids[11], "cancelled")
        assert client.why("sweep[11]").job == client.eta("sweep[11]").job == ids[11]
        for ask in (client.why, client.eta):
            assert ask("sweep").job == ids[1], "the first that waits"
            for unknown in (9999, "sweep[77]", "99_3"):
                with pytest.raises(NotFound, match="no job") as missing:
                    ask(unknown)
                assert "list jobs with tide ps --all" in missing.value.remedy
                assert ("name[index]" in missing.value.remedy) is (unknown != 9999)


def test_suspend_resume_cancel(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("a")]).ids
        _until(client, job, "running")
        client.suspend(job)
        _until(client, job, "held")
        client.resume("a")
        assert _until(client, job, "running").where[0].node == "here"
        client.cancel(job)
        assert client.wait(job, 10).state == "cancelled"
        with pytest.raises(Conflict):
            client.cancel(job)
        with pytest.raises(NotFound) as unknown:
            client.cancel(99)
        assert (unknown.value.cause.code, unknown.value.cause.args) == ("NoSuchJob", {"job": 99})


def test_a_move_to_where_the_job_is_is_refused(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("a")]).ids
        _until(client, job, "running")
        with pytest.raises(Conflict, match=f"tide migrate {job}") as refused:
            client.migrate("a", ("here",))
        assert (refused.value.cause.code, refused.value.cause.args) == (
            "AlreadyThere",
            {"job": job, "nodes": ("here",)},
        )


def test_why_and_dry_run_speak_of_the_same_limit(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        client.submit([_spec("holder", devices=4, ranks=4)])
        _until(client, "holder", "running")
        rehearsed = client.submit([_spec("late", devices=2, ranks=2)], dry_run=True)
        assert rehearsed.dry_run and rehearsed.ids == () and "would wait" in rehearsed.forecast[0]
        assert [job.name for job in client.jobs().jobs] == ["holder"]
        client.submit([_spec("late", devices=2, ranks=2)])
        assert client.why("late").state == "queued"
        assert client.why("late").summary


def test_never_fits_is_refused_with_the_nearest(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        _until_node(client)
        with pytest.raises(UsageError, match="has 4") as caught:
            client.submit([_spec(devices=5, ranks=5)])
        assert "-g 4" in caught.value.remedy


def _until_node(client) -> None:  # type: ignore[no-untyped-def]
    for _ in range(400):
        if client.nodes().nodes:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no node came")


def test_one_bad_member_refuses_the_whole_array(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        members = [_spec(array=ArrayMember("sweep", n, 3)) for n in range(2)]
        with pytest.raises(UsageError, match=r"specs\[2\]"):
            client.submit([*members, JobSpec()])
        assert client.jobs().jobs == ()


def test_a_repeated_op_id_submits_once(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        first = client.submit([_spec("x")], op_id="same")
        assert client.submit([_spec("x")], op_id="same").ids == first.ids
        assert len(client.jobs().jobs) == 1


def test_names_that_several_live_jobs_share_are_not_guessed(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        ids = client.submit([_spec("twin"), _spec("twin")]).ids
        with pytest.raises(Conflict, match=f"{ids[0]}, {ids[1]}"):
            client.job("twin")


@pytest.mark.parametrize(
    ("kind", "full", "level"), [("cpu", True, "full"), ("cpu", False, "freeze"), ("h100", False, "cooperative")]
)
def test_a_node_says_what_it_can_do(running, kind: str, full: bool, level: str) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    fabric.node = msgspec.structs.replace(fabric.node, kind=kind, full=full)
    with running(fabric) as server, server.client() as client:
        _until_node(client)
        assert client.nodes().nodes[0].level == level


def test_drain_keeps_work_off(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        _until_node(client)
        client.drain("here", "disk swap")
        node = client.nodes().nodes[0]
        assert (node.state, node.why, node.free) == ("draining", "disk swap", 0)
        (job,) = client.submit([_spec()]).ids
        client.undrain("here")
        _until(client, job, "running")
        with pytest.raises(NotFound):
            client.drain("there")
        for why in ("two\nlines", "\x1b[2J", "x" * 501):
            with pytest.raises(UsageError, match="reason is not right"):
                client.drain("here", why)


def test_events_are_seen_and_resume_after_an_id(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("e", ("true",))]).ids
        client.wait(job, 10)
        stream = client.events(last="0.0")
        seen = []
        for event in stream:
            seen.append(event)
            if event.state == "completed":
                break
        stream.close()
        assert [event.state for event in seen if event.job == job][-1] == "completed"
        assert seen[-1].exit_code == 0
        again = client.events(last=seen[-2].seq)
        assert next(again).seq == seen[-1].seq
        again.close()


def test_logs_survive_attempts_and_follow_to_the_end(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([_spec("log", retries=1)]).ids
        _until(client, job, "running")
        folder = server.state / "logs" / str(job)
        folder.mkdir(parents=True)
        (folder / "rank0.1.log").write_bytes(b"one\ntwo\n")
        assert b"".join(client.logs(job)) == b"one\ntwo\n"
        assert b"".join(client.logs(job, tail=1)) == b"two\n"
        server.soon(lambda: fabric.finish((job, 1), 3))
        _until(client, job, "held")
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.extend(server.client().logs(job, follow=True)))
        reader.start()
        _until(client, job, "running")
        (folder / "rank0.2.log").write_bytes(b"three\n")
        server.soon(lambda: fabric.finish((job, 2), 0))
        reader.join(10)
        assert b"".join(got) == b"one\ntwo\nthree\n"
        with pytest.raises(NotFound, match="no rank 7"):
            list(client.logs(job, rank=7))
        assert b"".join(client.logs(job, attempt=1)) == b"one\ntwo\n", "of a job that has ended"
        assert b"".join(client.logs(job, attempt=2)) == b"three\n"
        with pytest.raises(NotFound, match="has had 2 attempts"):
            list(client.logs(job, attempt=3))


def test_logs_of_all_ranks(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([_spec("gang", ranks=3, devices=1, min_devices=1)]).ids
        _until(client, job, "running")
        folder = server.state / "logs" / str(job)
        folder.mkdir(parents=True)
        for rank in range(3):
            (folder / f"rank{rank}.1.log").write_bytes(b"one\n%d without an end" % rank)
        lines = [b"[rank %d] %s" % (rank, text) for rank in range(3) for text in (b"one", b"%d without an end" % rank)]
        assert b"".join(client.logs(job, rank=None)).splitlines() == lines, "rank after rank"
        assert b"".join(client.logs(job, rank=None, tail=1)).splitlines() == lines[1::2]
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.extend(server.client().logs(job, rank=None, follow=True)))
        reader.start()
        for rank in range(3):
            with (folder / f"rank{rank}.1.log").open("ab") as log:
                log.write(b", now with one\n")
        server.soon(lambda: fabric.finish((job, 1), 0))
        reader.join(10)
        assert sorted(b"".join(got).splitlines()) == sorted(
            line + b", now with one" * line.endswith(b"end") for line in lines
        )


def _raw(state: Path, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(state / "controller.sock"))
        sock.sendall(request)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "truncated"),
        (b'{"specs":[{"devices":"four"}]}', "$.specs[0].devices"),
        (b'{"specs":[{"command":["a"],"gpus":4}]}', "gpus"),
        (b'{"specs":[]}', "specs: empty"),
        (b"\xff\xfe", "not right"),
        (b"[" * 100_000, "not right"),
    ],
)
def test_malformed_bodies_name_the_field(running, body: bytes, says: str) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        status, _, data = _raw(server.state, head + body)
        error = json.loads(data)
        assert status == 400 and says in error["error"] and error["remedy"] and error["schema"] == "tidewright/v2"


def test_bodies_over_the_limit_are_refused(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (api.MAX_BODY + 1)
        assert _raw(server.state, head + b" " * (api.MAX_BODY + 1))[0] == 413
        chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
        chunked = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 9 + b"0\r\n\r\n"
        assert _raw(server.state, chunked)[0] == 413


def test_unknown_addresses_and_queries(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        assert _raw(server.state, b"GET /v2/jobs HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 404
        assert _raw(server.state, b"DELETE /v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 405
        with pytest.raises(UsageError, match="is not one of held"):
            client.jobs(state="asleep")
        with pytest.raises(UsageError, match="not one of"):
            client.usage("colour")
        with pytest.raises(UsageError, match="not an event id"):
            next(client.events(last="yesterday"))


def test_every_route_answers_with_the_schema(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        client.submit([msgspec.structs.replace(_spec("one"), notify=Notify(("end",), ("ann",)))])
        for route in ROUTES:
            if route.method != "GET" or route.name == "events":
                continue
            path = route.path.replace("{ref}", "one") + ("?timeout=0" if route.name == "wait" else "")
            status, headers, data = _raw(server.state, b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
            assert status == 200, (route.name, data)
            assert headers["content-type"].startswith(route.media)
            if route.answer is not None:
                assert json.loads(data)["schema"] == api.SCHEMA


def test_metrics_are_prometheus_text(running) -> None:  # type: ignore[no-untyped-def]
    from prometheus_client.parser import text_string_to_metric_families

    with running() as server, server.client() as client:
        (job,) = client.submit([_spec("m", ("true",))]).ids
        client.wait(job, 10)
        families = {family.name: family for family in text_string_to_metric_families(client.metrics())}
        assert all(name.startswith("tidewright_") for name in families)
        ended = {sample.labels["state"]: sample.value for sample in families["tidewright_jobs_ended"].samples}
        assert ended["completed"] == 1


def test_every_metric_is_on_its_page(running, pytestconfig: pytest.Config) -> None:  # type: ignore[no-untyped-def]
    from prometheus_client.parser import text_string_to_metric_families

    with running() as server, server.client() as client:
        samples = [one for family in text_string_to_metric_families(client.metrics()) for one in family.samples]
    page = (pytestconfig.rootpath / "docs" / "metrics.md").read_text()
    assert [one.name for one in samples if f"`{one.name}" not in page] == []


def test_the_journal_replays_to_the_same_book(running) -> None:  # type: ignore[no-untyped-def]
    from tidewright.drive.replay import replay
    from tidewright.engine.settings import live_settings

    with running() as server, server.client() as client:
        client.wait(client.submit([_spec("j", ("true",))]).ids[0], 10)
        header, *records = b"".join(client.journal()).splitlines()
        assert json.loads(header)["tidewright_journal"] == 1
        assert replay(records, live_settings()).book.outcomes == {1: 8}


def test_the_socket_and_the_journal_are_private(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        for name in ("controller.sock", "journal.db", "journal.db-wal", "journal.mark"):
            assert stat.S_IMODE((server.state / name).stat().st_mode) & 0o077 == 0, name


def test_a_state_directory_deeper_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / "state"
    with Running(deep, FakeFabric()) as server, server.client() as client:
        assert client.info().state_dir == str(deep)


def test_tcp_wants_the_token(running) -> None:  # type: ignore[no-untyped-def]
    from tidewright.wire.client import Client

    port = free_port()
    with running(listen=f"127.0.0.1:{port}") as server:
        token = (server.state / "token").read_text().strip()
        with Client(url=f"http://127.0.0.1:{port}", token=token) as client:
            assert client.info().policy == "first-fit"
        for wrong in (None, "", token[:-1], token + "x"):
            with Client(url=f"127.0.0.1:{port}", token=wrong) as client, pytest.raises(UsageError, match="token"):
                client.info()


def test_a_token_others_can_read_is_refused(running) -> None:  # type: ignore[no-untyped-def]
    server = running(listen="127.0.0.1:0")
    server.state.mkdir()
    (server.state / "token").write_text("x" * 43)
    os.chmod(server.state / "token", 0o644)
    with pytest.raises(UsageError, match="read or replaced by others"), server:
        pass


def test_a_port_in_use_is_said_so(running) -> None:  # type: ignore[no-untyped-def]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="in use"), running(listen=f"127.0.0.1:{taken.getsockname()[1]}"):
            pass


def test_a_second_controller_is_refused_naming_the_first(running) -> None:  # type: ignore[no-untyped-def]
    with running(), pytest.raises(UsageError, match=f"pid {os.getpid()}"), running():
        pass


def test_jobs_outlive_the_controller(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([_spec("long")]).ids
        _until(client, job, "running")
    fabric.finish((job, 1), 0)
    with running(fabric) as server, server.client() as client:
        assert client.wait(job, 10).exit_code == 0
        assert client.info().epoch == 2
    assert fabric.starts == [(job, 1)]


def test_a_planner_that_raises_stops_nothing(running) -> None:  # type: ignore[no-untyped-def]
    class Moody(FirstFit):
        rounds = 0

        def plan(self, view):  # type: ignore[no-untyped-def]
            self.rounds += 1
            if self.rounds == 1:
                raise RuntimeError("not today")
            return super().plan(view)

    with running(policy=Moody()) as server, server.client() as client:
        assert client.wait(client.submit([_spec("p", ("true",))]).ids[0], 10).exit_code == 0


def test_openapi_names_every_route_and_resolves() -> None:
    found = document("1")
    ids = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert sorted(ids) == sorted(route.name for route in ROUTES)
    text = json.dumps(found)
    wanted = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert wanted <= set(found["components"]["schemas"])


def test_what_no_node_could_start_is_refused_at_submit(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        for spec, says in (
            (_spec(env={"BIG": "x" * 3 * 2**20}), "env['BIG']: 3145732 bytes"),
            (_spec(workdir="here"), "workdir: 'here' is not absolute"),
            (_spec(command=("a\0b",)), "command[0]: holds a zero byte"),
        ):
            with pytest.raises(UsageError) as refused:
                client.submit([spec])
            assert says in str(refused.value)
        with pytest.raises(UsageError, match=r"^specs\[1\]") as refused:
            client.submit([_spec(), _spec(workdir="here")])
        cause = refused.value.cause
        assert (cause.code, cause.args["index"], cause.args["why"].code) == ("OneOfSpecs", 1, "SpecWrong")
        assert client.jobs(all=True).jobs == ()


def test_a_method_that_is_not_possible_is_answered_with_those_that_are(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        for request, allowed in (
            (b"DELETE /v1/jobs", {"GET", "HEAD", "POST"}),
            (b"PUT /v1/jobs/7", {"GET", "HEAD"}),
            (b"GET /v1/shutdown", {"POST"}),
        ):
            status, headers, data = _raw(server.state, request + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            assert status == 405 and set(headers["allow"].split(", ")) == allowed
            assert json.loads(data)["code"] == "usage"


def test_the_tail_of_a_log_without_line_feeds_is_short(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        (job,) = client.submit([_spec("bar")]).ids
        _until(client, job, "running")
        path = server.state / "logs" / str(job) / "rank0.1.log"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.write(b"start\n")
            for step in range(40_000):
                file.write(b"\rstep %06d of many" % step)
        got = b"".join(client.logs(job, tail=2))
        assert 0 < len(got) <= 64 * 1024 and got.endswith(b"step 039999 of many")
        assert path.stat().st_size == len(b"".join(client.logs(job)))


def test_queries_and_bodies_are_bounded_as_the_document_says(running) -> None:  # type: ignore[no-untyped-def]
    import jsonschema

    found = document("1")
    with running() as server, server.client() as client:
        client.submit([_spec("one")])
        for path, operations in found["paths"].items():
            for param in operations.get("get", {"parameters": []})["parameters"]:
                if param["in"] != "query" or not set(param["schema"]) - {"type"}:
                    continue
                for value in (-1, 0, 1, 2, "x", "team"):
                    address = path.replace("{ref}", "one") + f"?{param['name']}={value}"
                    address += "&timeout=0" if path.endswith("wait") and param["name"] != "timeout" else ""
                    if (param["name"], value) in (("timeout", 1), ("timeout", 2), ("follow", 1)):
                        continue  # these wait
                    status = _raw(server.state, f"GET {address} HTTP/1.1\r\nhost: x\r\n\r\n".encode())[0]
                    allowed = jsonschema.Draft202012Validator(param["schema"]).is_valid(value)
                    assert (status != 400) == allowed, (address, status)
        with pytest.raises(UsageError, match="negative"):
            client.scale("one", -1)
        with pytest.raises(UsageError, match="passed"):
            client.suspend("one", until_us=-1)
