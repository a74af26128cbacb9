"""Services in a hostile world: what the book holds of them stays sound (engine.check), and every replica ends once."""

from __future__ import annotations

from tidewright.drive.replay import replay
from tidewright.testing.swarm_services import ServiceSwarm

from ..sizes import examples


def test_in_a_hostile_world_services_stay_sound_and_end() -> None:
    ended = started = 0
    for seed in range(4, 4 + examples(12)):
        swarm = ServiceSwarm(seed)
        try:
            swarm.run(150)
            swarm.settle()
            assert set(swarm.ended) == set(swarm.accepted), "every accepted job ends exactly once"
            assert swarm.engine.book.phys.held_milli() == 0
            again = replay(swarm.journal.records, swarm.engine.settings)
            assert again.snapshot() == swarm.engine.snapshot()
        except BaseException as error:
            raise AssertionError(f"reproduce with ServiceSwarm({seed}).run(150) then settle()") from error
        ended, started = ended + swarm.replicas, started + swarm.from_images
    assert ended > examples(60) and started > 2, f"{ended} replicas, {started} from images: the test shows nothing"
