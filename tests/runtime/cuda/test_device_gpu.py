"""Gated chains on a real GPU. Needs one; says why when it is skipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewright.base.errors import Conflict, UsageError
from tidewright.runtime import Runtime
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.capture import capture, warm_up
from tidewright.runtime.cuda.compile import GatedModel, compile_gated, require_device
from tidewright.runtime.cuda.control import MARKS
from tidewright.runtime.cuda.kernels import GraphKernels
from tidewright.runtime.cuda.shares import ShareStreams

pytestmark = [pytest.mark.gpu, pytest.mark.processes]
ROUNDS = 1000


@pytest.fixture(scope="module")
def chain() -> Iterator[tuple[dev.GatedChain, dev.ControlBlocks, Any, Any]]:
    """A chain of some matrix products, with the blocks of two queues, and what it computes undisturbed of which inputs."""
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
    # A task's inputs are copied into the chain's own: each test begins with these.
    made.begin(*(one.clone() for one in inputs))
    made.finish()
    expected, given = made.outputs.clone(), tuple(one.clone() for one in inputs)
    yield made, blocks, expected, given


def test_preempted_at_any_moment_it_computes_the_same_bits(chain: Any) -> None:
    """Of other inputs each time: what an earlier task left in memory is not right by accident."""
    import torch

    made, blocks, _, _ = chain
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

    made, blocks, expected, inputs = chain
    made.begin(*inputs)
    made.finish()
    blocks.raise_flag()
    torch.cuda.synchronize()
    made.outputs.zero_()
    made.launch()
    while not made.step():
        pass
    assert not made.complete and not made.outputs.any()
    with pytest.raises(Conflict):
        made.begin(*inputs)
    blocks.clear_flag()
    torch.cuda.synchronize()
    made.finish()
    assert torch.equal(made.outputs, expected)


def test_a_task_that_was_discarded_leaves_nothing_to_the_next(chain: Any) -> None:
    import torch

    made, blocks, expected, inputs = chain
    made.begin(*inputs)
    blocks.raise_flag()
    torch.cuda.synchronize()
    made.step()
    made.discard()
    blocks.clear_flag()
    torch.cuda.synchronize()
    made.begin(*inputs)
    made.finish()
    assert torch.equal(made.outputs, expected)


def test_a_task_goes_on_with_a_share_of_the_multiprocessors_and_back(chain: Any) -> None:
    """Cut short in either lane at random moments; each goes on with what is missing."""
    import torch

    made, blocks, expected, inputs = chain
    beside = dev.ControlBlocks(2, len(blocks.row(1)) - MARKS)
    streams = ShareStreams(16)
    lane = made.add_lane(beside.row(1), streams.take())
    side, dice, before = torch.cuda.Stream(priority=dev.REAL_TIME), random.Random(4), made.counts.aborted
    for _ in range(200):
        made.begin(*inputs, lane=dice.choice(made.lanes))
        while not made.complete:
            with torch.cuda.stream(side):
                torch.cuda._sleep(dice.randrange(100_000))
                blocks.raise_flag()
                beside.stop(1, True)
                torch.cuda._sleep(dice.randrange(20_000))
                blocks.clear_flag()
                beside.stop(1, False)
            while not made.step():
                pass
            if not made.complete:
                made.launch(lane if made.stream is not lane.stream else made.lanes[0])
        assert torch.equal(made.outputs, expected)
    assert made.counts.aborted - before > 20, "hardly a launch was cut short: the test shows nothing"


def test_a_graph_taken_apart_computes_the_same(chain: Any) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    import torch

    x = torch.randn(256, 256, device="cuda")
    stream = torch.cuda.Stream()
    body = lambda: (torch.relu(x @ x) + 1).softmax(-1)  # noqa: E731
    warm_up(body, stream)
    graph, outputs = capture(body, stream, keep=True)
    graph.replay()
    torch.cuda.synchronize()
    expected = outputs.clone()
    kernels = GraphKernels(graph)
    kernels.time(stream)
    assert len(kernels.kernels) >= 3 and all(one.facts.total_ns > 0 for one in kernels.kernels)
    outputs.zero_()
    torch.cuda.synchronize()
    for one in kernels.kernels:
        one.launch(stream)
    torch.cuda.synchronize()
    assert torch.equal(outputs, expected)
    kernels.release()


@pytest.mark.parametrize("options", [{}, {"padding": "always", "padding_sms": 16}, {"stop": "kernel"}])
def test_a_runtime_computes_the_same_bits_under_preemption(options: dict[str, Any]) -> None:
    """Real clients of a real daemon: best-effort tasks beside real-time ones, against the same tasks alone."""
    try:
        require_device()
    except UsageError as error:
        pytest.skip(str(error))
    import numpy as np

    spec = [("float32", (64, 512))]
    given = np.random.default_rng(1).standard_normal((64, 512), np.float32)
    with (
        Runtime(device="cuda", **options) as runtime,
        runtime.client("rt") as rt,
        runtime.client("be") as be,
    ):
        factory = f"{Path(__file__).parent / 'gpu_models.py'}:layers"
        quick = rt.load(factory, spec, arguments={"count": 2})
        slow = be.load(factory, spec, arguments={"count": 24}, slots=4)
        (expected,) = slow.infer(given)
        before = be.stats()["preemptions"]
        for _ in range(200):
            # More than the device takes at once: where padding lets them, some are launched beside real-time work.
            pending = [slow.submit(given) for _ in range(4)]
            for _ in range(3):
                quick.infer(given)
            for task in pending:
                assert task.result(60)[0].tobytes() == expected.tobytes()
        assert be.stats()["preemptions"] > before or be.stats()["padded"]
