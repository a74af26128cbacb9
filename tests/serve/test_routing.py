"""Properties of the router, whatever the policy: nothing lost, nothing twice, bounds and order held, promises kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import Bug, NotFound, UsageError
from tidewright.serve.admission import AdmissionRule
from tidewright.serve.lane import ServedModel
from tidewright.serve.profile import BatchProfile, affine
from tidewright.serve.request import InferenceRequest, RefusalCode
from tidewright.serve.routing import PoolSettings, Router, RouterCounts

from .driving import ADMISSIONS, GAPS_US, POLICIES, PROFILES, arrivals, drive, served

TEN = affine(1_000, 9_000, 10)
ITEMS = st.lists(st.integers(1, 12), min_size=1, max_size=5)
OBJECTIVES_US = st.lists(st.integers(1_000, 80_000), min_size=1, max_size=3)


def bounded(items: list[int], *profiles: BatchProfile) -> list[int]:
    """Numbers of items that a batch of each can hold."""
    return [min(count, *(profile.max_batch for profile in profiles), 1000) for count in items]


@given(PROFILES, PROFILES, POLICIES, ADMISSIONS, GAPS_US, OBJECTIVES_US, st.integers(1, 4), st.integers(0, 4),
       st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5), ITEMS)  # fmt: skip
def test_no_request_is_lost_or_answered_twice(
    first: BatchProfile, second: BatchProfile, policy: str, admission: AdmissionRule, gaps: list[int],
    objectives: list[int], replicas: int, best_effort_every: int, slower: list[float],
    items: list[int],
) -> None:  # fmt: skip
    models = [served(first, 50_000, policy, "a"), served(second, 30_000, policy, "b")]
    items = bounded(items, first, second)
    requests = arrivals(gaps, objectives, ("a", "b"), best_effort_every, items)
    settings = PoolSettings(admission, best_effort_us=150_000)
    found = drive(models, requests, replicas, settings, slower)
    assert found.fates() == [request.id for request in requests]
    assert set(found.completed_us) == {request.id for batch in found.dispatched for request in batch.requests}
    limits = {"a": first.max_batch, "b": second.max_batch}
    for batch in found.dispatched:
        assert 1 <= batch.items <= limits[batch.model]
        assert {(request.model, request.best_effort) for request in batch.requests} == {
            (batch.model, batch.best_effort)
        }
        assert list(batch.requests) == sorted(batch.requests, key=lambda request: (request.deadline_us, request.id))


@given(PROFILES, st.sampled_from(["deadline", "deferred"]), GAPS_US, OBJECTIVES_US, st.integers(1, 4), ITEMS)
def test_without_noise_every_admitted_request_meets_its_deadline(
    profile: BatchProfile, policy: str, gaps: list[int], objectives: list[int], replicas: int, items: list[int]
) -> None:
    requests = arrivals(gaps, objectives, items=bounded(items, profile))
    found = drive([served(profile, 40_000, policy)], requests, replicas, PoolSettings())
    assert all(refusal.code is not RefusalCode.LATE for refusal in found.refused)
    for batch in found.dispatched:
        assert all(found.completed_us[request.id] <= request.deadline_us for request in batch.requests)


@given(PROFILES, PROFILES, GAPS_US, OBJECTIVES_US, st.integers(1, 3), st.integers(0, 3), ITEMS)
def test_nor_do_several_models_and_best_effort_break_a_promise(
    first: BatchProfile, second: BatchProfile, gaps: list[int], objectives: list[int], replicas: int, every: int,
    items: list[int],
) -> None:  # fmt: skip
    models = [served(first, 40_000, "deferred", "a"), served(second, 60_000, "deferred", "b")]
    requests = arrivals(gaps, objectives, ("a", "b"), every, bounded(items, first, second))
    found = drive(models, requests, replicas, PoolSettings(best_effort_us=50_000))
    assert all(refusal.code is not RefusalCode.LATE for refusal in found.refused)
    for batch in found.dispatched:
        assert all(found.completed_us[request.id] <= request.deadline_us for request in batch.requests)


@given(PROFILES, POLICIES, ADMISSIONS, GAPS_US, st.integers(1, 3))
def test_equal_inputs_give_equal_steps(
    profile: BatchProfile, policy: str, admission: AdmissionRule, gaps: list[int], replicas: int
) -> None:
    requests, settings = arrivals(gaps, [30_000]), PoolSettings(admission)
    first, second = (drive([served(profile, 30_000, policy)], requests, replicas, settings) for _ in range(2))
    assert first == second


@given(POLICIES, st.integers(1, 5), st.integers(1, 60), GAPS_US)
def test_queues_are_bounded(policy: str, length: int, size: int, gaps: list[int]) -> None:
    model = ServedModel("m", TEN, 40_000, policy, max_queue=length, max_queue_bytes=size)
    router = Router([model], PoolSettings(AdmissionRule.NONE))
    for request in arrivals(gaps, [40_000]):  # no replica: all that is not refused waits
        refusal = router.arrive(request.arrived_us, request)
        waiting = router.waiting("m")[0]
        assert waiting <= length and waiting * 10 <= size
        assert (refusal is not None) == (waiting + 1 > length or waiting * 10 + 10 > size) or refusal is None
        assert refusal is None or refusal.code in (RefusalCode.QUEUE_FULL, RefusalCode.QUEUE_BYTES)


@given(st.integers(1, 3), st.integers(1, 40))
def test_without_arrivals_after_it_a_refused_request_is_admitted_after_its_wait(replicas: int, burst: int) -> None:
    settings = PoolSettings()
    model = ServedModel("m", affine(300_000, 700_000, 4), 2_500_000)
    requests = arrivals([0] * burst, [2_500_000])
    for refusal in drive([model], requests, replicas, settings).refused:
        later_us = refusal.retry_after_s * 1_000_000
        again = InferenceRequest(10_000, "m", later_us, later_us + 2_500_000)
        found = drive([model], [*requests, again], replicas, settings)
        assert 10_000 in found.completed_us


def test_replicas_without_need_stay_idle() -> None:
    found = drive([served(TEN, 50_000, "deferred")], arrivals([100_000] * 10, [50_000]), 4, PoolSettings())
    assert {batch.replica for batch in found.dispatched} == {0}


def test_a_deferred_batch_starts_when_the_next_request_would_not_fit() -> None:
    found = drive([served(TEN, 50_000, "deferred")], arrivals([1_000, 5_000], [50_000]), 1, PoolSettings())
    (batch,) = found.dispatched
    assert len(batch.requests) == 2 and batch.started_us == 51_000 - 12_000  # deadline of the first - l(3)


def test_best_effort_fills_gaps_and_is_bounded() -> None:
    real_time = arrivals([100_000] * 5, [50_000])
    filler = [InferenceRequest(100 + index, "m", 0, best_effort=True) for index in range(200)]
    found = drive([served(TEN, 50_000, "deferred")], [*filler, *real_time], 1, PoolSettings(best_effort_us=15_000))
    assert not found.refused
    assert max(len(batch.requests) for batch in found.dispatched if batch.best_effort) == 6
    assert all(found.completed_us[request.id] <= request.deadline_us for request in real_time)


def test_best_effort_that_would_hold_a_replica_too_long_is_refused() -> None:
    router = Router([served(TEN, 50_000, "eager")], PoolSettings(best_effort_us=9_999))
    refusal = router.arrive(0, InferenceRequest(0, "m", 0, best_effort=True))
    assert refusal is not None and refusal.code is RefusalCode.TOO_LONG


def test_without_a_plan_the_wait_is_that_for_the_work_in_the_queue() -> None:
    model = ServedModel("m", affine(100_000, 0, 10), 1_000_000, "eager", max_queue=60)
    router = Router([model], PoolSettings(AdmissionRule.NONE))
    router.add_replica(0, 0)
    refusals = [router.arrive(0, request) for request in arrivals([0] * 61, [1_000_000])]
    refusal = refusals[-1]
    assert refusal is not None and not any(refusals[:-1])
    assert (refusal.code, refusal.retry_after_s) == (
        RefusalCode.QUEUE_FULL,
        6,
    )  # 60 of 0.1 s, less an objective, rounded up


def test_without_a_replica_the_wait_is_that_for_the_first() -> None:
    router = Router([served(TEN, 50_000, "deferred")], PoolSettings(cold_start_us=7_000_000))
    refusal = router.arrive(0, InferenceRequest(0, "m", 0, 50_000))
    assert refusal is not None and (refusal.code, refusal.retry_after_s) == (RefusalCode.NO_REPLICA, 7)


def test_the_batch_of_a_lost_replica_waits_again_and_a_leaving_one_completes_its_own() -> None:
    router = Router([served(TEN, 50_000, "eager")], PoolSettings(AdmissionRule.NONE))
    router.add_replica(0, 0)
    router.add_replica(0, 1)
    for request in arrivals([0, 0], [50_000]):
        router.arrive(0, request)
    assert router.poll(0).dispatches[0].replica == 0
    router.replica_lost(0)
    assert router.waiting("m") == (2, 0)
    (batch,) = router.poll(1_000).dispatches
    assert batch.replica == 1 and [request.id for request in batch.requests] == [0, 1]
    assert not router.remove_replica(1) and router.replicas() == ()
    assert router.completed(12_000, 1) == batch
    with pytest.raises(Bug):
        router.completed(12_000, 1)


def test_a_request_of_many_items_counts_as_so_many() -> None:
    router = Router([served(TEN, 50_000, "eager")], PoolSettings())
    router.add_replica(0, 0)
    for number, items in enumerate((4, 5, 2)):
        assert router.arrive(0, InferenceRequest(number, "m", 0, 60_000, items=items)) is None
    (batch,) = router.poll(0).dispatches
    assert [request.id for request in batch.requests] == [0, 1]  # with the third it would be 11 of at most 10
    assert batch.items == 9 and batch.predicted_us == 18_000
    assert router.waiting("m") == (1, 0) and router.waiting_items("m") == 2
    assert router.predicted_us("m", 10) == 19_000
    for items in (0, 11):
        with pytest.raises(UsageError, match="1 to 10, the largest batch"):
            router.arrive(0, InferenceRequest(9, "m", 0, 60_000, items=items))


def test_a_request_above_the_limit_of_the_policy_is_a_batch_of_its_own() -> None:
    found = drive(
        [served(TEN, 50_000, "eager:max_batch=3")], arrivals([0, 0, 0], [90_000], items=(2, 7, 2)), 1, PoolSettings()
    )
    assert [[request.id for request in batch.requests] for batch in found.dispatched] == [[0], [1], [2]]


def test_a_request_that_only_its_items_make_late_is_refused_once_it_is_the_first() -> None:
    requests = arrivals([0, 0], [15_000], items=(1, 8))
    found = drive([served(TEN, 50_000, "eager:max_batch=1")], requests, 2, PoolSettings(AdmissionRule.LATE))
    assert [batch.requests for batch in found.dispatched] == [(requests[0],)]
    assert [(refusal.request, refusal.code) for refusal in found.refused] == [(requests[1], RefusalCode.LATE)]


def test_what_happened_is_counted() -> None:
    router = Router([served(TEN, 20_000, "eager")], PoolSettings())
    router.add_replica(0, 0)
    for request in arrivals([0] * 15, [20_000]):
        router.arrive(0, request)
    router.poll(0)
    router.completed(19_000, 0)
    assert router.counts == RouterCounts(10, 10, 1, {RefusalCode.DEADLINE: 5})


def test_a_cancelled_request_is_not_run() -> None:
    router = Router([served(TEN, 50_000, "deferred")], PoolSettings())
    router.add_replica(0, 0)
    first, second = arrivals([0, 0], [50_000])
    assert router.arrive(0, first) is None and router.arrive(0, second) is None
    assert router.cancel(first) and not router.cancel(first)
    (batch,) = router.poll(39_000).dispatches
    assert batch.requests == (second,)


def test_a_starting_replica_is_used_once_it_is_ready() -> None:
    router = Router([served(TEN, 50_000, "eager")], PoolSettings())
    router.add_replica(0, 0, ready_us=30_000)
    assert router.arrive(0, InferenceRequest(0, "m", 0, 50_000)) is None
    step = router.poll(0)
    assert not step.dispatches and step.wake_us == 30_000
    assert len(router.poll(30_000).dispatches) == 1


def test_a_failed_prediction_is_learnt() -> None:
    """Batches that take twice as long: after two of them requests that could not make it are refused at arrival."""
    found = drive([served(TEN, 25_000, "deadline")], arrivals([30_000] * 60, [25_000]), 1, PoolSettings(), (2.6,))
    late = [
        batch for batch in found.dispatched if found.completed_us[batch.requests[0].id] > batch.requests[0].deadline_us
    ]
    assert len(late) <= 3 and all(refusal.code is RefusalCode.DEADLINE for refusal in found.refused)


def test_bad_pools_say_what_to_do() -> None:
    for models in ([], [served(TEN, 50_000, "eager")] * 2):
        with pytest.raises(UsageError, match="name each model once"):
            Router(models)
    with pytest.raises(UsageError, match="time above 0"):
        Router([served(TEN, 0, "eager")])
    for times in ({"cold_start_us": -1}, {"best_effort_us": -1}):
        with pytest.raises(UsageError, match="of 0 or more"):
            PoolSettings(**times)
    router = Router([served(TEN, 50_000, "eager")])
    with pytest.raises(NotFound, match="its models: m"):
        router.arrive(0, InferenceRequest(0, "other", 0, 1))
    router.add_replica(0, 0)
    with pytest.raises(UsageError, match="its own number"):
        router.add_replica(0, 0)
