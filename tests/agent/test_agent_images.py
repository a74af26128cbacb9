"""Full images through a real agent: into an image and back, on this node and another, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.agent.agent_bench import Bench, bearing
from tests.criu_here import criu_here
from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint.criu.driver import Criu
from tidewright.model.job import Level
from tidewright.wire.agent import JobReport, Peer

FOUND = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}"),
]
COUNT = """
import os, random, sys, time
random.seed(5)
for i in range(int(sys.argv[1])):
    print(i, random.random(), flush=True)
    if not os.path.exists("go"):
        time.sleep(0.01)
sys.exit(7)
"""
FULL = int(Level.FULL)
PAUSES = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2)
"""Before an agent is killed, in seconds."""


def expected(count: int) -> str:
    import random

    random.seed(5)
    return "".join(f"{i} {random.random()}\n" for i in range(count))


async def launch(bench: Bench, count: int = 150, **more: object) -> None:
    await bench.launch(sys.executable, "-c", COUNT, str(count), **more)
    await bench.state_is("running")


async def lines(bench: Bench, least: int, attempt: int = 0) -> None:
    """Until the program has come so far."""
    while bench.log(attempt=attempt).count("\n") < least:
        await asyncio.sleep(0.01)


def let_it_end(bench: Bench) -> None:
    """The program that was launched there sleeps no more."""
    (bench.state / "go").touch()


def args(bench: Bench, count: int = 150, **more: object) -> dict[str, object]:
    """What a controller says of the ranks when they come back."""
    return {
        "job": 1, "attempt": 0, "name": "t", "command": (sys.executable, "-c", COUNT, str(count)), "workdir": "/",
        "env": {"PATH": "/usr/bin:/bin"}, "world_size": 1,
        "ranks": [{"rank": 0, "local_rank": 0, "devices": [1]}], **more,
    }  # fmt: skip


async def stored(bench: Bench, serial: int) -> JobReport:
    return await bench.until(lambda r: r.image is not None and r.image.serial == serial and r.image.stored)


def test_into_an_image_and_back(play) -> None:
    async def body(bench: Bench) -> None:
        assert isinstance(FOUND, Criu) and (await bench.inventory()).criu == FOUND.version
        await launch(bench, 400)
        for serial in (1, 2, 3):
            await lines(bench, 25 * serial)
            await bench.verb("suspend", level=FULL, serial=serial)
            report = await bench.state_is("suspended")
            assert report.took_us and report.image and report.image.size_bytes > 2**20
            before = bench.log()
            await asyncio.sleep(0.1)
            assert not bearing(f"tidewright-{AgentLayout(bench.state).tag}") and bench.log() == before, "it still runs"
            if serial == 2:
                await stored(bench, 2)
                shutil.rmtree(bench.state / "images" / "work")
                (bench.state / "images" / "work").mkdir()
            await bench.verb("resume", serial=serial, launch=args(bench, 400))
            await bench.state_is("running")
        let_it_end(bench)
        report = await bench.state_is("exited")
        assert (report.code, report.lost) == (7, False)
        assert bench.log() == expected(400)

    play(body)


def test_an_image_of_a_program_that_runs_on_starts_the_next_attempt(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 400)
        await lines(bench, 30)
        await bench.verb("checkpoint", serial=1)
        await stored(bench, 1)
        await lines(bench, bench.log().count("\n") + 20)
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        far = bench.log().count("\n")
        await bench.verb("forget")
        await bench.call("launch", args(bench, 400, attempt=1, image=1))
        await bench.state_is("running")
        back = bench.log(attempt=1).count("\n")
        assert 30 <= back < far, "it did not begin at its image"
        let_it_end(bench)
        report = await bench.state_is("exited")
        assert report.code == 7 and bench.log(attempt=1) == expected(400)

    play(body)


def test_what_it_is_to_come_back_on_outlives_the_agent(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await bench.verb("suspend", level=FULL, serial=1)
        await bench.state_is("suspended")
        await bench.verb("resume", serial=1, launch=args(bench, ranks=[{"rank": 0, "local_rank": 0, "devices": [0]}]))
        bench.kill()
        found = msgspec.json.decode(AgentLayout(bench.state).attempt(1, 0).joinpath("args.json").read_bytes())
        assert found["ranks"][0]["devices"] == [0]
        bench.start()
        let_it_end(bench)
        assert (await bench.state_is("exited")).code == 7
        assert bench.log() == expected(150)

    play(body)


def test_what_left_comes_back_though_it_is_still_leaving(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 300)
        for serial in (1, 2, 3):
            await lines(bench, 20 * serial)
            await bench.verb("suspend", level=FULL, serial=serial)
            await bench.state_is("suspended")
            back = bench.verb("resume", serial=serial, launch=args(bench, 300))
            await asyncio.gather(bench.verb("forget", left=True), back)
            await bench.state_is("running")
        let_it_end(bench)
        assert (await bench.state_is("exited")).code == 7
        assert bench.log() == expected(300)

    play(body)


def test_what_is_to_leave_once_more_does_not_come_back(play) -> None:
    """Nor is it listed: its end would not be reported."""

    async def body(bench: Bench) -> None:
        await launch(bench, 300)
        await lines(bench, 20)
        await bench.verb("suspend", level=FULL, serial=1)
        await bench.state_is("suspended")
        leave, back = (lambda: bench.verb("forget", left=True)), bench.verb("resume", serial=1, launch=args(bench))
        await asyncio.gather(leave(), back, leave())
        while (await bench.inventory()).jobs:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert not (await bench.inventory()).jobs and not bearing(f"tidewright-{AgentLayout(bench.state).tag}")

    play(body)


@pytest.mark.parametrize("pauses", [PAUSES[::3], pytest.param(PAUSES, marks=pytest.mark.full)], ids=["some", "all"])
def test_the_agent_is_killed_at_any_moment_of_a_suspension(play, pauses: tuple[float, ...]) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 3000)
        for serial, pause in enumerate(pauses, 1):
            await lines(bench, 10 + 5 * serial)
            await bench.verb("suspend", level=FULL, serial=serial)
            await asyncio.sleep(pause)
            bench.kill()
            bench.start("--backend", "cpu", "--slots", "4")
            await bench.state_is("suspended")
            await bench.verb("resume", serial=serial, launch=args(bench, 3000))
            await asyncio.sleep(pause)
            bench.kill()
            bench.start("--backend", "cpu", "--slots", "4")
            await bench.state_is("running")
        await lines(bench, bench.log().count("\n") + 20)
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        assert expected(3000).startswith(bench.log())

    play(body)


def test_the_remote_copies_of_a_job_that_is_over_are_removed_whoever_dies(play, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    copies = tmp_path / "remote" / "default" / "images"

    async def body(bench: Bench) -> None:
        def again() -> None:
            bench.kill()
            bench.start("--backend", "cpu", "--slots", "4", "--images", url)

        again()
        await launch(bench)
        await bench.verb("suspend", level=FULL, serial=1)
        await bench.until(lambda r: r.image is not None and r.image.remote)
        assert list(copies.iterdir())
        shutil.move(tmp_path / "remote", tmp_path / "away")
        (tmp_path / "remote").touch()  # out of reach
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        await bench.verb("forget", images=True)
        while not any((bench.state / "images" / "graves").glob("*/*")):
            await asyncio.sleep(0.02)
        again()
        (tmp_path / "remote").unlink()
        shutil.move(tmp_path / "away", tmp_path / "remote")
        while list(copies.iterdir()):
            await asyncio.sleep(0.05)

    play(body)


def test_a_damaged_raw_image_gives_way_to_the_stores(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await lines(bench, 20)
        await bench.verb("suspend", level=FULL, serial=1)
        await bench.state_is("suspended")
        await stored(bench, 1)
        flip(next((bench.state / "images" / "work" / "1.1" / "0").glob("pages-*.img")))
        await bench.verb("resume", serial=1, launch=args(bench))
        let_it_end(bench)
        await bench.state_is("exited")
        assert bench.log() == expected(150)

    play(body)


def test_an_image_damaged_everywhere_is_named_and_never_run(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench)
        await lines(bench, 20)
        await bench.verb("suspend", level=FULL, serial=1)
        await stored(bench, 1)
        flip(next((bench.state / "images" / "work" / "1.1" / "0").glob("pages-*.img")))
        for pack in (bench.state / "images" / "store").rglob("*.pack"):
            pack.write_bytes(bytes(len(pack.read_bytes())))
        await bench.verb("resume", serial=1, launch=args(bench))
        report = await bench.until(lambda r: r.state == "suspended" and bool(r.error))
        assert "image 1" in report.error and "job 1" in report.error
        assert report.image and report.image.lost
        before = bench.log()
        await bench.verb("stop")
        await bench.state_is("exited")
        assert bench.log() == before

    play(body)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@contextlib.asynccontextmanager
async def second(bench: Bench, state: Path) -> AsyncIterator[Bench]:
    """Another node of the same cluster."""
    await bench.inventory()
    state.mkdir()
    shutil.copy(bench.state / "agent.token", state / "agent.token")
    other = Bench(state)
    other.start("--backend", "cpu", "--slots", "4")
    other.fabric.watch(lambda node: None, lambda _, report: other.heard.append(report))
    try:
        yield other
    finally:
        await other.fabric.close()
        other.clean()


def test_to_another_node_and_back(play, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        async with second(bench, tmp_path / "other") as other:
            await there_and_back(bench, other)

    play(body)


async def there_and_back(bench: Bench, other: Bench) -> None:
    await launch(bench, 1000)
    for serial, (here, there) in enumerate(((bench, other), (other, bench)), 1):
        await lines(here, 40 * serial)
        await here.verb("suspend", level=FULL, serial=serial)
        await here.state_is("suspended")
        peer = (await here.inventory()).peer
        assert isinstance(peer, Peer)
        launch_args = args(there, 1000, sources=[msgspec.to_builtins(peer)])
        await there.verb("resume", serial=serial, launch=launch_args)
        await there.state_is("running")
        await here.verb("forget", left=True)
    let_it_end(bench)
    report = await bench.state_is("exited")
    assert (report.code, bench.log()) == (7, expected(1000))


def test_copies_are_fetched(play, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        async with second(bench, tmp_path / "other") as other:
            await launch(bench, 300)
            await lines(bench, 20)
            await bench.verb("checkpoint", serial=4)
            await stored(bench, 4)
            peer = msgspec.to_builtins((await bench.inventory()).peer)
            await other.call("fetch", {"job": 1, "attempt": 0, "serial": 4, "ranks": [0], "sources": [peer]})
            while (1, 4, 0) not in (await other.inventory()).images:
                await asyncio.sleep(0.02)
            bench.kill()
            await other.call("launch", args(other, 300, attempt=1, image=4))
            let_it_end(bench)
            report = await other.state_is("exited")
            assert report.code == 7 and other.log(attempt=1) == expected(300)

    play(body)
