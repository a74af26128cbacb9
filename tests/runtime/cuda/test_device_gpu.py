"""Gated chains on a real GPU. Needs one; says why when it is skipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tidewright.base.errors import Conflict, UsageError
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.compile import GatedModel, compile_gated, require_device

pytestmark = [pytest.mark.gpu, pytest.mark.processes]
ROUNDS = 1000


@pytest.fixture(scope="module")
def chain() -> Iterator[tuple[dev.GatedChain, dev.ControlBlocks, Any]]:
    """A chain of some matrix products, with the blocks of two queues and what it computes undisturbed."""
    try:
        require_device()
    except UsageError as error:
        pytest.skip(str(error))
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(12)]
    model = torch.nn.Sequential(*layers).cuda().half().eval()
    inputs = (torch.randn(512, 1024, device="cuda", dtype=torch.half),)
    gated: GatedModel = compile_gated(model, inputs)
    blocks = dev.ControlBlocks(2, gated.largest_grid)
    made = dev.GatedChain(gated, inputs, blocks.row(1), torch.cuda.Stream(priority=dev.BEST_EFFORT))
    made.begin(*inputs)
    made.finish()
    yield made, blocks, made.outputs.clone()


def test_preempted_at_any_moment_it_computes_the_same_bits(chain: Any) -> None:
    """Of other inputs each time: what an earlier task left in memory is not right by accident."""
    import torch

    made, blocks, _ = chain
    given = [(torch.randn_like(made.inputs[0]),) for _ in range(4)]
    expected = []
    for values in given:
        made.begin(*values)
        made.finish()
        expected.append(made.outputs.clone())
    side, dice, before = torch.cuda.Stream(priority=dev.REAL_TIME), random.Random(1), made.counts.aborted
    for _ in range(ROUNDS):
        which = dice.randrange(4)
        made.begin(*given[which])
        with torch.cuda.stream(side):
            torch.cuda._sleep(dice.randrange(200_000))
            blocks.raise_flag()
            torch.cuda._sleep(dice.randrange(20_000))
            blocks.clear_flag()
        made.finish()
        assert torch.equal(made.outputs, expected[which])
    assert made.counts.aborted - before > ROUNDS / 10, "hardly a launch was cut short: the test shows nothing"


def test_nothing_runs_while_the_flag_is_raised(chain: Any) -> None:
    import torch

    made, blocks, expected = chain
    blocks.raise_flag()
    torch.cuda.synchronize()
    made.outputs.zero_()
    made.launch()
    while not made.step():
        pass
    assert not made.complete and not made.outputs.any()
    with pytest.raises(Conflict):
        made.begin(*made.inputs)
    blocks.clear_flag()
    torch.cuda.synchronize()
    made.finish()
    assert torch.equal(made.outputs, expected)


def test_a_task_that_was_discarded_leaves_nothing_to_the_next(chain: Any) -> None:
    import torch

    made, blocks, expected = chain
    made.launch()
    blocks.raise_flag()
    torch.cuda.synchronize()
    made.step()
    made.discard()
    blocks.clear_flag()
    torch.cuda.synchronize()
    made.begin(*made.inputs)
    made.finish()
    assert torch.equal(made.outputs, expected)
