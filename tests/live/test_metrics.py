"""What /metrics says of work that was lost."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.live.api.metrics import Metrics, exposition
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
