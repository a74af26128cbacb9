"""A pool driven by hand, step by step, that keeps every fact for the properties to check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hypothesis import strategies as st

from tidewright.serve.admission import AdmissionRule
from tidewright.serve.lane import ServedModel
from tidewright.serve.profile import BatchProfile, affine
from tidewright.serve.request import NO_DEADLINE, BatchDispatch, InferenceRequest, RequestRefusal
from tidewright.serve.routing import PoolSettings, Router

PROFILES = st.builds(
    affine, alpha_us=st.integers(0, 3_000), beta_us=st.integers(1, 15_000), max_batch=st.integers(1, 40)
)
GAPS_US = st.lists(st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 40_000)), min_size=1, max_size=120)


@dataclass
class Outcome:
    """What happened to the requests of one run."""

    requests: list[InferenceRequest] = field(default_factory=list)
    refused: list[RequestRefusal] = field(default_factory=list)
    dispatched: list[BatchDispatch] = field(default_factory=list)
    completed_us: dict[int, int] = field(default_factory=dict)

    def fates(self) -> list[int]:
        """The ids of all requests that were answered or refused, once for each time."""
        answered = [request.id for batch in self.dispatched for request in batch.requests]
        return sorted([*answered, *(refusal.request.id for refusal in self.refused)])


def drive(
    models: Sequence[ServedModel],
    requests: Sequence[InferenceRequest],
    replicas: int,
    settings: PoolSettings,
    slower: Sequence[float] = (1.0,),
) -> Outcome:
    """Run the requests (by arrival) to the end. ``slower``: by how much batches take longer than profiled, in turn."""
    router, found = Router(models, settings), Outcome(list(requests))
    for replica in range(replicas):
        router.add_replica(0, replica)
    true_us = {model.name: model.profile.table(model.max_batch).us for model in models}
    ends: list[tuple[int, int]] = []
    now_us, wake_us, left = 0, None, list(requests)
    while left or ends or wake_us is not None:
        times = [*(request.arrived_us for request in left[:1]), *(end for end, _ in ends[:1])]
        now_us = max(now_us, min([*times, wake_us] if wake_us is not None else times))
        while ends and ends[0][0] <= now_us:
            batch = router.completed(now_us, heappop(ends)[1])
            found.completed_us.update({request.id: now_us for request in batch.requests})
        while left and left[0].arrived_us <= now_us:
            refusal = router.arrive(now_us, left.pop(0))
            found.refused += [refusal] if refusal else []
        step = router.poll(now_us)
        assert step.wake_us is None or step.wake_us > now_us
        wake_us = step.wake_us
        found.refused += step.refused
        for batch in step.dispatches:
            taken_us = round(true_us[batch.model][batch.items] * slower[len(found.dispatched) % len(slower)])
            found.dispatched.append(batch)
            heappush(ends, (now_us + taken_us, batch.replica))
    return found


def arrivals(
    gaps_us: Sequence[int],
    objectives: Sequence[int],
    names: Sequence[str] = ("m",),
    best_effort_every: int = 0,
    items: Sequence[int] = (1,),
) -> list[InferenceRequest]:
    """Requests with these gaps; models, objectives and numbers of items take turns, some have no deadline."""
    made, now_us = [], 0
    for index, gap_us in enumerate(gaps_us):
        now_us += gap_us
        idle = best_effort_every > 0 and index % best_effort_every == 0
        deadline_us = NO_DEADLINE if idle else now_us + objectives[index % len(objectives)]
        name, count = names[index % len(names)], items[index % len(items)]
        made.append(InferenceRequest(index, name, now_us, deadline_us, idle, bytes=10, items=count))
    return made


def served(profile: BatchProfile, objective_us: int, batching: str, name: str = "m") -> ServedModel:
    return ServedModel(name, profile, objective_us, batching)


ADMISSIONS = st.sampled_from(list(AdmissionRule))
POLICIES = st.sampled_from(
    ["eager", "eager:max_batch=3", "aimd", "aimd:timeout=2ms", "deadline", "deferred", "deferred:slack=1ms"]
)
