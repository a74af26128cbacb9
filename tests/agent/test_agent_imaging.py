"""Whatever is asked of an attempt while an image of it is being taken waits for the image, or ends it; nothing is refused
because of our own CRIU."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import msgspec
import pytest

from tests.agent.agent_bench import Bench, bearing
from tests.agent.test_agent_images import args as resume_args
from tests.agent.test_agent_images import expected, lines
from tests.criu_here import criu_here
from tidewright.agent.processes.rank import Identity
from tidewright.checkpoint.criu.driver import Criu
from tidewright.checkpoint.criu.program import VARIABLE, prefix_command
from tidewright.checkpoint.files.shared import MARK
from tidewright.launch.init import MAIN
from tidewright.model.job import Level

FOUND = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}"),
]
COUNT = """
import random, sys, time
draw = random.Random(1)
ballast = b"".join(draw.randbytes(1 << 20) for _ in range(int(sys.argv[2])))
random.seed(5)
for i in range(int(sys.argv[1])):
    print(i, random.random(), flush=True)
    time.sleep(0.01)
sys.exit(7)
"""
"""Large enough that its image takes a while."""
LINES, MIB = 2000, 60
FULL, FREEZE = int(Level.FULL), int(Level.FREEZE)


@pytest.fixture
def criu_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CRIU that runs these lines of shell before a dump."""
    assert isinstance(FOUND, Criu)
    start = prefix_command(tmp_path / "other")
    loader = Path(start[0])
    loader.parent.mkdir(parents=True)
    real, own = " ".join(FOUND.command), len(start) - 1
    loader.write_text(f'#!/bin/sh\nshift {own}\ncase "$1" in dump) {request.param};; esac\nexec {real} "$@"\n')
    loader.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))


@pytest.mark.parametrize("criu_of", [f"kill -TRAP {MAIN}; sleep 0.5; kill -9 $$"], indirect=True)
def test_a_rank_that_a_killed_criu_has_trapped_is_lost(criu_of: None, play) -> None:
    """docs/why/criu.md: it is no fault of the program's. What it leaves behind outlives the dump."""

    async def body(bench: Bench) -> None:
        await bench.launch("sh", "-c", "(trap '' TERM; exec sleep 60) & exec sleep 60", grace_us=2_000_000)
        await bench.state_is("running")
        await order(bench, 1)
        report = await bench.state_is("exited")
        assert (report.code, report.lost) == (137, True)

    play(body)


@pytest.mark.parametrize("criu_of", ["sleep 1"], indirect=True)
@pytest.mark.parametrize("code", [3, pytest.param(0, marks=pytest.mark.full)])
def test_a_rank_that_ends_while_its_image_begins_has_ended_as_it_says(criu_of: None, play, code: int) -> None:
    """It is no crash, and nothing that a dump has done to it."""

    async def body(bench: Bench) -> None:
        await bench.launch("sh", "-c", f"(trap '' TERM; exec sleep 60) & sleep 0.8; exit {code}", grace_us=2_000_000)
        await bench.state_is("running")
        await order(bench, 1)
        report = await bench.state_is("exited")
        assert (report.code, report.lost) == (code, False)
        if code:
            assert report.first_failure is not None and report.first_failure.code == code
        else:
            assert report.first_failure is None and report.error == ""

    play(body)


def args(mib: int = MIB) -> dict[str, object]:
    return {**resume_args(None), "command": (sys.executable, "-c", COUNT, str(LINES), str(mib))}  # type: ignore[arg-type]


async def launch(bench: Bench, mib: int = MIB) -> None:
    await bench.launch(sys.executable, "-c", COUNT, str(LINES), str(mib))
    await bench.state_is("running")
    await lines(bench, 5)


async def order(bench: Bench, serial: int) -> None:
    """As the controller does, however often."""
    await bench.verb("checkpoint", serial=serial, op_id=f"1.0.checkpoint.{serial}")


async def begin_image(bench: Bench, serial: int, pause: float | None = None) -> None:
    """Order an image of ranks that run on. Without ``pause`` its CRIU is at work when this returns."""
    await order(bench, serial)
    if pause is not None:
        await asyncio.sleep(pause)
        return
    own = max(bench.state.glob("ranks/1.0/0*/started"), key=lambda path: path.stat().st_mtime)
    main = msgspec.json.decode(own.read_bytes(), type=Identity)
    while not bearing(f"{MARK}={main.pid}.{main.start}"):
        await asyncio.sleep(0.001)


async def imaged(bench: Bench, serial: int) -> None:
    found = await bench.until(lambda report: report.image is not None and report.image.serial >= serial)
    assert found.image is not None and found.image.size_bytes


@pytest.mark.parametrize("level", [FULL, FREEZE])
def test_a_suspension_waits_for_the_image(play, level: int) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await begin_image(bench, 1)
        await bench.verb("suspend", level=level, serial=2)
        report = await bench.state_is("suspended")
        assert (report.error, report.level) == ("", -1), "it was refused, or may only be frozen from now on"
        assert 1 in [each.image.serial for each in bench.heard if each.image is not None]
        again = {"serial": 2, "launch": args()} if level == FULL else {}
        await bench.verb("resume", **again)
        await bench.state_is("running")
        await lines(bench, bench.log().count("\n") + 5)
        assert expected(LINES).startswith(bench.log())

    play(body)


def test_another_image_waits_for_the_first(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await begin_image(bench, 1)
        await bench.verb("checkpoint", serial=2)
        await imaged(bench, 2)
        assert [each.error for each in bench.heard if each.error] == []

    play(body)


def test_an_end_waits_for_the_image(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await begin_image(bench, 1)
        await bench.verb("stop", grace_us=5_000_000)
        report = await bench.state_is("exited")
        assert (report.code, report.lost) == (143, False) and expected(LINES).startswith(bench.log())

    play(body)


@pytest.mark.parametrize("phase", ["running", "suspending", pytest.param("stopping", marks=pytest.mark.full)])
def test_the_agent_is_killed_while_an_image_is_taken_and_something_waits_for_it(play, phase: str) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await begin_image(bench, 1)
        if phase == "suspending":
            await bench.verb("suspend", level=FULL, serial=2)
        elif phase == "stopping":
            await bench.verb("stop", grace_us=5_000_000)
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        await bench.state_is({"running": "running", "suspending": "suspended", "stopping": "exited"}[phase])
        if phase == "running":
            await order(bench, 1)
            await imaged(bench, 1)
            await lines(bench, bench.log().count("\n") + 20)
            await bench.verb("suspend", level=FULL, serial=2)
            await bench.state_is("suspended")
        assert expected(LINES).startswith(bench.log())

    play(body)


@pytest.mark.parametrize("moment", ["before it is begun", "when it is done"])
def test_an_image_whose_agent_dies_at_its_edges_is_made_or_made_again(play, moment: str) -> None:
    """What is on disk in these moments; afterwards the controller gives the order once more, or hears of the image."""

    async def body(bench: Bench) -> None:
        await launch(bench, mib=1)
        record = bench.state / "ranks" / "1.0" / "memo.json"
        if moment == "when it is done":
            await begin_image(bench, 1)
            while b'"checkpointing":true' not in record.read_bytes():
                await asyncio.sleep(0.0005)
            while b'"checkpointing":true' in (found := record.read_bytes()):
                await asyncio.sleep(0.0005)
            assert b'"shot"' in found, "nothing would ever tell of the image"
        bench.kill()
        memo = msgspec.json.decode(record.read_bytes())
        if moment == "before it is begun":
            record.write_bytes(msgspec.json.encode({**memo, "ops": ["1.0.checkpoint.1"]}))
        bench.start("--backend", "cpu", "--slots", "4")
        await bench.state_is("running")
        await order(bench, 1)
        await imaged(bench, 1)
        await bench.until(lambda report: report.image is not None and report.image.stored)

    play(body)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", ["suspend", "freeze", "checkpoint", "agent"])
def test_every_verb_at_random_moments_of_an_image_of_a_large_rank(play, verb: str) -> None:
    """Twenty times each, 500 MB."""
    dice = random.Random(verb)

    async def body(bench: Bench) -> None:
        await launch(bench, 500)
        for number in range(20):
            await begin_image(bench, 2 * number + 1, dice.uniform(0, 1.2))
            if verb == "agent":
                bench.kill()
                bench.start("--backend", "cpu", "--slots", "4")
                await bench.state_is("running")
            elif verb == "checkpoint":
                await bench.verb("checkpoint", serial=2 * number + 2)
                await imaged(bench, 2 * number + 2)
            else:
                await bench.verb("suspend", level=FULL if verb == "suspend" else FREEZE, serial=2 * number + 2)
                report = await bench.state_is("suspended")
                assert (report.error, report.level) == ("", -1)
                again = {"serial": 2 * number + 2, "launch": args(500)} if verb == "suspend" else {}
                await bench.verb("resume", **again)
                await bench.state_is("running")
            await lines(bench, min(bench.log().count("\n") + 3, LINES))
            assert expected(LINES).startswith(bench.log())
        assert [each.error for each in bench.heard if each.error] == []

    play(body)
