"""Corners of the live world that a review found broken: each test failed before its correction."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.explain.rehearsal import rehearse
from tidewright.live.api import logs
from tidewright.live.api.event_stream import EventStream
from tidewright.live.api.routes import EVENTS_AT_A_TIME, Routes
from tidewright.live.api.views import live_job
from tidewright.live.controller.agent_supervisor import AgentSupervisor, LocalAgent
from tidewright.live.journal.store import Journal, JournalFull
from tidewright.live.reconcile.agent_pool import AgentPool
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.model.view import View
from tidewright.plan.moves import Start
from tidewright.plan.plan import Plan, Wake
from tidewright.plan.reasons import Blocked, Reason
from tidewright.testing.worldlet import Worldlet
from tidewright.wire import agent as wire
from tidewright.wire.api import JobEvent

from .fakes import FakeFabric, FirstFit
from .test_reconciler import Play


def _until(true, seconds: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("never")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``disk.full = True`` fills it up."""
    state, real = SimpleNamespace(full=False), Journal._write

    def write(journal: Journal, work: Any) -> None:
        if state.full:
            raise JournalFull("journal.db cannot be written: database or disk is full")
        real(journal, work)

    monkeypatch.setattr(Journal, "_write", write)
    monkeypatch.setattr("tidewright.live.controller.loop.COMMIT_RETRY_S", 0.05)
    return state


def _fill(server, client, fabric: FakeFabric, disk: SimpleNamespace) -> int:  # type: ignore[no-untyped-def]
    """A job has exited with code 5, and no disk takes note of it."""
    (job,) = client.submit([JobSpec(command=("sleep",))]).ids
    _until(lambda: client.job(job).state == "running")
    disk.full = True
    server.soon(lambda: fabric.finish((job, 1), 5))
    _until(lambda: client.info().notices)
    return int(job)


def test_a_controller_can_be_stopped_while_the_disk_is_full(running, disk: SimpleNamespace) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        job = _fill(server, client, fabric, disk)
    disk.full = False
    with running(fabric) as server, server.client() as client:
        assert client.wait(job, 10).exit_code == 5, "an end that was never durable is heard of again"


def test_no_record_of_an_attempt_is_forgotten_before_its_end_is_durable(running, disk: SimpleNamespace) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        job, tell = _fill(server, client, fabric, disk), fabric._on_report
        assert tell is not None
        server.soon(lambda: tell("here", fabric.jobs[job, 1]))
        time.sleep(0.2)
        assert "forget" not in [method for method, _ in fabric.calls]
        disk.full = False
        assert client.wait(job, 10).exit_code == 5
        _until(lambda: "forget" in [method for method, _ in fabric.calls])


def test_a_plan_that_is_none_or_cannot_be_written_down_is_a_failed_planning_round(running) -> None:  # type: ignore[no-untyped-def]
    class Careless(FirstFit):
        def __init__(self) -> None:
            self.answers: list[Any] = [Start(1, ((np.int64(0), 1.5),), "a device and a half"), None]  # type: ignore[arg-type]

        def plan(self, view: View) -> Plan:
            if not view.jobs.n or not self.answers:
                return super().plan(view)
            answer = self.answers.pop()
            return answer and Plan(view.revision, (answer,))  # type: ignore[no-any-return]

    planner = Careless()
    with running(policy=planner) as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("true",))]).ids
        assert client.wait(job, 15).exit_code == 0
        assert not planner.answers


def test_a_hold_beyond_a_century_is_refused(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        (job,) = client.submit([JobSpec(command=("sleep",))]).ids
        with pytest.raises(UsageError, match="until_us"):
            client.suspend(job, until_us=2**63)


def test_a_dry_run_plans_although_the_last_plan_waits_for_no_arrival() -> None:
    class Head(FirstFit):
        def plan(self, view: View) -> Plan:
            return msgspec.structs.replace(super().plan(view), wake=Wake(on_arrival=False))

    world = Worldlet(1, 4, planner=Head())
    world.submit(3)
    world.submit(2)
    lines = rehearse(world.engine, Head(), [JobSpec(command=("true",))], samples=0).lines
    assert lines[0].code is Code.WOULD_START, lines


def test_a_client_learns_of_events_lost_with_an_earlier_controller() -> None:
    stream = EventStream(kept=10)
    stream.begin(40)
    assert stream.after((40, 2**62)) == ([], True)
    assert stream.after((39, 0))[1] is False
    stream._unpublished.append(JobEvent(seq="41.0", at=0, job=1, name="", state="queued", what="QUEUED"))
    stream.publish()
    assert [len(stream.after(place)[0]) for place in ((40, 3), (41, 0))] == [1, 0]
    assert stream.after((39, 0))[1] is False and stream.after((41, 0))[1] is True


def test_the_logs_of_old_attempts_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.live.reconcile.agent_pool.LOGS_KEPT", 50)
    book = Worldlet(1, 1).engine.book
    pool = AgentPool(FakeFabric(), book, 1, lambda event: None, lambda work: None, lambda why: None)  # type: ignore[arg-type]
    for job in range(1000):
        report = wire.JobReport(job=job, attempt=1, state="exited", logs=((0, "/x"),))
        pool._on_report("here", report)
    assert len(pool.logs) <= 60 and (999, 1) in pool.logs


def test_the_log_of_a_job_is_where_it_runs_whatever_its_last_node_still_has_to_tell() -> None:
    """That of an image which it stored late, say: its copy of the log has ended."""
    play = Play(nodes=2)
    job = play.running()
    pool = AgentPool(FakeFabric(), play.engine.book, 1, lambda event: None, lambda work: None, lambda why: None)  # type: ignore[arg-type]
    for node in ("n0", "n1"):
        late = wire.JobReport(job=job, attempt=1, state="suspended", verb="checkpoint", logs=((0, f"/{node}/log"),))
        pool._on_report(node, late)
    assert pool.logs == {(job, 1): {0: ("n0", "/n0/log")}}


def test_nor_is_it_elsewhere_when_the_job_has_ended() -> None:
    play = Play(nodes=2)
    job = play.running()
    pool = AgentPool(FakeFabric(), play.engine.book, 1, lambda event: None, lambda work: None, lambda why: None)  # type: ignore[arg-type]
    pool._on_report("n0", wire.JobReport(job=job, attempt=1, state="running", logs=((0, "/n0/log"),)))
    play.engine.step(play.engine.book.now, [ev.Exited(job, 1, 0)])
    assert job not in play.engine.book.jobs
    late = wire.JobReport(
        job=job, attempt=1, state="suspended", verb="checkpoint", logs=((0, "/n1/log"), (1, "/n1/one"))
    )
    pool._on_report("n1", late)
    assert pool.logs == {(job, 1): {0: ("n0", "/n0/log"), 1: ("n1", "/n1/one")}}


def test_a_keeper_that_cannot_start_the_agent_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def refuse(*_: object, **__: object) -> None:
        tries.append(1)
        raise OSError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr("tidewright.live.controller.agent_supervisor.PAUSES_S", (0.01, 0.01))

    async def run() -> None:
        task = asyncio.create_task(AgentSupervisor(LocalAgent(tmp_path, ["agent"])).run())
        while len(tries) < 3 and not task.done():
            await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()

    asyncio.run(run())


def test_the_time_until_a_job_may_preempt_is_counted_from_when_it_is_asked_for() -> None:
    world = Worldlet(1, 1)
    world.submit(1)
    job, book = world.submit(1), world.engine.book
    book.blocked[job] = Blocked(job, Reason.NO_CAPACITY, "taken", at=book.now + 60 * SECOND)
    later = book.now + 20 * SECOND  # nothing has happened in the book since
    shown = live_job(book, job, later).cause
    assert shown is not None and (shown.code, shown.args["within"]) == ("PreemptsLater", 40 * SECOND)


@pytest.mark.processes
@pytest.mark.parametrize("now", [[], ["--slots", "2"]])
def test_a_keeper_leaves_the_agent_of_an_earlier_controller_alone_unless_options_changed(
    tmp_path: Path, now: list[str]
) -> None:
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdout.readline()
        (tmp_path / "agent.pid").write_text(f"{agent.pid}\n")
        supervisor = AgentSupervisor(LocalAgent(tmp_path, [*argv, *now], open_files=256))
        asyncio.run(supervisor._replace_outdated())
        assert (supervisor.pid() == agent.pid) is not bool(now)
        agent.kill()


@pytest.mark.processes
@pytest.mark.parametrize("earlier", [False, True])
def test_an_agent_that_is_still_starting_is_ended_too(tmp_path: Path, earlier: bool) -> None:
    """It has no lock yet by which it could be found; ``earlier``: a controller that is gone has started it."""
    argv = [sys.executable, "-m", "tidewright.agent", "--state", str(tmp_path), "--backend", "cpu", "--slots", "1"]

    async def run() -> int:
        supervisor = AgentSupervisor(LocalAgent(tmp_path, argv, open_files=256))
        supervisor._start()
        assert supervisor._child is not None and supervisor.pid() is None
        other = AgentSupervisor(LocalAgent(tmp_path, [])) if earlier else supervisor
        if earlier:  # until the shell that sets its limit has become the agent
            await asyncio.sleep(0.05)
        await asyncio.gather(other.stop(), asyncio.to_thread(supervisor._child.wait, 20))
        return supervisor._child.returncode

    assert asyncio.run(run()) in (-signal.SIGTERM, 0)


def test_an_event_published_while_earlier_ones_are_being_sent_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.live.api.routes.KEEPALIVE_S", 0.01)
    published = EventStream()

    def publish(turn: int, count: int) -> None:
        for number in range(count):
            published._unpublished.append(
                JobEvent(seq=f"{turn}.{number}", at=0, job=1, name="", state="queued", what="QUEUED")
            )
        published.publish()

    async def run() -> list[bytes]:
        context = SimpleNamespace(loop=SimpleNamespace(stopping=False), event_stream=published)
        stream = Routes(context)._events((0, 0))  # type: ignore[arg-type]
        assert await anext(stream) == b": tidewright\n\n"
        publish(1, 2 * EVENTS_AT_A_TIME)
        first = await anext(stream)
        publish(2, 1)
        return [first, await anext(stream), await anext(stream)]

    found = asyncio.run(run())
    assert found[2].startswith(b"id: 2.0\n"), found[2]


@pytest.mark.parametrize("devices", [0, 65])
def test_a_node_that_comes_back_with_no_or_many_devices_does_not_keep_the_loop_busy(running, devices: int) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        _until(lambda: client.info().agent == "connected")
        fabric.node = msgspec.structs.replace(fabric.node, devices=devices)
        fabric.incarnation = "boot-2"
        server.soon(fabric.connect)
        _until(lambda: client.info().devices == min(devices, 64))
        before = client.info().turn
        time.sleep(0.2)
        assert client.info().turn - before < 5


def test_of_a_node_larger_than_the_book_can_name_a_part_is_used() -> None:
    world = Worldlet(1, 4)
    world.tell(ev.NodeUp(msgspec.structs.replace(world.nodes[0], name="big", devices=96), "1"))
    layout = world.engine.book.board.layout
    assert (layout.nodes[1].devices, layout.nodes[1].note) == (64, "only 64 of its 96 devices are used")
    world.engine.snapshot()


def _tail_slowly(data: bytes, lines: int, longest: int) -> int:
    """Where the last ``lines`` lines begin; those longer than ``longest`` are cut from their end."""
    starts, at = [], 0
    for line in data.removesuffix(b"\n").split(b"\n"):
        cuts, end = [], at + len(line)
        while True:
            cuts.append(max(at, end - longest))
            end = cuts[-1]
            if end == at:
                break
        starts += cuts[::-1]
        at += len(line) + 1
    return (starts[-lines] if len(starts) >= lines else 0) if lines else len(data)


@given(st.text(alphabet="a\n", max_size=70).map(str.encode), st.integers(0, 12), st.integers(8, 40))
def test_the_last_lines_are_found_whatever_they_look_like(data: bytes, lines: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(logs, "CHUNK", chunk)
        patch.setattr(logs, "LONGEST_LINE", 7)
        file.write(data)
        file.flush()
        expected = _tail_slowly(data, lines, 7) if data else 0
        assert logs._line_start(Path(file.name), len(data), lines, None) == expected


@given(st.lists(st.binary(max_size=6)))
def test_lines_of_a_rank_are_whole_however_its_output_is_cut(chunks: list[bytes]) -> None:
    lines = logs.RankLines(2)
    got = b"".join(map(lines.take, chunks)) + lines.rest()
    whole = b"".join(chunks)
    expected = (whole if whole.endswith(b"\n") or not whole else whole + b"\n").split(b"\n")[:-1]
    assert got == b"".join(b"[rank 2] " + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n" for line in expected)


def test_a_rank_without_line_feeds_is_held_in_little_memory() -> None:
    lines = logs.RankLines(0)
    assert not lines.take(b"\r99%" * logs.LONGEST_LINE) and len(lines._left) < 10, "of a progress bar, its last form"
    got = lines.take(b"x" * 3 * logs.LONGEST_LINE)
    assert got.startswith(b"[rank 0] 99%xxx") and not lines._left
