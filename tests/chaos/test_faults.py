"""Single faults through the whole stack: a killed rank, a rank deaf to SIGTERM, a wall clock set back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.base.units import HOUR, MS, SECOND
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.processes import alive, stat
from tidewright.drive.record import decode

from .site import Site

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests whose jobs end with them, and that start again what they kill."""
    found = Site(tmp_path_factory.mktemp("lasting"), slots=2)
    found.up()
    yield found
    found.tide("down", "--jobs")
    gone = wait_until(lambda: not found.left(), 5)  # what works for an agent ends with it, a little later
    left = found.left()
    found.clean()
    assert gone, left


def kill_rank(site: Site, job: int, name: str, seen: int) -> None:
    """SIGKILL to the main process of a job that writes a line first, once it has done so ``seen`` times."""
    site.until(lambda: len(site.lines(name)) == seen)
    os.kill(site.main(job), signal.SIGKILL)


def test_a_rank_killed_with_9_is_retried_as_often_as_the_spec_says(lasting: Site) -> None:
    job = lasting.submit("often", "echo $$ >> $W/often; exec sleep 60", retries=1)
    kill_rank(lasting, job, "often", 1)
    kill_rank(lasting, job, "often", 2)
    done = lasting.client().wait(job, 30)
    assert (done.state, done.exit_code) == ("failed", 137)
    assert lasting.client().job(job).attempt == 2 and len(lasting.lines("often")) == 2


def test_a_rank_killed_with_9_completes_on_its_retry(lasting: Site) -> None:
    job = lasting.submit("once", "echo $$ >> $W/once; [ $(wc -l < $W/once) = 2 ] || exec sleep 60", retries=3)
    kill_rank(lasting, job, "once", 1)
    done = lasting.client().wait(job, 30)
    assert (done.state, done.exit_code, lasting.client().job(job).attempt) == ("completed", 0, 2)


@pytest.mark.parametrize(("codes", "attempts"), [((137,), 2), ((1, 2), 1)])
def test_only_the_named_exit_codes_are_retried(lasting: Site, codes: tuple[int, ...], attempts: int) -> None:
    name = f"named{attempts}"
    job = lasting.submit(
        name, f"echo $$ >> $W/{name}; [ $(wc -l < $W/{name}) = 2 ] || exec sleep 60", retries=5, retry_exit_codes=codes
    )
    kill_rank(lasting, job, name, 1)
    done = lasting.client().wait(job, 30)
    assert done.state == ("completed" if attempts == 2 else "failed")
    assert lasting.client().job(job).attempt == len(lasting.lines(name)) == attempts


def test_a_rank_deaf_to_sigterm_is_killed_after_its_grace(lasting: Site) -> None:
    script = "trap '' TERM; echo $$ >> $W/deaf; while :; do sleep 0.1; done"
    job = lasting.submit("deaf", script, grace_us=700 * MS)
    lasting.until(lambda: lasting.client().job(job).state == "running" and bool(lasting.lines("deaf")))
    pid = lasting.main(job)
    start = stat(pid)
    assert start is not None
    asked = lasting.client().info().now
    lasting.client().cancel(job)
    lasting.until(lambda: lasting.client().job(job).state == "stopping")
    assert alive(pid, start.start)
    done = lasting.client().wait(job, 30)
    assert done.state == "cancelled" and not alive(pid, start.start)
    told = lasting.client().job(job)
    assert told.end - asked >= 700 * MS


def test_a_deaf_rank_is_killed_also_when_both_daemons_die_in_its_grace(lasting: Site) -> None:
    site = lasting
    job = site.submit("orphan", "trap '' TERM; echo $$ >> $W/orphan; while :; do sleep 0.1; done", grace_us=SECOND)
    site.until(lambda: site.client().job(job).state == "running" and bool(site.lines("orphan")))
    site.client().cancel(job)
    site.until(lambda: site.client().job(job).state == "stopping")
    assert site.kill_agent() and site.kill_controller()
    site.up()
    assert site.client().wait(job, 30).state == "cancelled"
    site.until(lambda: not site.shims())


SET_BACK = f"""
import os, sys, time
back, ns, seconds = sys.argv[1], time.time_ns, time.time
time.time_ns = lambda: ns() - os.path.exists(back) * {HOUR} * 1000
time.time = lambda: seconds() - os.path.exists(back) * {HOUR} / 1e6
from tidewright.app.daemon import main
sys.exit(main(sys.argv[2:]))
"""
"""A controller whose wall clock goes back an hour as soon as a file exists."""


def begin(site: Site, back: Path) -> subprocess.Popen[bytes]:
    options = ["--state", str(site.state), "--slots", "2"]
    with (site.state / "controller.log").open("ab") as log:
        daemon = subprocess.Popen([sys.executable, "-c", SET_BACK, str(back), *options], stdout=log, stderr=log)
    site.until(lambda: site.client().info().agent == "connected")
    return daemon


def test_a_wall_clock_set_back_an_hour_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, slots=2)
    site.state.mkdir(mode=0o700)
    try:
        set_back(site)
        site.until(lambda: not site.left(), 5)
    finally:
        site.clean()


def set_back(site: Site) -> None:
    back = site.work / "set-back"
    daemon = begin(site, back)
    job = site.submit("through", "sleep 1; echo done >> $W/through")
    site.until(lambda: site.client().job(job).state == "running")
    before = site.client().info().now
    back.touch()
    assert site.client().info().now >= before
    assert site.client().wait(job, 30).exit_code == 0
    daemon.kill()
    daemon.wait()
    daemon = begin(site, back)
    after = site.submit("after", "echo done >> $W/after")
    assert site.client().wait(after, 30).exit_code == 0
    told = [site.client().job(one) for one in (job, after)]
    assert SECOND <= told[0].end - told[0].submit < HOUR // 2 and told[0].end <= told[1].submit <= told[1].end
    times = [decode(line).now for line in b"".join(site.client().journal()).splitlines()[1:]]
    assert times == sorted(times) and before in range(times[0], times[-1] + 1)
    assert site.lines("through") == site.lines("after") == ["done"]
    site.client().shutdown()
    assert daemon.wait(30) == 0
