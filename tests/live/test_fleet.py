"""Images, moves, failover and what fails half-way, over several hosts in memory and in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidewright.engine import events as ev
from tidewright.live.api.views import live_job
from tidewright.wire.agent import ImageReport, JobReport, StopArgs

from ..sizes import seeds
from . import virtual
from .fleet import Fleet, Site


def play(
    body: Callable[[Fleet, Site], Coroutine[Any, Any, None]], hosts: int = 2, devices: int = 2, **more: Any
) -> Site:
    """``body`` against a fresh fleet; the site is clean at its end."""
    settings = more.pop("settings", None)

    async def main() -> Site:
        fleet = Fleet(hosts, devices, **more)
        site = Site(fleet, settings)
        runner = asyncio.ensure_future(site.run())
        acting = asyncio.ensure_future(body(fleet, site))
        await asyncio.wait({runner, acting}, return_when=asyncio.FIRST_COMPLETED)
        if runner.done():
            acting.cancel()
            await runner
        await acting
        await site.until(lambda: not site.book.specs, 600)
        await asyncio.sleep(15)
        site.assert_clean()
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        await site.agent_pool.close()
        return site

    logging.disable()
    try:
        return virtual.run(main())
    finally:
        logging.disable(logging.NOTSET)


def test_a_gang_is_suspended_moved_and_ends_once() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(3, ranks=2, devices=2)
        await site.until(lambda: site.state(job) == "RUNNING")
        assert site.where(job) == ["n0"]
        site.put(ev.Move(job, ("n1",), "m"))
        await site.until(lambda: "m" in site.replies)
        assert not site.replies["m"].error
        await site.until(lambda: site.where(job) == ["n1"] and site.state(job) == "RUNNING")
        assert fleet.comebacks == [(job, 1)] and fleet.hosts["n0"].ranks == {}
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "HELD")
        assert site.where(job) == []
        site.put(ev.Release(job, "r"))
        await site.until(lambda: site.state(job) == "ENDED")

    site = play(body)
    assert len(site.fleet.finished) == 1


def test_an_image_is_copied_to_another_node_and_outlives_its_own() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(5)
        await site.until(lambda: site.state(job) == "RUNNING")
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "HELD")
        await site.until(lambda: bool(site.book.jobs[job].image.copies))
        assert site.book.jobs[job].image.copies == ("n1",)
        fleet.kill("n0")
        await site.until(lambda: site.book.nodes["n0"] in site.book.dead)
        site.put(ev.Release(job, "r"))
        await site.until(lambda: site.where(job) == ["n1"])
        fleet.connect("n0", True)

    assert play(body).fleet.comebacks == [(1, 1)]


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_machine_that_was_only_started_anew_has_its_images_still(forgetful: bool) -> None:
    """The only one there is, so that there are no copies; with ``forgetful`` the controller was on it."""

    async def body(fleet: Fleet, site: Site) -> None:
        held = await site.submit(5)
        runs = await site.submit(20, checkpoint_us=1_000_000)
        await site.until(lambda: site.state(held) == "RUNNING")
        site.put(ev.Hold(held, "h"))
        await site.until(lambda: site.state(held) == "HELD" and len(site.book.jobs[runs].images) == 2)
        await asyncio.sleep(0.5)
        last = site.book.jobs[runs].image.serial
        fleet.kill("n0")
        fleet.hosts["n0"].boots += 1
        if forgetful:
            await site.again()
        await asyncio.sleep(0.3)
        fleet.connect("n0", True)
        await site.until(lambda: site.state(runs) == "RUNNING")
        assert site.state(held) == "HELD" and site.book.jobs[held].image is not None
        site.put(ev.Release(held, "r"))
        await site.until(lambda: (held, 1) in fleet.comebacks)
        assert (runs, last) in fleet.comebacks

    play(body, hosts=1)


def test_a_machine_that_comes_back_with_another_disk_has_none() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(5)
        await site.until(lambda: site.state(job) == "RUNNING")
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "HELD")
        await asyncio.sleep(0.5)
        fleet.kill("n0")
        fleet.hosts["n0"].boots += 1
        fleet.hosts["n0"].images.clear()
        fleet.connect("n0", True)
        await site.until(lambda: site.book.jobs[job].image is None)
        site.put(ev.Release(job, "r"))

    play(body, hosts=1)


def test_a_gang_over_two_nodes_is_copied_both_ways_and_survives_either() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(9, ranks=4, devices=4, placement="any", checkpoint_us=1_000_000)
        await site.until(lambda: site.state(job) == "RUNNING")
        assert site.where(job) == ["n0", "n1"]
        await site.until(lambda: bool(site.book.jobs[job].image) and len(site.book.jobs[job].image.copies) == 2)
        fleet.kill("n1")
        await site.until(lambda: site.state(job) == "QUEUED")
        assert site.where(job) == [], "survivors of a torn gang ran on"
        fleet.connect("n1", True)
        await site.until(lambda: site.where(job) == ["n0", "n1"])

    assert play(body).fleet.comebacks


def test_an_image_is_taken_when_a_user_wants_one_and_the_usual_times_stay() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(4, checkpoint_us=-1)
        site.put(ev.TakeImage(job, "early"))
        await site.until(lambda: "early" in site.replies)
        assert "starting" in str(site.replies["early"].error)
        await site.until(lambda: site.state(job) == "RUNNING")
        site.put(ev.TakeImage(job, "i"))
        await site.until(lambda: site.book.jobs[job].image is not None)
        assert not site.replies["i"].error and site.state(job) == "RUNNING"
        assert not site.book.jobs[job].checkpoint_at, "a job that is never imaged by itself was given a time"

    play(body)


def test_a_dead_node_costs_no_more_than_the_work_since_the_image() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(20, ranks=2, devices=2, checkpoint_us=1_000_000)
        await site.until(lambda: len(site.book.jobs[job].images) == 2)
        await site.until(lambda: "n1" in site.book.jobs[job].image.copies)
        assert live_job(site.book, job, fleet.now()).between_images_us == 1_000_000
        died = fleet.now()
        (there,) = fleet.hosts["n0"].ranks.values()
        left_s = there.left_s - (died - there.since)
        fleet.kill("n0")
        await site.until(lambda: site.where(job) == ["n1"] and site.state(job) == "RUNNING")
        (here,) = fleet.hosts["n1"].ranks.values()
        assert left_s <= here.left_s <= left_s + 1.5, "more was lost than an interval and the time of storing"
        fleet.connect("n0", True)
        await asyncio.sleep(1)

    play(body)


def test_a_node_that_was_only_cut_off_is_rid_of_its_strays_before_it_takes_work() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(12, ranks=2, devices=2)
        await site.until(lambda: site.state(job) == "RUNNING")
        fleet.connect("n0", False)
        await site.until(lambda: site.where(job) == ["n0", "n1"])
        more = await site.submit(3, ranks=2, devices=2)
        fleet.connect("n0", True)
        await site.until(lambda: site.where(more) == ["n0"])
        assert site.where(job) == ["n1"] and (job, 1) not in fleet.hosts["n0"].ranks

    play(body)


def test_a_copy_of_its_image_does_not_speak_for_a_stray_that_is_still_stopping() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(12, ranks=2, devices=2)
        await site.until(lambda: site.state(job) == "RUNNING")
        fleet.connect("n0", False)
        await site.until(lambda: site.where(job) == ["n0", "n1"])
        more = await site.submit(3, ranks=2, devices=2)
        host = fleet.hosts["n0"]
        stop = host.stop

        def stop_and_fetch(key: tuple[int, int], args: StopArgs, op_id: str) -> JobReport:
            report = stop(key, args, op_id)
            image = ImageReport(serial=1, ranks=(0, 1), stored=True)
            fleet.tell("n0", JobReport(job=job, attempt=1, state="exited", verb="fetch", image=image))
            return report

        host.stop = stop_and_fetch  # type: ignore[method-assign]
        fleet.connect("n0", True)
        await site.until(lambda: site.where(more) == ["n0"])  # assert_clean: no device is given while it is held

    play(body)


def test_the_only_node_is_never_taken_for_dead() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(60)
        await site.until(lambda: site.state(job) == "RUNNING")
        fleet.connect("n0", False)
        await asyncio.sleep(30)
        assert site.state(job) == "RUNNING"
        assert not any(isinstance(event, ev.NodeDown) for event in site.events)
        fleet.connect("n0", True)

    play(body, hosts=1)


@pytest.mark.parametrize("unlucky", ["n0", "n1"])
def test_a_suspension_that_fails_on_one_node_is_undone_on_the_others(unlucky: str) -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(3, ranks=4, devices=4, placement="any")
        await site.until(lambda: site.state(job) == "RUNNING")
        host = fleet.hosts[unlucky]
        suspend = host.suspend

        def refuse(key: Any, args: Any, op_id: str) -> JobReport:
            host.suspend = suspend  # type: ignore[method-assign]
            return host._set(host.ranks[key], verb="suspend", error="disk full")

        host.suspend = refuse  # type: ignore[method-assign]
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "SUSPENDING")
        await site.until(lambda: site.state(job) == "RUNNING")
        assert site.where(job) == ["n0", "n1"]
        assert "disk full" in site.book.format_history(job)
        await site.until(lambda: site.state(job) == "HELD")  # its user's wish is not forgotten
        site.put(ev.Release(job, "r"))

    site = play(body)
    assert len(site.fleet.finished) == 2


def test_a_suspension_of_which_half_is_gone_loses_the_attempt_not_the_job() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(3, ranks=4, devices=4, placement="any")
        await site.until(lambda: site.state(job) == "RUNNING")
        first, second = fleet.hosts["n0"], fleet.hosts["n1"]
        second.suspend = lambda key, args, op_id: second._set(second.ranks[key], verb="suspend", error="no")  # type: ignore[method-assign]
        first._bring = lambda args: "rank 0 cannot be restored"  # type: ignore[method-assign]
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) in ("QUEUED", "HELD"))
        del second.suspend, first._bring
        site.put(ev.Release(job, "r"))

    play(body)


def test_a_cancelled_job_that_is_but_an_image_ends_and_leaves_nothing() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(5)
        await site.until(lambda: site.state(job) == "RUNNING")
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "HELD")
        await asyncio.sleep(1)
        assert fleet.hosts["n1"].images
        site.put(ev.Cancel(job, "c"))
        await site.until(lambda: site.state(job) == "ENDED")

    play(body)


def test_images_of_jobs_that_ended_while_a_node_was_away_are_dropped_when_it_is_back() -> None:
    async def body(fleet: Fleet, site: Site) -> None:
        job = await site.submit(5)
        await site.until(lambda: site.state(job) == "RUNNING")
        site.put(ev.Hold(job, "h"))
        await site.until(lambda: site.state(job) == "HELD" and bool(fleet.hosts["n1"].images))
        fleet.connect("n1", False)
        site.put(ev.Cancel(job, "c"))
        await site.until(lambda: site.state(job) == "ENDED")
        await asyncio.sleep(3)
        fleet.connect("n1", True)

    play(body)


@pytest.mark.parametrize("seed", seeds(60))
def test_whatever_happens_every_job_ends_and_nothing_is_left(seed: int) -> None:
    """Random moves, holds, deaths, partitions, failing dumps and restores, and controllers that forget everything."""

    async def body(fleet: Fleet, site: Site) -> None:
        dice = fleet.dice
        for _ in range(dice.randint(2, 5)):
            ranks = dice.choice([1, 1, 2, 4])
            await site.submit(1 + 6 * dice.random(), ranks=ranks, devices=ranks, placement="any", checkpoint_us=700_000)
        for number in range(30):
            await asyncio.sleep(dice.random() * 0.6)
            jobs, name = list(site.book.specs), dice.choice(list(fleet.hosts))
            what = dice.choice(["hold", "release", "release", "move", "scale", "kill", "cut", "back", "back", "again"])
            if what == "again":
                await site.again()
            elif what == "kill":
                fleet.kill(name)
            elif what in ("cut", "back"):
                fleet.connect(name, what == "back")
            elif jobs:
                job, op = dice.choice(jobs), f"{what}{number}"
                site.put({
                    "hold": ev.Hold(job, op), "release": ev.Release(job, op), "move": ev.Move(job, (), op),
                    "scale": ev.Scale(job, dice.choice([0, 1, 2]), op),
                }[what])  # fmt: skip
        fleet.trouble = 0.0
        for name in fleet.hosts:
            fleet.connect(name, True)
        for number, job in enumerate(list(site.book.specs)):
            site.put(ev.Scale(job, 0, f"end-scale{number}"))
            site.put(ev.Release(job, f"end{number}"))

    play(body, hosts=3, seed=seed, trouble=0.15)
