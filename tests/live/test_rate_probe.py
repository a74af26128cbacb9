"""The controller learns from the samples that jobs report how fast they run where, and every decision has it from then on."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidewright.base.errors import NotFound
from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.rates import in_force, unknown
from tidewright.estimate.learnt_rates import RateHistory
from tidewright.live.controller.rate_probe import EVERY_US, WARM_UP_US, RateProbe
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, Phase
from tidewright.model.node import Part
from tidewright.model.rate import LearntRates, RateSettings, Throughput
from tidewright.plan.moves import Start
from tidewright.testing.worldlet import Worldlet
from tidewright.wire.agent import JobUsage, Usage

from .fakes import FakeFabric
from .harness import HASTY
from .test_processes import Site


class Watched:
    """A worldlet whose jobs report steps and samples, and its probe."""

    def __init__(self) -> None:
        self.world = world = Worldlet(nodes=1, devices=4)
        self.counts: dict[int, tuple[int, int | None]] = {}
        self.attempt = 1
        self.answers = True
        self.posted: list[ev.Event] = []
        loop = SimpleNamespace(
            driver=world.driver, clock=SimpleNamespace(now=lambda: world.now), journal_error="", low="", post=self._post
        )
        self.probe = RateProbe(loop, self, RateHistory())  # type: ignore[arg-type]

    connected = ("n0", "elsewhere")

    def _post(self, event: ev.Event) -> None:
        self.posted.append(event)
        self.world.tell(event)

    async def usage(self, node: str) -> Usage | None:
        assert node == "n0"  # the others have no job of interest
        if not self.answers:
            return None
        jobs = (
            JobUsage(job=job, attempt=self.attempt, steps=steps, samples=samples)
            for job, (steps, samples) in self.counts.items()
        )
        return Usage(jobs=tuple(jobs))

    def start(self, mask: int = 0b11, **fields: Any) -> int:
        """A job on so many devices, past its warm-up."""
        devices = fields.pop("devices", mask.bit_count())
        job = self.world.submit(devices, **{"workload": "bert", **fields})
        self.world.plan(Start(job, (Part(0, mask),), "x"))
        self.world.later(WARM_UP_US)
        return job

    def read(self, job: int, steps: int, samples: int | None, every_us: int = EVERY_US) -> None:
        """So many more by the next reading."""
        before = self.counts.get(job, (0, 0))
        self.counts[job] = (before[0] + steps, None if samples is None else (before[1] or 0) + samples)
        asyncio.run(self.probe.read())
        self.world.later(every_us)

    def rates(self) -> tuple[Throughput, ...]:
        return in_force(self.world.engine.book).throughputs


def test_what_a_job_shows_is_in_force_and_outlives_a_snapshot() -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(5):
        watched.read(job, 60, 60 * 128)
    assert watched.posted == [ev.RatesLearnt(LearntRates((Throughput("bert", "h100", 2, 128.0, 1),)))]
    assert watched.rates() == (Throughput("bert", "h100", 2, 128.0, 1),)
    restored = Engine.restore(watched.world.engine.snapshot())
    assert restored.book.learnt_rates == watched.world.engine.book.learnt_rates
    assert watched.world.engine.view().rates.by_kind


def test_what_is_forgotten_is_in_force_no_longer_and_is_learnt_anew() -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(5):
        watched.read(job, 60, 60 * 128)
    watched.probe.forget("bert")
    watched.world.tell(ev.ForgetRates("bert", "f1"))
    assert not watched.rates() and not Engine.restore(watched.world.engine.snapshot()).book.learnt_rates.throughputs
    for _ in range(3):
        watched.read(job, 60, 60 * 256)
        assert not watched.rates()
    watched.read(job, 60, 60 * 256)
    assert [row.per_s for row in watched.rates()] == [256.0]


def test_of_a_workload_that_showed_nothing_there_is_nothing_to_forget() -> None:
    watched = Watched()
    watched.world.tell(ev.ForgetRates("bert", "f1"))
    assert watched.world.engine.book.answers["f1"].error == Code.NOTHING_LEARNT("bert")


def test_a_workload_without_rates_is_warned_of_only_where_something_is_declared() -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(5):
        watched.read(job, 60, 60 * 128)
    spec = JobSpec(command=("x",), workload="gpt")
    assert watched.rates() and unknown(watched.world.engine.book, spec) is None


def test_another_rate_is_told_again() -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(4):
        watched.read(job, 60, 60 * 128)
    for _ in range(25):
        watched.read(job, 60, 60 * 200)
    assert watched.rates()[0].per_s == 200.0 and 2 <= len(watched.posted) <= 4


def test_long_steps_are_counted_over_several_readings() -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(20):
        watched.read(job, 3, 3 * 600)
    assert [row.per_s for row in watched.rates()] == [30.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"workload": ""},
        {"gpu_milli": 500, "mask": 1},
        {"ranks": 2, "min_devices": 1, "mask": 1, "devices": 2},
    ],
)
def test_jobs_without_a_workload_on_parts_of_devices_or_that_take_turns_show_nothing(fields: dict[str, Any]) -> None:
    watched = Watched()
    job = watched.start(**fields)
    for _ in range(6):
        watched.read(job, 60, 600)
    assert not watched.posted


@pytest.mark.parametrize("samples", [None, 0])
def test_steps_alone_are_no_rate(samples: int | None) -> None:
    watched = Watched()
    job = watched.start()
    for _ in range(6):
        watched.read(job, 60, samples)
    assert not watched.posted


def test_a_reading_across_a_pause_another_attempt_or_counters_that_went_back_is_none() -> None:
    watched = Watched()
    job = watched.start()
    for at in range(12):
        if at % 3 == 0:
            watched.world.tell(ev.Hold(job, f"h{at}"), ev.Release(job, f"r{at}"))
            watched.world.plan(Start(job, (Part(0, 3),), "x"))
            watched.world.later(SECOND)
        if at % 3 == 1:
            watched.counts[job] = (0, 0)
        watched.attempt = watched.world.engine.book.table.attempt.item(watched.world.engine.book.table.row[job])
        watched.read(job, 60, 6000, every_us=EVERY_US // 2)
    watched.attempt = 99
    for _ in range(5):
        watched.read(job, 60, 6000)
    assert not watched.posted


def test_a_node_that_does_not_answer_is_asked_again() -> None:
    watched = Watched()
    job = watched.start()
    watched.answers = False
    watched.read(job, 60, 600)
    watched.answers = True
    for _ in range(4):
        watched.read(job, 60, 600)
    assert len(watched.posted) == 1


def test_each_phase_is_a_workload_of_its_own() -> None:
    watched = Watched()
    phases = (Phase("small", 5 * EVERY_US + WARM_UP_US), Phase("large"))
    job = watched.start(workload="", phases=phases)
    for _ in range(12):
        large = watched.world.now >= 6 * EVERY_US
        watched.read(job, 60, 60 * (640 if large else 64))
    assert {row.workload: row.per_s for row in watched.rates()} == {"small": 64.0, "large": 640.0}


def test_the_api_says_what_is_declared_and_what_is_learnt_also_after_a_restart(running: Any, tmp_path: Path) -> None:
    declared = RateSettings(throughputs=(Throughput("gpt", "h100", 1, 7.0),))
    fabric = FakeFabric()
    fabric.samples_per_step = 10
    settings = msgspec.structs.replace(HASTY, rates=declared)
    with running(fabric, rate_check_us=20_000, engine=settings) as server, server.client() as client:
        assert [(row.workload, row.learnt) for row in client.rates().rows] == [("gpt", False)]
        client.submit([JobSpec(command=("sleep", "9"), workload="bert", devices=2, ranks=2)])
        deadline = time.monotonic() + 20
        while not (rows := client.rates("bert").rows):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert rows[0].learnt and (rows[0].devices, rows[0].nodes) == (2, 1) and rows[0].per_s > 0
        assert client.rates("none").rows == ()
        with pytest.raises(NotFound, match="no rates were learnt of workload"):
            client.forget_rates("none")
        client.forget_rates("bert")
        while not client.rates("bert").rows:  # its job goes on, and shows them again
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with running(FakeFabric(), rate_check_us=0, engine=settings) as server, server.client() as client:
        assert [(row.workload, row.learnt) for row in client.rates().rows] == [("bert", True), ("gpt", False)]


TRAIN = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(640, 4), torch.randn(640, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=64):
            model(x)
"""


@pytest.mark.processes
@pytest.mark.full
def test_a_training_program_as_it_is_shows_its_rate(tmp_path: Path) -> None:
    """Nothing in it names Tidewright: optimizers and data loaders are counted."""
    site = Site(tmp_path / "state")
    site.state.mkdir()
    (site.state / "config.yaml").write_text("rate_check: 1s\n")
    (site.state / "config.yaml").chmod(0o600)
    site.up()
    try:
        with site.client() as client:
            (job,) = client.submit([JobSpec(command=(sys.executable, "-c", TRAIN), workload="toy")]).ids
            deadline = time.monotonic() + 60
            while not client.rates("toy").rows:
                assert time.monotonic() < deadline, client.job(job).job
                time.sleep(0.2)
            (row,) = client.rates("toy").rows
            assert row.learnt and row.devices == 1 and 100 < row.per_s < 16 / 0.02
    finally:
        site.down()


def test_a_probe_that_ends_by_an_error_is_said(running, monkeypatch: pytest.MonkeyPatch, caplog) -> None:  # type: ignore[no-untyped-def]
    async def run(self: RateProbe) -> None:
        raise ValueError("no such column")

    monkeypatch.setattr(RateProbe, "run", run)
    with running() as server, server.client() as client:
        assert client.info().live_jobs == 0, "jobs go on"
    (said,) = [record for record in caplog.records if "ended by an error" in record.message]
    assert "run has ended" in said.message and "no such column" in str(said.exc_info)
