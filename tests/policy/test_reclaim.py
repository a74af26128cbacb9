"""Devices that a service lends, taken back within its deadline."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tidewright.base.units import MINUTE, SECOND
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, Level, Tier
from tidewright.model.service import ReclaimTerms
from tidewright.model.view import View
from tidewright.plan.moves import Move, Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.reclaim import Reclaim
from tidewright.policy.sla import Sla
from tidewright.testing.views import NOW, ViewBuilder, pool

from ..sizes import examples

YOUNG = {"run_since": NOW - SECOND, "first_start": NOW - SECOND}
JUST_NOW = {"submit": NOW - 1, "since": NOW - 1, "wait_since": NOW - 1}
DEADLINE_US = 2 * SECOND


def spec(tier: str = "basic", devices: int = 1, **more: Any) -> JobSpec:
    return JobSpec(command=("x",), tier=tier, devices=devices, ranks=devices, **more)


def replica(tier: str = "premium") -> JobSpec:
    return spec(tier, kind="service", service="web", preempt="requeue")


class Pool:
    """One node of eight devices with a service, of which one replica runs."""

    def __init__(self, most: int = 4, kind: str = "cpu", deadline_us: int = DEADLINE_US, tier: str = "premium") -> None:
        self.build = ViewBuilder(tuple(structs.replace(node, full=True) for node in pool(1, kind=kind)))
        self.most, self.deadline_us, self.tier = most, deadline_us, tier
        self.replicas = [self.build.run(replica(tier), level=int(Level.REQUEUE))]

    def more(self, count: int = 1) -> list[int]:
        """Replicas that the service has just asked for."""
        made = [self.build.queue(replica(self.tier), level=int(Level.REQUEUE), **JUST_NOW) for _ in range(count)]
        self.replicas += made
        return made

    def train(
        self, tier: str = "basic", devices: int = 1, save_us: int = SECOND, level: Level = Level.FULL, **more: Any
    ) -> int:
        job = self.build.run(spec(tier, devices, **more), save_us=save_us, level=int(level), **YOUNG)
        assert job > 0
        return job

    def view(self) -> View:
        view = self.build.view()
        view.freeze_kinds = ("cpu",)
        if self.deadline_us:
            view.reclaims = (
                ReclaimTerms(
                    service="web", deadline_us=self.deadline_us, tier=int(Tier[self.tier.upper()]), devices=1, kinds=(),
                    most=self.most, replicas=tuple(self.replicas),
                ),
            )  # fmt: skip
        return view

    def moves(self) -> tuple[Move, ...]:
        return Sla().plan(self.view()).moves


def suspended(moves: tuple[Move, ...]) -> dict[int, int]:
    """Jobs that are suspended, and within which time."""
    return {move.job: move.within_us for move in moves if isinstance(move, Suspend)}


def started(moves: tuple[Move, ...]) -> set[int]:
    return {move.job for move in moves if isinstance(move, Start)}


def test_a_young_job_is_preempted_for_a_replica_with_a_deadline_alone() -> None:
    for deadline_us in (0, DEADLINE_US):
        made = Pool(deadline_us=deadline_us)
        victim = made.train(devices=7)
        (new,) = made.more()
        moves = made.moves()
        assert suspended(moves) == ({victim: deadline_us} if deadline_us else {})
        assert started(moves) == ({new} if deadline_us else set())


def test_basic_jobs_go_before_standard_ones_and_premium_ones_stay() -> None:
    made = Pool(most=8)
    premium, standard, basic = (
        made.train(tier, devices) for tier, devices in (("premium", 3), ("standard", 2), ("basic", 2))
    )
    made.more(2)
    assert set(suspended(made.moves())) == {basic}
    made.more(2)
    assert set(suspended(made.moves())) == {basic, standard}
    made.more(3)
    moves = made.moves()
    assert set(suspended(moves)) == {basic, standard} and len(started(moves)) == 4
    assert premium not in suspended(moves)


def test_of_equal_jobs_one_that_releases_its_devices_in_time_is_chosen() -> None:
    made = Pool(kind="gpu")
    made.train(devices=3, save_us=30 * SECOND)
    quick = made.train(devices=4, save_us=SECOND)
    made.more()
    assert set(suspended(made.moves())) == {quick}


@pytest.mark.parametrize(
    ("kind", "more", "frozen"),
    [("cpu", {}, True), ("gpu", {}, False), ("cpu", {"memory": 2**30}, False), ("cpu", {"level": Level.FREEZE}, False)],
)
def test_what_is_saved_too_slowly_counts_as_in_time_where_it_can_be_frozen(
    kind: str, more: dict[str, Any], frozen: bool
) -> None:
    made = Pool(kind=kind)
    job = made.train(devices=7, save_us=MINUTE, **more)
    view = made.view()
    row = view.jobs.row[job]
    assert Reclaim(view, view.jobs.id).in_time(DEADLINE_US)[row] == frozen
    assert not Reclaim(view, view.jobs.id).in_time(0)[row] or frozen
    assert Reclaim(view, view.jobs.id).in_time(MINUTE)[row]


def test_a_job_that_cannot_yield_leaves_what_the_service_could_still_claim() -> None:
    made = Pool(most=4)  # one runs: three are still to be had, of seven
    large = made.build.queue(spec("standard", 5, preempt="none"), level=int(Level.NONE))
    small = made.build.queue(spec("standard", 4, preempt="none"), level=int(Level.NONE))
    gang = made.build.queue(spec("basic", 3), level=int(Level.NONE))  # of a level that its nodes will give it
    plan = Sla().plan(made.view())
    assert started(plan.moves) == {small, gang}
    (blocked,) = (one for one in plan.blocked if one.job == large)
    assert blocked.reason is Reason.RESERVED and blocked.why == Code.LENT("web", DEADLINE_US)
    for deadline_us in (0, DEADLINE_US):
        alone = Pool(most=4, deadline_us=deadline_us)
        large = alone.build.queue(spec("standard", 5, preempt="none"), level=int(Level.NONE))
        assert started(alone.moves()) == (set() if deadline_us else {large})


def test_premium_jobs_are_not_kept_out() -> None:
    made = Pool(most=8)
    job = made.build.queue(spec("premium", 7, preempt="none"), level=int(Level.NONE))
    assert started(made.moves()) == {job}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_what_the_service_could_claim_is_free_or_released_in_time_by_lower_tiers(seed: int) -> None:
    """Starts of lower tiers never break it, whatever waits and runs: where it held before a plan, it holds afterwards."""
    dice = random.Random(seed)
    made = Pool(most=dice.randint(1, 6))
    while dice.random() < 0.7 and sum(made.build.board.free_total):
        size = dice.randint(1, sum(made.build.board.free_total))
        made.train(
            dice.choice(("basic", "standard")),
            size,
            dice.choice((SECOND, MINUTE)),
            dice.choice((Level.FULL, Level.NONE)),
        )
    for _ in range(dice.randint(1, 5)):
        preempt = dice.choice(("auto", "none"))
        level = int(Level.NONE if preempt == "none" else Level.FULL)
        made.build.queue(spec(dice.choice(("basic", "standard")), dice.randint(1, 4), preempt=preempt), level=level)
    view = made.view()
    reclaim, (terms,) = Reclaim(view, view.jobs.id), view.reclaims
    before = reclaim._lendable(terms, 1) - reclaim._claims(terms)
    unyielding = sum(
        view.specs[job].devices for job in started(Sla().plan(view).moves) if view.specs[job].preempt == "none"
    )
    assert unyielding == 0 or before - unyielding >= 0
