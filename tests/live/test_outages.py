"""A real controller and a real agent over devices that fail as a file tells them: XIDs, lost devices, resets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.test_processes import Site
from tidewright.model.job import JobSpec
from tidewright.wire.api import JobView, NodeView

pytestmark = pytest.mark.processes


class Faulty(Site):
    """A node of four fake devices."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(state)
        self.script = state.parent / "devices"
        self.script.touch()
        monkeypatch.setenv("TIDE_FAKE_DEVICES", str(self.script))

    def up(self) -> None:
        with (self.state.parent / "controller.log").open("ab") as out:
            argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(self.state), "--slots", "4"]
            self.daemon = subprocess.Popen([*argv, "--backend", "fake"], stdout=out, stderr=out)
        self.until(lambda: self.node().state == "up")

    def node(self) -> NodeView:
        return self.client().nodes().nodes[0]

    def devices(self, *lines: str) -> None:
        with self.script.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def job(self, job: int) -> JobView:
        return self.client().job(str(job))

    def submit(self, *command: str, **fields: object) -> int:
        spec = JobSpec(command=command, env={"PATH": "/usr/bin:/bin"}, **fields)  # type: ignore[arg-type]
        return self.client().submit([spec]).ids[0]

    def moved(self, job: int) -> bool:
        view = self.job(job)
        return view.state == "running" and view.attempt == 2

    def on(self, job: int, device: int) -> bool:
        view = self.job(job)
        return view.state == "running" and [held.devices for held in view.where] == [(device,)]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    faulty = Faulty(tmp_path / "state", monkeypatch)
    faulty.up()
    yield faulty
    faulty.down()


def test_an_xid_closes_the_device_moves_its_jobs_and_is_reported_everywhere(site: Faulty) -> None:
    """A program's own XID does nothing, one that passes closes the device for a while, one that lasts until a reset."""
    stuck = site.submit("sleep", "300", preempt="none")
    polite = site.submit("sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.05; done", preempt="cooperative")
    site.until(lambda: site.on(stuck, 0) and site.on(polite, 1))
    site.devices("quarantine 1", "xid 0 31", "xid 1 13", "xid 0 79", "xid 1 92")
    site.until(lambda: site.moved(stuck) and site.moved(polite))
    assert not site.on(stuck, 0) and not site.on(polite, 0)
    assert any(line.cause.code == "DeviceOut" and "XID 79" in line.why for line in site.client().why(str(stuck)).story)
    assert any(line.cause.code == "DeviceOut" and "XID 92" in line.why for line in site.client().why(str(polite)).story)
    assert 'reason="XID 79' in site.client().metrics()
    site.until(lambda: list(site.node().faults) == [0])  # device 1 is sound again after its quarantine
    full = [site.submit("sleep", "300", preempt="none") for _ in range(2)]
    before = (site.state / "agent.pid").read_text()
    site.kill("agent")
    site.until(lambda: (site.state / "agent.pid").read_text() != before and site.client().info().agent == "connected")
    assert "XID 79" in site.node().faults[0], "a new agent knows what only a reset ends"
    site.until(lambda: "XID 79" in site.client().why(str(full[1])).summary)
    site.client().undrain(site.node().name)  # an operator has seen to it
    site.until(lambda: site.on(full[1], 0))


def test_a_rank_that_dies_of_its_devices_fault_is_not_the_jobs_failure(site: Faulty) -> None:
    mark = site.state.parent / "second"
    script = f"test -e {mark} && exit 0; touch {mark}; echo xid 0 48 >> {site.script}; exit 3"
    job = site.submit("sh", "-c", script, preempt="none")
    site.until(lambda: site.job(job).state in ("completed", "failed"))
    view = site.job(job)
    assert view.state == "completed" and view.attempt == 2
    assert any("XID 48" in line.why for line in view.story)
    own = site.submit("sh", "-c", f"echo xid 1 31 >> {site.script}; exit 3")
    site.until(lambda: site.job(own).state == "failed")
    assert site.job(own).exit_code == 3
