"""Gavel's fifo: kinds are kept, places are inherited, nothing passes the head."""

from tidewright.model.job import JobSpec
from tidewright.plan.moves import Start
from tidewright.policy.baselines.gavel_fifo import GavelFifo, GavelFifoState
from tidewright.policy.state import remember
from tidewright.testing.policies import check_plan, check_policy
from tidewright.testing.views import ViewBuilder, pool


def job(devices: int, **fields: object) -> JobSpec:
    return JobSpec(command=("x",), devices=devices, ranks=devices, **fields)


def starts(builder: ViewBuilder, kinds: dict[int, str]) -> dict[int, int]:
    """Job to the node it starts on, and what the plan remembers."""
    view = builder.view()
    view.policy_state = "gavel-fifo", remember("gavel-fifo", GavelFifoState(kinds)).data
    plan = GavelFifo().plan(view)
    check_plan(view, plan)
    return {move.job: move.allocation[0].node for move in plan.moves if isinstance(move, Start)}


def test_the_kit() -> None:
    check_policy(GavelFifo, views=20)


def test_the_last_kind_with_room_and_nothing_passes_the_head() -> None:
    builder = ViewBuilder((*pool(1, 4, "a"), *pool(1, 2, "b")))
    jobs = [builder.queue(job(2)), builder.queue(job(4)), builder.queue(job(4)), builder.queue(job(1))]
    assert starts(builder, {}) == {jobs[0]: 1, jobs[1]: 0}


def test_a_job_that_ends_leaves_its_place_to_the_head() -> None:
    builder = ViewBuilder((*pool(1, 4, "a"), *pool(1, 4, "b")))
    head = builder.queue(job(4))
    assert starts(builder, {99: "a"}) == {head: 0}
    builder = ViewBuilder((*pool(1, 4, "a"), *pool(1, 4, "b")))
    picky = builder.queue(job(4, device_types=("b",)))
    assert starts(builder, {99: "a"}) == {picky: 1}
