"""Real jobs under a killer: controller, agent and shims die by SIGKILL at random moments; each job completes once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.app.start import controller_pid
from tidewright.model.job import State

from .site import Site

pytestmark = pytest.mark.processes

VICTIMS = ("controller", "agent", "shim", "controller agent", "agent shim", "controller agent shim")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.clean()


class Crowd:
    """The jobs: most basic, every third premium and two slots wide, every fifth fails once and is retried."""

    def __init__(self, site: Site, dice: random.Random, count: int, longest_s: float) -> None:
        self.site, self.dice = site, dice
        self.names = [f"j{number:02}" for number in range(count)]
        self.seconds = {name: round(dice.uniform(0.5, longest_s), 2) for name in self.names}
        self.waiting = list(self.names)
        self.ids: dict[str, int] = {}
        self.preemptions = 0

    def submit(self, count: int) -> None:
        for name in self.waiting[:count]:
            number = int(name[1:])
            first = 'if [ ! -e "$W/$N.tried" ]; then : > "$W/$N.tried"; exit 3; fi; ' if number % 5 == 4 else ""
            script = f'N={name}; {first}sleep {self.seconds[name]}; echo done >> "$W/$N"'
            premium = {"tier": "premium", "devices": 2} if number % 3 == 2 else {"tier": "basic"}
            self.ids[name] = self.site.submit(name, script, retries=1, **premium)
        del self.waiting[:count]

    def check(self) -> None:
        """Every job COMPLETED, with one line by which it says so itself."""
        jobs = {name: self.site.client().wait(job, 90) for name, job in self.ids.items()}
        assert {name: job.state for name, job in jobs.items()} == dict.fromkeys(
            self.names, State.COMPLETED.name.lower()
        ), self.site.story()
        assert {name: self.site.lines(name) for name in self.names} == {name: ["done"] for name in self.names}
        told = self.site.client().jobs(all=True).jobs
        assert len(told) == len(self.names)
        self.preemptions = sum(job.preemptions for job in told)


def strike(site: Site, victims: str, dice: random.Random) -> int:
    """Kill them, in any order; how many there were."""
    deeds = {"controller": site.kill_controller, "agent": site.kill_agent, "shim": lambda: site.kill_shim(dice)}
    return sum(deeds[victim]() for victim in dice.sample(victims.split(), len(victims.split())))


def rampage(site: Site, seed: int, kills: int, jobs: int, longest_s: float) -> Crowd:
    """Submit a few at a time, kill in between, start the controller again whenever it is dead."""
    dice, struck = random.Random(seed), 0
    site.up()
    crowd = Crowd(site, dice, jobs, longest_s)
    while struck < kills:
        crowd.submit(dice.randint(0, 2 + 2 * len(crowd.waiting) // (kills - struck)))
        time.sleep(dice.uniform(0, 0.5))
        struck += strike(site, dice.choice(VICTIMS), dice)
        if controller_pid(site.state) is None:
            site.up()
    crowd.submit(len(crowd.waiting))
    crowd.check()
    site.until(lambda: not site.shims() and not list((site.state / "ranks").iterdir()))
    assert site.groups() == []
    done = site.tide("down")
    assert done.returncode == 0, done.stderr
    site.until(lambda: not site.left(), 10)
    return crowd


def test_three_kills(site: Site) -> None:
    rampage(site, seed=10, kills=3, jobs=4, longest_s=1.2)


@pytest.mark.full
@pytest.mark.parametrize("seed", [50, 51])
def test_fifty_kills(site: Site, seed: int) -> None:
    assert rampage(site, seed, kills=50, jobs=20, longest_s=3.0).preemptions > 0
