"""The binding limit of a job that cannot be placed."""

import pytest

from tidewright.model.job import JobSpec, Level, State
from tidewright.placement.explain import explain
from tidewright.plan.reasons import Reason
from tidewright.plan.request import Request
from tidewright.testing.views import ViewBuilder, pool


def job(devices: int, **fields) -> JobSpec:
    return JobSpec(command=("x",), ranks=devices, devices=devices, **fields)


def reason(builder: ViewBuilder, request: Request):
    view = builder.view()
    return explain(view, view.board(), 1, request)


def test_too_few_devices_names_the_holders():
    builder = ViewBuilder(pool(2, 4))
    first, second = builder.run(job(2)), builder.run(job(4))
    told = reason(builder, Request(4, (1,)))
    assert (told.reason, told.need, told.free, told.holders) == (Reason.NO_CAPACITY, 4, 2, (second, first))


def test_enough_devices_that_lie_apart():
    builder = ViewBuilder(pool(2, 4))
    for _ in range(2):
        builder.run(job(3))
    builder.board.release(builder.allocations[1])
    builder.board.acquire(((builder.allocations[1][0])._replace(mask=1),))
    assert reason(builder, Request(4, (1,))).reason is Reason.FRAGMENTED


def test_nodes_that_are_down():
    builder = ViewBuilder(pool(2, 4))
    builder.board.set_up(1, False)
    assert reason(builder, Request(8, (1,))).reason is Reason.NODES_DOWN


def test_what_no_pool_of_this_shape_could_hold():
    assert reason(ViewBuilder(pool(2, 4)), Request(6, (1,), placement="one-node")).reason is Reason.NEVER_FITS


@pytest.mark.parametrize(("up", "expected"), [(True, Reason.PINNED_NODE_BUSY), (False, Reason.NODES_DOWN)])
def test_a_frozen_job_waits_for_its_home(up, expected):
    builder = ViewBuilder(pool(2, 4))
    frozen = builder.queue(job(2), state=int(State.SUSPENDED), level=int(Level.FREEZE), pinned_node=0)
    holder = builder.run(job(4))
    builder.board.set_up(0, up)
    told = reason(builder, Request(2, (1,), pinned_node=0))
    assert told.reason is expected and told.holders == (holder,) and frozen == 1
