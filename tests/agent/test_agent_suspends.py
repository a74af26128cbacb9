"""Ring 3: releasing devices and resuming, with real processes."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.agent.agent_bench import groups
from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint.cgroup import bases, works
from tidewright.fabric.protocol import Refused
from tidewright.model.job import Level

pytestmark = pytest.mark.processes

BUSY = "echo up; i=0; while :; do i=$((i+1)); done"


async def cpu(bench, job: int = 1) -> float:
    """Processor seconds of a job's processes so far."""
    return next(used.cpu_seconds for used in (await bench.usage()).jobs if used.job == job)


async def suspended(bench, job: int = 1, **more):
    await bench.state_is("running", job=job)
    report = await bench.verb("suspend", job=job, level=Level.FREEZE, **more)
    assert report.state == "suspending", report
    return await bench.state_is("suspended", job=job)


def main_pid(bench, job: int = 1) -> int:
    text = (bench.state / "ranks" / f"{job}.0" / "0" / "started").read_text()
    return int(text.split('"pid":')[1].split(",")[0])


def test_freeze_stops_all_of_it_and_thaw_goes_on(play):
    async def body(bench):
        await bench.launch("sh", "-c", f"({BUSY}) & {BUSY}")
        await bench.logged("up\nup")
        report = await suspended(bench)
        assert report.took_us > 0 and report.verb == "suspend"
        before = await cpu(bench)
        await asyncio.sleep(0.3)
        assert await cpu(bench) == before
        await bench.verb("resume", ranks=[{"rank": 0, "devices": [3]}])
        back = await bench.state_is("running")
        assert back.verb == "resume" and back.took_us > 0
        await asyncio.sleep(0.3)
        assert await cpu(bench) > before
        assert os.sched_getaffinity(main_pid(bench)) == {sorted(os.sched_getaffinity(0))[-1]}
        await bench.verb("stop", grace_us=10_000_000)
        assert (await bench.state_is("exited")).code == 143

    play(body)


def test_verbs_twice_and_late_duplicates_are_harmless(play):
    async def body(bench):
        await bench.launch("sh", "-c", BUSY)
        await bench.logged("up")
        await asyncio.gather(*(bench.verb("suspend", op_id="a", level=Level.FREEZE) for _ in range(3)))
        await bench.state_is("suspended")
        await asyncio.gather(*(bench.verb("resume", op_id="b") for _ in range(3)))
        await bench.state_is("running")
        assert (await bench.verb("suspend", op_id="a", level=Level.FREEZE)).state == "running"
        await asyncio.sleep(0.1)
        assert (await bench.inventory()).jobs[0].state == "running"
        await bench.verb("suspend", op_id="c", level=Level.FREEZE)
        await bench.state_is("suspended")

    play(body)


def test_verbs_that_come_early_wait_their_turn(play):
    async def body(bench):
        first = await bench.launch("sh", "-c", BUSY)
        early = await bench.verb("suspend", level=Level.FREEZE)
        assert (first.state, early.state) == ("starting", "starting")
        await bench.state_is("suspended")
        assert [report.state for report in bench.heard] == ["running", "suspending", "suspended"]

    play(body)


def test_a_frozen_job_is_stopped_and_its_grace_counts(play):
    async def body(bench):
        await bench.launch("sh", "-c", f"trap 'exit 6' TERM; {BUSY}")
        await bench.logged("up")
        await suspended(bench)
        await bench.verb("stop", grace_us=10_000_000)
        assert (await bench.state_is("exited")).code == 6

    play(body)


def test_the_next_agent_thaws_what_the_last_froze(play):
    async def body(bench):
        await bench.launch("sh", "-c", BUSY)
        await bench.logged("up")
        await suspended(bench)
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        assert (await bench.state_is("suspended")).state == "suspended"
        before = await cpu(bench)
        await bench.verb("resume")
        await bench.state_is("running")
        await asyncio.sleep(0.2)
        assert await cpu(bench) > before

    play(body)


def test_a_frozen_rank_that_is_killed_is_reported(play):
    async def body(bench):
        await bench.launch("sleep", "600")
        await bench.state_is("running")
        await suspended(bench)
        shim = (bench.state / "ranks" / "1.0" / "0" / "shim").read_text()
        os.kill(int(shim.split('"pid":')[1].split(",")[0]), 9)
        assert (await bench.state_is("exited")).lost

    play(body)


def test_gangs_are_frozen_only_within_a_bound(play):
    async def body(bench):
        await bench.launch("sh", "-c", BUSY, world=2)
        await bench.logged("up", rank=1)
        await bench.state_is("running")
        await bench.verb("suspend", level=Level.FREEZE)
        refused = await bench.until(lambda report: report.verb == "suspend" and report.state == "running")
        assert "times out" in refused.error
        assert bench.heard[-1] == refused
        held = await suspended(bench, bounded=True)
        assert held.error == ""
        await bench.verb("resume")
        await bench.state_is("running")

    play(body)


def test_levels_this_node_has_not_are_refused(play):
    async def body(bench):
        await bench.launch("sleep", "600")
        await bench.state_is("running")
        for level in (Level.NONE, 99):
            await bench.verb("suspend", level=int(level))
            report = await bench.until(lambda report: report.verb == "suspend" and report.state == "running")
            assert "cannot suspend" in report.error
        await bench.verb("suspend", level=Level.FREEZE)
        await bench.state_is("suspended")
        with pytest.raises(Refused, match="indices"):
            await bench.verb("resume", ranks=[{"rank": 0, "devices": [17]}])

    play(body)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done", 75),
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", 137),
        ("echo up; sleep 600", 143),
    ],
)
def test_cooperative_programs_end_themselves_or_are_ended(play, script, code):
    async def body(bench):
        await bench.launch("sh", "-c", script)
        await bench.logged("up")
        grace = 400_000 if code == 137 else 10_000_000
        await bench.state_is("running")
        report = await bench.verb("suspend", level=Level.COOPERATIVE, grace_us=grace)
        assert report.state == "suspending"
        assert (await bench.state_is("exited")).code == code

    play(body)


def test_freezer_groups_are_removed(play):
    async def body(bench):
        await bench.launch("true")
        await bench.state_is("exited")
        assert groups(bench.state) == []
        for freezer in filter(works, bases()):
            freezer.create(
                f"tidewright-{AgentLayout(bench.state).tag}-9.0.0"
            )  # a launch cut short before it was recorded
            break
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        await bench.inventory()
        assert groups(bench.state) == []

    play(body)
