"""A served model and training on one pool, with everything real, while the controller is killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from tidewright.app.serving import replica_command
from tidewright.base.errors import NotFound
from tidewright.base.units import SECOND
from tidewright.model.job import JobSpec
from tidewright.model.service import ServiceSpec

from .test_processes import running
from .test_start_images import Served

pytestmark = pytest.mark.processes


class Lent(Served):
    """The model as a premium service of whole devices that takes back what it lends, beside a basic job that counts."""

    def deploy(self, least: int, most: int, **env: str) -> None:
        command, serving = replica_command(self.site.state, "draw", "drawing:draw", 10**6, "", True, from_image=False)
        replica = JobSpec(
            command=command, env={"PATH": os.environ["PATH"], **serving, **env}, tier="premium", preempt="requeue",
            workdir=str(self.directory),
        )  # fmt: skip
        spec = ServiceSpec(
            name="draw", replica=replica, min_replicas=least, max_replicas=most, reports_ready=True, reclaim_us=SECOND
        )
        self.site.client().deploy(spec)
        self.until(lambda: self.view().running == least)

    def count(self) -> int:
        """A basic job that counts from one on, slowly, until it is enough."""
        at = self.directory
        counting = f"i=0; while [ ! -e {at}/enough ]; do i=$((i + 1)); echo $i >> {at}/counted; sleep 0.03; done"
        spec = JobSpec(command=("/bin/sh", "-c", counting), env={"PATH": os.environ["PATH"]}, tier="basic")
        (job,) = self.site.client().submit([spec]).ids
        self.until(lambda: (self.directory / "counted").exists())
        return job

    def counted(self) -> list[int]:
        return [int(line) for line in (self.directory / "counted").read_text().split()]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lent]:
    root = tmp_path_factory.mktemp("pool")
    for site in running(root):
        one = Lent(site, root)
        yield one
        one.close()


@pytest.fixture
def lent(pool: Lent) -> Iterator[Lent]:
    """Without a service or a job that counts, before and after."""
    yield pool
    (pool.directory / "enough").touch()
    with contextlib.suppress(NotFound):
        pool.site.client().delete_service("draw")
    pool.until(lambda: not pool.site.client().services().services and not pool.site.client().jobs().jobs)
    for name in ("enough", "counted"):
        (pool.directory / name).unlink(missing_ok=True)


def test_replicas_answer_and_training_runs_while_the_controller_is_away(lent: Lent) -> None:
    lent.deploy(1, 2)
    lent.count()
    (replica,) = lent.jobs()
    lent.site.kill("controller")
    before = lent.counted()
    assert all(lent.ask() >= 0 for _ in range(50))
    lent.until(lambda: len(lent.counted()) > len(before))
    lent.site.up()
    lent.until(lambda: lent.jobs() == [replica])
    assert lent.ask() >= 0


@pytest.mark.parametrize(
    "after_s", [0.02, *(pytest.param(seconds, marks=pytest.mark.full) for seconds in (0.0, 0.1, 0.3))]
)
def test_a_controller_killed_while_devices_are_taken_back_goes_on_with_it(lent: Lent, after_s: float) -> None:
    lent.deploy(1, 2)
    job = lent.count()
    lent.site.client().scale_service("draw", 2)
    time.sleep(after_s)
    lent.site.kill("controller")
    assert lent.ask() >= 0
    lent.site.up()
    lent.until(lambda: lent.view().running == 2)
    assert lent.site.client().job(job).state == "suspended"
    lent.site.client().scale_service("draw", 1)
    before = len(lent.counted())
    lent.until(lambda: len(lent.counted()) > before)
    (lent.directory / "enough").touch()
    assert lent.site.client().wait(job, 60).exit_code == 0
    assert lent.counted() == list(range(1, len(lent.counted()) + 1)), "each once, in order"
    assert lent.site.client().job(job).attempt == 1


def test_a_job_that_keeps_its_devices_waits_and_says_why(lent: Lent) -> None:
    lent.deploy(1, 2)
    spec = JobSpec(command=("/bin/true",), env={}, preempt="none")
    (job,) = lent.site.client().submit([spec]).ids
    lent.until(lambda: "claimed by service draw within 1.0s" in lent.site.client().why(job).summary)
    lent.site.client().delete_service("draw")
    assert lent.site.client().wait(job, 60).exit_code == 0
