"""Users who change, requeue, hold and release jobs of a hostile world: the book stays sound, and every job ends once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.drive.replay import replay
from tidewright.engine.engine import Engine
from tidewright.testing.swarm_services import ChangeSwarm

from ..sizes import examples

SEEDS = st.integers(min_value=0, max_value=2**32)


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(seed=SEEDS, steps=st.integers(min_value=1, max_value=150))
def test_every_accepted_job_ends_once(seed: int, steps: int) -> None:
    swarm = ChangeSwarm(seed)
    swarm.run(steps)
    swarm.settle()
    assert set(swarm.ended) == set(swarm.accepted)
    assert swarm.engine.book.board.held_milli() == swarm.engine.book.phys.held_milli() == 0


@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(seed=SEEDS, cut=st.integers(min_value=1, max_value=80))
def test_after_a_crash_snapshot_and_journal_say_the_same(seed: int, cut: int) -> None:
    swarm = ChangeSwarm(seed)
    swarm.run(cut)
    image, so_far = swarm.engine.snapshot(), len(swarm.journal.records)
    swarm.run(40)
    restored = Engine.restore(image)
    replay(swarm.journal.records[so_far:], engine=restored)
    assert restored.snapshot() == swarm.engine.snapshot()
    assert replay(swarm.journal.records, swarm.engine.settings).snapshot() == swarm.engine.snapshot()


def test_requests_of_every_kind_are_granted() -> None:
    granted = dict.fromkeys("uqw", 0)
    for seed in range(5):
        swarm = ChangeSwarm(seed)
        swarm.run(150)
        for letter in granted:
            granted[letter] += swarm.granted.get(letter, 0)
    assert min(granted.values()) > 5, granted


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_change_swarm_of_seeds() -> None:
    for seed in range(2000):
        swarm = ChangeSwarm(seed)
        try:
            swarm.run(200)
            swarm.settle()
        except BaseException as error:
            raise AssertionError(f"reproduce with ChangeSwarm({seed}).run(200) then settle()") from error
        assert set(swarm.ended) == set(swarm.accepted), seed
