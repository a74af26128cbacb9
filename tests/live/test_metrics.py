"""What /metrics says of work that was lost."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.live.api.metrics import Metrics, exposition
from tidewright.live.api.views import live_job
from tidewright.model.node import Part
from tidewright.plan.moves import Start
from tidewright.testing.worldlet import Worldlet


def lost(world: Worldlet, engine: Engine | None = None) -> float:
    driver = SimpleNamespace(engine=engine or world.engine, turns=world.driver.turns)
    loop = SimpleNamespace(driver=driver, journal_error=False, last_planning_s=0.0)
    text = exposition(Metrics(loop)).decode()  # type: ignore[arg-type]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["tidewright_lost_gpu_seconds"].samples
    assert (families["tidewright_lost_gpu_seconds"].type, sample.name) == (
        "counter",
        "tidewright_lost_gpu_seconds_total",
    )
    return sample.value


def test_lost_work_is_counted_in_gpu_seconds_and_outlives_a_restart() -> None:
    world = Worldlet(1, 4)
    job = world.submit(2)
    world.plan(Start(job, (Part(0, 3),), "test"))
    world.later(10 * SECOND)
    assert lost(world) == 0
    world.tell(ev.Exited(job, 1, 137, lost=True))
    assert lost(world) == 20
    assert lost(world, Engine.restore(world.engine.snapshot())) == 20


def test_how_far_predictions_are_off_is_shown() -> None:
    world = Worldlet(1, 4)
    for _ in range(6):
        job = world.submit(1, user="ann", name="n")
        world.plan(Start(job, (Part(0, 1),), "test"))
        world.later(10 * SECOND)
        world.tell(ev.Exited(job, 1, 0))
    loop = SimpleNamespace(driver=world.driver, journal_error=False, last_planning_s=0.0)
    text = exposition(Metrics(loop)).decode()  # type: ignore[arg-type]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["tidewright_run_time_prediction_error_ratio"].samples
    assert sample.value == 1.0
    job = world.submit(1, user="ann", name="n")
    view = live_job(world.engine.book, job, world.now)
    assert (view.predicted_us, view.predicted_low_us, view.predicted_high_us) == (10 * SECOND,) * 3
