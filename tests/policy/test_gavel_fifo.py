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


def test_a_job_gets_a_kind_that_it_can_run_on_even_where_another_has_room() -> None:
    builder = ViewBuilder((*pool(1, 8, "a"), *pool(2, 4, "b")))
    whole_node = builder.queue(job(8, placement="one-node"))
    assert starts(builder, {}) == {whole_node: 0}
    builder = ViewBuilder((*pool(1, 4, "a"), *pool(1, 4, "b")))
    picky = builder.queue(job(2, device_types=("a",)))
    assert starts(builder, {}) == {picky: 0}


def test_a_job_that_may_run_on_fewer_devices_gets_as_many_as_a_node_has() -> None:
    """Eight are asked for, on one node, and no node has more than four: it waited for all time, and all others behind it."""
    builder = ViewBuilder(pool(2, 4, "a"))
    spliced = builder.queue(job(8, placement="one-node", min_devices=2))
    assert set(starts(builder, {})) == {spliced}
