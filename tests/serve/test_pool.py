"""A pool at the gateway, with replicas that say what the test has them say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tidewright.base.errors import UsageError
from tidewright.serve.gateway.measures import GatewayMeasures
from tidewright.serve.gateway.pool import ServicePool, Unavailable
from tidewright.serve.protocol.signature import ModelSignature, TensorSignature
from tidewright.serve.replica.link import BatchDone, Leaving, ReplicaHello, RequestResult, ServingOptions

X = ModelSignature((TensorSignature("x", "FP32", ()),), (), 8)
Z = ModelSignature((TensorSignature("z", "FP32", ()),), (), 8)


class Replica:
    """Keeps what it is sent."""

    def __init__(self, job: int, signature: ModelSignature = X, **options: Any) -> None:
        serving = ServingOptions(service="m", model="app:m", **{"objective_us": 50_000, **options})
        self.hello = ReplicaHello(job, 1, serving, signature, ((1, 9_000), (8, 16_000)))
        self.sent: list[int] = []
        self.closed = False

    def send(self, requests: tuple[Any, ...]) -> None:
        self.sent.append(len(requests))

    def close(self) -> None:
        self.closed = True


class Rig:
    """A pool and its clock."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.pool = ServicePool("m", lambda: self.now_us, GatewayMeasures().of("m"), lambda job: None)

    def join(self, replica: Any) -> Any:
        self.pool.join(replica)
        return replica

    def ask(self, items: int = 1) -> Any:
        pending = self.pool.admit(items, 4 * items)
        self.pool.start(pending, {"x": np.zeros(items, np.float32)})
        return pending

    def answer(self, replica: Any) -> None:
        self.pool.said(replica, BatchDone(tuple(RequestResult() for _ in range(replica.sent[-1]))))


def in_loop(check: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(check())

    run.__name__ = check.__name__
    return run


@in_loop
async def test_the_newest_replica_says_objective_and_policy_while_older_ones_run_on() -> None:
    rig = Rig()
    old = rig.join(Replica(4, objective_us=5_000))
    rig.ask()  # the objective cannot be met: this one corrects the prediction
    with pytest.raises(Unavailable, match="after its deadline"):
        rig.ask()
    rig.join(Replica(7, objective_us=200_000, batching="eager:max_batch=2"))
    assert rig.ask().request.deadline_us == rig.now_us + 200_000
    rig.join(Replica(5, objective_us=5_000))  # an older one that connects again
    assert rig.ask().request.deadline_us == rig.now_us + 200_000
    rig.answer(old)
    waiting = [rig.ask() for _ in range(5)]
    rig.now_us += 10_000
    rig.answer(old)
    assert old.sent == [1, 1, 2] and len(waiting) == 5  # two at a time, as the new policy says


@in_loop
async def test_what_waits_for_a_model_that_is_replaced_is_refused_and_not_kept_for_ever() -> None:
    rig = Rig()
    old = rig.join(Replica(1))
    first, second = rig.ask(), rig.ask()
    assert old.sent == [1]
    rig.pool.said(old, Leaving())
    with pytest.raises(UsageError, match="another signature"):
        rig.join(Replica(2, Z))
    rig.answer(old)
    assert first.answer.done() and old.closed
    rig.join(Replica(2, Z))
    with pytest.raises(Unavailable, match="replaced"):
        await second.answer
    assert rig.pool.signature == Z


@in_loop
async def test_items_are_what_waits_and_what_is_run() -> None:
    rig = Rig()
    replica = rig.join(Replica(1, objective_us=1_000_000))
    for items in (1, 5, 4, 2):
        rig.ask(items)
    assert rig.pool.waiting() == 3 and rig.pool.waiting_items() == 11
    rig.answer(replica)
    assert replica.sent == [1, 1] and rig.pool.waiting_items() == 6
