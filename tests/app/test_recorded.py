"""A journal of the real engine, read back as a trace: what ran, for how long, and what is left out."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tidewright.app.recorded import read
from tidewright.app.simulate import JobsTable, Question, costs_of, policies, rerun, run_trace
from tidewright.base.errors import NotFound, UsageError
from tidewright.base.units import SECOND
from tidewright.drive.driver import EngineDriver
from tidewright.engine.commands import Launch, PlanRequest
from tidewright.engine.engine import Engine
from tidewright.engine.events import (
    DeployService,
    Event,
    Exited,
    NodeDown,
    NodeSilent,
    NodeUp,
    PlanReady,
    Started,
    Submit,
    Tick,
)
from tidewright.engine.settings import live_settings
from tidewright.model.job import ArrayMember, Dependency, JobSpec
from tidewright.model.node import NodeSpec
from tidewright.model.service import ServiceSpec
from tidewright.policy.registry import make
from tidewright.sim.costs import Costs, RecordedCost

START = 1_700_000_000 * SECOND


class Lines:
    """Keeps records as the API exports them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes) -> None:
        self.records.append(record)

    def write(self, path: Path, base_turn: int = 0) -> Path:
        head = {"tidewright_journal": 1, "policy": "fifo", "base_turn": base_turn, "settings": live_settings()}
        path.write_bytes(b"\n".join([msgspec.json.encode(head), *self.records]) + b"\n")
        return path


def record(
    jobs: list[tuple[JobSpec, int]], end: int, launches: Sequence[int] = (), last: Event | None = None,
    more: Sequence[tuple[int, Event]] = (),
) -> Lines:  # fmt: skip
    """Jobs (spec, seconds) submitted a second apart on a node of two devices under fifo, until ``end`` seconds. ``launches``:
    seconds that the launch of each takes; none where not given. ``last``: what happens after the jobs; jobs that come of it
    run on. ``more``: what else happens, by seconds."""
    lines = Lines()
    driver = EngineDriver(Engine(live_settings()), lines)
    planner = make("fifo")
    agenda: list[tuple[int, Event]] = [(0, NodeUp(NodeSpec(name="n", kind="cpu", devices=2), "a"))]
    agenda += more
    agenda += [(at + 1, Submit(spec, f"op{at}")) for at, (spec, _) in enumerate(jobs)]
    agenda += [(len(jobs) + 1, last)] if last is not None else []
    agenda += [(end, Tick())] if last is not None else []
    while agenda:
        agenda.sort(key=lambda item: item[0])
        at, event = agenda.pop(0)
        if at > end:
            break
        pending = [event]
        while pending:
            commands = driver.step(START + at * SECOND, pending)
            pending = [
                PlanReady(planner.plan(driver.engine.view())) for one in commands if isinstance(one, PlanRequest)
            ]
            for one in commands:
                if isinstance(one, Launch):
                    started = Started(one.job, one.attempt)
                    begins = at + (launches[order(one.job)] if launches else 0)
                    if begins > at:
                        agenda.append((begins, started))
                    else:
                        pending.append(started)
                    if order(one.job) < len(jobs):
                        agenda.append((begins + jobs[order(one.job)][1], Exited(one.job, one.attempt, 0)))
    return lines


def order(job: int) -> int:
    """Jobs are numbered from 1 in order of arrival."""
    return job - 1


def spec(**changes: object) -> JobSpec:
    return JobSpec(command=("x",), **changes)  # type: ignore[arg-type]


def test_what_ran_is_a_trace(tmp_path: Path) -> None:
    jobs = [(spec(devices=2, team="a", tier="premium"), 10), (spec(team="b"), 5), (spec(), 100), (spec(devices=2), 7)]
    recording = read(record(jobs, end=60).write(tmp_path / "journal.ndjson"))
    trace = recording.trace
    assert [node.name for node in recording.nodes] == ["n"] and recording.policy == "fifo"
    assert trace.submit.tolist() == [0, 1 * SECOND, 2 * SECOND]
    assert trace.duration.tolist()[:2] == [10 * SECOND, 5 * SECOND]
    assert trace.duration.tolist()[2] <= 49 * SECOND
    assert trace.devices.tolist() == [2, 1, 1] and [trace.teams[at] for at in trace.team] == ["a", "b", "default"]
    notes = "\n".join(recording.notes)
    assert "1 job had not ended" in notes and "1 job had not started when the journal ended and is left out" in notes


def test_replicas_of_a_service_are_jobs_like_others(tmp_path: Path) -> None:
    service = ServiceSpec(name="vision", replica=spec(gpu_share=500, user="ann"), min_replicas=2, max_replicas=2)
    lines = record([(spec(), 5)], end=60, last=DeployService(service))
    results, recording = rerun(lines.write(tmp_path / "journal.ndjson"), "fifo,sla")
    assert len(recording.trace) == 3
    assert all(result.completed == 3 for result in results)


def test_the_same_jobs_under_other_policies(tmp_path: Path) -> None:
    path = record([(spec(devices=2), 20), (spec(), 5), (spec(), 5)], end=200).write(tmp_path / "journal.ndjson")
    results, recording = rerun(path, "fifo,srtf")
    assert [result.policy for result in results] == ["fifo", "srtf"] and not recording.notes
    assert all(result.completed == 3 and result.devices == 2 for result in results)
    (wider,), _ = rerun(path, "fifo", cluster="2x2:cpu")
    assert wider.devices == 4 and wider.jct_mean_s < results[0].jct_mean_s
    (short,), _ = rerun(path, "fifo", horizon="10s")
    assert short.completed < 3 and short.unfinished == 3 - short.completed and short.horizon_s == 10
    with pytest.raises(UsageError, match="no time to simulate"):
        rerun(path, "fifo", horizon="0s")


@pytest.mark.parametrize(
    ("text", "piece"),
    [("", "not an exported journal"), ("{}\n", "not an exported journal"), ("hello", "not an exported")],
)
def test_what_is_no_journal(tmp_path: Path, text: str, piece: str) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text(text)
    with pytest.raises(UsageError, match=piece):
        read(path)


def test_a_cut_line_a_missing_file_and_a_repaired_journal(tmp_path: Path) -> None:
    lines = record([(spec(), 5)], end=100)
    lines.records[-1] = lines.records[-1][:-5]
    with pytest.raises(UsageError, match="not a journal of this version"):
        read(lines.write(tmp_path / "cut.ndjson"))
    with pytest.raises(NotFound):
        read(tmp_path / "gone")
    (tmp_path / "journal.db").write_bytes(b"x" * 5000)
    with pytest.raises(UsageError, match="not a journal"):
        read(tmp_path)
    with pytest.raises(UsageError, match="after a repair"):
        read(record([(spec(), 5)], end=100).write(tmp_path / "r.ndjson", base_turn=7))


def test_policies_with_settings_may_hold_commas() -> None:
    assert policies("fifo, las:round=6m ,sla") == ["fifo", "las:round=6m", "sla"]
    with pytest.raises(UsageError, match="nothing is named"):
        policies(" , ")
    with pytest.raises(UsageError, match="did you mean 'fifo'"):
        policies("fifa")


def test_a_trace_by_name_and_seed() -> None:
    once, again, other = (
        run_trace(Question(trace="synthetic:jobs=40,load=1.0", cluster="2x4", policy="fifo", seed=seed))[0]
        for seed in (3, 3, 4)
    )
    assert once == again and once.jct_mean_s != other.jct_mean_s and once.jobs == 40
    assert run_trace(Question(trace="synthetic:jobs=40", cluster="2x4", policy="fifo", jobs=10))[0].jobs == 10


def test_a_job_that_waited_for_an_array_waits_for_its_members(tmp_path: Path) -> None:
    members = [(spec(array=ArrayMember("a", at, 2, 0, 1)), 20) for at in range(2)]
    recording = read(
        record([*members, (spec(after=(Dependency("afterany", 1, True),)), 4)], end=200).write(tmp_path / "j.ndjson")
    )
    assert recording.trace.spec(2).after == (Dependency("afterany", 0), Dependency("afterany", 1))


def test_requests_are_what_they_were(tmp_path: Path) -> None:
    """Placement, weight and the like, which no column of a trace has; and jobs wait for the same others."""
    jobs = [
        (spec(name="first"), 20),
        (spec(placement="one-node", weight=3.0, deadline_us=90 * SECOND, preempt="none", user="u", retries=2), 5),
        (spec(after=(Dependency("afterok", 1),)), 4),
    ]
    recording = read(record(jobs, end=200).write(tmp_path / "journal.ndjson"))
    first, second, third = (recording.trace.spec(row) for row in range(3))
    assert first.name == "first" and third.after == (Dependency("afterany", 0),)
    assert (second.placement, second.weight, second.deadline_us, second.preempt) == (
        "one-node",
        3.0,
        90 * SECOND,
        "none",
    )
    assert second.user == "u" and not second.retries
    assert "1 job may be retried" in "\n".join(recording.notes)
    jobs = JobsTable()
    results, _ = rerun(tmp_path / "journal.ndjson", "fifo", jobs=jobs)
    rows = list(csv.DictReader(jobs.content().decode().splitlines()))
    ends = [float(row["end_s"]) for row in rows]
    assert results[0].completed == 3 and float(rows[2]["start_s"]) >= ends[0] > ends[1]


def test_the_last_part_of_a_journal_counts_what_was_left_to_do(tmp_path: Path) -> None:
    jobs = [(spec(), 100), (spec(), 5), (spec(), 40)]
    path = record(jobs, end=200).write(tmp_path / "journal.ndjson")
    whole, last = read(path), read(path, since_us=60 * SECOND)
    assert len(whole.trace) == 3
    begun = whole.jobs[0].end - 60 * SECOND
    assert [job.job for job in last.jobs] == [1, 3] and all(job.submit == begun for job in last.jobs)
    assert last.trace.duration.tolist() == [60 * SECOND, whole.jobs[2].end - begun]


def test_each_job_is_replayed_with_what_its_own_operations_took_and_other_traces_with_what_was_usual(
    tmp_path: Path,
) -> None:
    jobs = [(spec(devices=2), 20), (spec(), 5), (spec(devices=2), 9), (spec(), 5)]
    path = record(jobs, end=200, launches=[4, 1, 9, 2]).write(tmp_path / "journal.ndjson")
    out = JobsTable()
    (replayed,), recording = rerun(path, "fifo", jobs=out)
    assert replayed.completed == 4
    lines = out.content().decode().splitlines()
    ends = [round(float(row["end_s"]) * SECOND) for row in csv.DictReader(lines)]
    first = recording.jobs[0].submit
    assert ends == [job.end - first for job in recording.jobs]
    learnt = recording.costs.launch_us
    assert learnt == RecordedCost((1 * SECOND, 2 * SECOND, 4 * SECOND, 9 * SECOND))
    assert costs_of(f"learn:{path}", Costs()) == recording.costs
    later = read(path, since_us=15 * SECOND).own_costs.launch_us
    assert isinstance(later, RecordedCost) and 0 not in later.of_row


def test_the_pool_of_the_last_part_has_no_node_that_was_gone_before(tmp_path: Path) -> None:
    up = {
        name: NodeUp(NodeSpec(name=name, kind="cpu", devices=2), name) for name in ("gone", "back", "late", "silent", "dies")
    }  # fmt: skip
    more: list[tuple[int, Event]] = [
        *((0, up[name]) for name in ("gone", "back", "silent", "dies")), (20, NodeDown("gone", "sold")),
        (20, NodeDown("back", "power")), (20, NodeSilent("silent", "cable")), (65, up["back"]), (70, up["late"]),
        (75, NodeDown("dies", "power")),
    ]  # fmt: skip
    jobs = [(spec(), 5), (spec(devices=2), 80), (spec(), 5)]
    path = record(jobs, end=100, more=more).write(tmp_path / "journal.ndjson")
    whole, last = ({node.name for node in read(path, since * SECOND).nodes} for since in (0, 40))
    assert whole == {"n", "gone", "back", "late", "silent", "dies"} and last == whole - {"gone"}
