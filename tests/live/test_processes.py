"""Real controller, real agent, real jobs; killed at bad moments. Every job runs exactly once to its end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.base.errors import TideError
from tidewright.model.job import JobSpec
from tidewright.wire.client import Client

pytestmark = pytest.mark.processes


class Site:
    """A state directory with its daemon."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.daemon: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        out = (self.state.parent / "controller.log").open("ab")
        argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(self.state), "--slots", "2"]
        self.daemon = subprocess.Popen([*argv, "--backend", "cpu"], stdout=out, stderr=out)
        out.close()
        self.until(lambda: self.client().nodes().nodes[0].state == "up")

    def client(self) -> Client:
        return Client(self.state, timeout=10)

    def until(self, true, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if true():
                    return
            except (TideError, IndexError):
                pass
            time.sleep(0.02)
        raise AssertionError((self.state.parent / "controller.log").read_text()[-3000:])

    def kill(self, what: str) -> None:
        if what == "controller":
            assert self.daemon is not None
            self.daemon.kill()
            self.daemon.wait()
        else:
            os.kill(int((self.state / "agent.pid").read_text()), signal.SIGKILL)

    def down(self) -> None:
        if self.daemon is None:
            return
        if self.daemon.poll() is None:
            try:
                with self.client() as client:
                    for job in client.jobs().jobs:
                        client.cancel(job.id)
                    for job in client.jobs().jobs:
                        client.wait(job.id, 10)
                    client.shutdown()
                self.daemon.wait(15)
            except (TideError, subprocess.TimeoutExpired):
                self.daemon.kill()
                self.daemon.wait()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.state / "agent.pid").read_text()), signal.SIGKILL)


def running(root: Path) -> Iterator[Site]:
    found = Site(root / "state")
    found.state.mkdir()
    found.up()
    yield found
    found.down()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from running(tmp_path)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that start again what they kill, and whose jobs end with them."""
    yield from running(tmp_path_factory.mktemp("lasting"))


def _job(tmp_path: Path, name: str, seconds: float = 1.0, **more: object) -> JobSpec:
    """Writes one line when it starts and one when it ends."""
    script = f"echo start >> {tmp_path}/{name}; sleep {seconds}; echo end >> {tmp_path}/{name}"
    return JobSpec(name=name, command=("/bin/sh", "-c", script), env={"PATH": os.environ["PATH"]}, **more)  # type: ignore[arg-type]


def test_a_job_runs_through_a_killed_controller_and_a_killed_agent(lasting: Site, tmp_path: Path) -> None:
    (job,) = lasting.client().submit([_job(tmp_path, "tough", 3.0)]).ids
    lasting.until(lambda: lasting.client().job(job).state == "running")
    lasting.kill("controller")
    lasting.up()
    # Killed before that was durable, it hears of it once more.
    lasting.until(lambda: lasting.client().job(job).state == "running")
    lasting.kill("agent")
    lasting.until(lambda: lasting.client().info().agent == "connected")
    assert lasting.client().wait(job, 20).exit_code == 0
    assert (tmp_path / "tough").read_text() == "start\nend\n"
    assert lasting.client().job(job).attempt == 1


def test_a_job_that_ended_during_an_outage_is_reported_right(lasting: Site, tmp_path: Path) -> None:
    spec = JobSpec(command=("/bin/sh", "-c", "sleep 0.5; exit 7"))
    (job,) = lasting.client().submit([spec]).ids
    lasting.until(lambda: lasting.client().job(job).state == "running")
    lasting.kill("agent")
    lasting.kill("controller")
    time.sleep(0.7)
    lasting.up()
    done = lasting.client().wait(job, 20)
    assert (done.state, done.exit_code) == ("failed", 7)


def test_a_suspended_job_survives_both_and_comes_back(lasting: Site, tmp_path: Path) -> None:
    (job,) = lasting.client().submit([_job(tmp_path, "frozen", 1.0)]).ids
    lasting.until(lambda: lasting.client().job(job).state == "running")
    lasting.client().suspend(job)
    lasting.until(lambda: lasting.client().job(job).state == "held")
    lasting.kill("controller")
    lasting.kill("agent")
    lasting.up()
    # Killed before that was durable, it hears of it once more.
    lasting.until(lambda: lasting.client().job(job).state == "held")
    lasting.client().resume(job)
    assert lasting.client().wait(job, 20).exit_code == 0
    assert (tmp_path / "frozen").read_text() == "start\nend\n"


def test_random_kills_lose_and_double_nothing(lasting: Site, tmp_path: Path) -> None:
    dice = random.Random(20)
    names = [f"j{number}" for number in range(4)]
    ids = lasting.client().submit([_job(tmp_path, name, 0.5) for name in names]).ids
    for _ in range(3):
        time.sleep(dice.random() * 0.5)
        what = dice.choice(["controller", "agent", "both"])
        if what in ("agent", "both"):
            with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
                lasting.kill("agent")
        if what in ("controller", "both"):
            lasting.kill("controller")
            lasting.up()
    for job in ids:
        assert lasting.client().wait(job, 30).exit_code == 0, lasting.client().job(job)
    for name in names:
        assert (tmp_path / name).read_text() == "start\nend\n", name


def test_shutdown_leaves_jobs_running(lasting: Site, tmp_path: Path) -> None:
    (job,) = lasting.client().submit([_job(tmp_path, "on", 1.5)]).ids
    lasting.until(lambda: lasting.client().job(job).state == "running")
    lasting.client().shutdown()
    assert lasting.daemon is not None and lasting.daemon.wait(15) == 0
    lasting.up()
    assert lasting.client().wait(job, 20).exit_code == 0
    assert (tmp_path / "on").read_text() == "start\nend\n"
