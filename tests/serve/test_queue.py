"""The queue against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.serve.queue import DeadlineQueue
from tidewright.serve.rate import ArrivalRate
from tidewright.serve.request import InferenceRequest, RefusalCode

ACTIONS = st.lists(st.one_of(st.tuples(st.just("push"), st.integers(0, 50)), st.tuples(st.just("pop"), st.integers(1, 5)),
                             st.tuples(st.just("remove"), st.integers(0, 60))), max_size=200)  # fmt: skip


@given(ACTIONS, st.integers(1, 4))
def test_a_queue_is_a_sorted_list(actions: list[tuple[str, int]], sizes: int) -> None:
    queue, model = DeadlineQueue(10**6, 10**9), list[InferenceRequest]()
    made: list[InferenceRequest] = []
    for action, value in actions:
        if action == "push":
            request = InferenceRequest(len(made), "m", 0, value, bytes=value, items=1 + value % sizes)
            made.append(request)
            assert queue.is_last(request) == (sorted([*model, request], key=by_deadline)[-1] is request)
            queue.push(request)
            model = sorted([*model, request], key=by_deadline)
        elif action == "pop":
            count = min(value, len(model))
            assert queue.pop(count) == model[:count]
            model = model[count:]
        elif value < len(made):
            assert queue.remove(made[value]) == (made[value] in model)
            model = [request for request in model if request is not made[value]]
        assert [queue.at(index) for index in range(len(queue))] == model
        assert queue.bytes == sum(request.bytes for request in model)
        assert queue.items == sum(request.items for request in model)
        start = value % (len(model) + 1)
        count, items = queue.fitting(value, start)
        assert items == sum(request.items for request in model[start : start + count]) <= value
        assert start + count == len(model) or items + model[start + count].items > value


def by_deadline(request: InferenceRequest) -> tuple[int, int]:
    return request.deadline_us, request.id


def test_bounds() -> None:
    queue = DeadlineQueue(2, 100)
    queue.push(InferenceRequest(0, "m", 0, 5, bytes=60))
    assert queue.refuses(InferenceRequest(1, "m", 0, 5, bytes=41)) is RefusalCode.QUEUE_BYTES
    assert queue.refuses(InferenceRequest(1, "m", 0, 5, bytes=40)) is None
    queue.push(InferenceRequest(1, "m", 0, 5))
    assert queue.refuses(InferenceRequest(2, "m", 0, 5)) is RefusalCode.QUEUE_FULL
    for length, size in ((0, 5), (5, 0)):
        with pytest.raises(UsageError, match="bounds above 0"):
            DeadlineQueue(length, size)


@given(st.integers(1, 50), st.integers(1, 1_000))
def test_a_steady_rate_is_found(gap: int, bucket_gaps: int) -> None:
    rate = ArrivalRate(gap * bucket_gaps, 4)
    for index in range(bucket_gaps * 6):
        rate.add(index * gap)
    assert rate.per_second == pytest.approx(1e6 / gap)
    rate.add(10**9)
    assert rate.per_second <= 1e6 / gap
    rate.add(10**9 + gap * bucket_gaps)
    with pytest.raises(UsageError):
        ArrivalRate(0)
