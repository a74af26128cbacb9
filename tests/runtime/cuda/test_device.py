"""What a chain does with its control block, with CPU tensors for the device's and a function for the graph: each CTA runs once,
however often real-time work cuts the chain short. On a GPU: ``test_device_gpu``."""

from __future__ import annotations

import gc
import importlib.util
import random
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sizes import examples
from tidewright.base.errors import Conflict, UsageError
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.capture import ChainPart, PartRecorder
from tidewright.runtime.cuda.control import RT_ACTIVE, CtaDecision, decide

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch here")
KERNELS, CTAS = 6, 5
torch: Any = None
"""Imported with the first test: it takes seconds, and workers that run none of these need it not."""


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    global torch
    torch = importlib.import_module("torch")


class Words:
    """A control block's words as ``decide`` takes them."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def __getitem__(self, at: int) -> int:
        return int(self.block[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.block[at] = value


class Model:
    """A gated chain whose CTAs count how often they run; before each of them real-time work may begin or end. Kernels of
    ``foreign`` have no gate."""

    largest_grid = CTAS
    modules: tuple[Any, ...] = ()

    def __init__(self, dice: random.Random, foreign: tuple[int, ...] = ()) -> None:
        self.dice, self.interrupts, self.foreign = dice, 0.0, foreign
        self.runs = torch.zeros((KERNELS, CTAS), dtype=torch.int32)
        self.open_block = dev.ControlBlocks(1, CTAS, "cpu").row(0)
        self.block: Any = None

    def bind(self, block: Any) -> None:
        self.block = block

    def bind_open(self) -> None:
        self.bind(self.open_block)

    def function(self, *_: Any) -> Any:
        for kernel in range(1, KERNELS + 1):
            self.kernel(kernel, self.block)
        return self.runs

    def kernel(self, kernel: int, block: Any) -> None:
        before = self.runs[: kernel - 1].unique()
        for cta in random.Random(self.dice.random()).sample(range(CTAS), CTAS):
            if self.dice.random() < self.interrupts:
                block[RT_ACTIVE] = 1 - int(block[RT_ACTIVE])
            if kernel in self.foreign:
                assert len(before) <= 1, "what cannot be stopped ran after what had been"
                self.runs[kernel - 1, cta] += 1
            elif decide(Words(block), kernel, cta) is CtaDecision.RUN:  # type: ignore[arg-type]
                self.runs[kernel - 1, cta] += 1

    def parts(self, head: Callable[[], None], tail: Callable[[], None]) -> list[ChainPart]:
        """As ``capture_parts`` cuts them."""
        found, first, block = [], 1, self.block
        for kernel in (*self.foreign, KERNELS + 1):
            if first < kernel or kernel > KERNELS:
                found.append(
                    ChainPart(Graph(partial(self._gated, head, range(first, kernel), block, tail)), True, first)
                )
            if kernel <= KERNELS:
                found.append(ChainPart(Graph(partial(self.kernel, kernel, block)), False, kernel))
            first = kernel + 1
        return found

    def _gated(self, head: Callable[[], None], kernels: range, block: Any, tail: Callable[[], None]) -> None:
        head()
        for kernel in kernels:
            self.kernel(kernel, block)
        tail()


class Graph:
    def __init__(self, body: Callable[[], Any]) -> None:
        self.replay = body


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device: a graph is its function, a stream does everything at once."""

    monkeypatch.setattr(
        dev, "capture_parts", lambda gated, inputs, stream, head, tail: (gated.parts(head, tail), gated.runs)
    )
    monkeypatch.setattr(dev, "warm_up", lambda body, stream: body())
    monkeypatch.setattr(dev, "_pinned", lambda words: torch.empty(words, dtype=torch.int32))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None, query=lambda: True))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)


STREAM = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda other: None)


def made(
    seed: int, interrupts: float, foreign: tuple[int, ...] = ()
) -> tuple[dev.GatedChain, Model, dev.ControlBlocks]:
    model = Model(random.Random(seed), foreign)
    blocks = dev.ControlBlocks(3, CTAS, "cpu")
    chain = dev.GatedChain(model, (torch.zeros(2),), blocks.row(1), STREAM)  # type: ignore[arg-type]
    model.runs.zero_()
    model.interrupts = interrupts
    return chain, model, blocks


def run(chain: dev.GatedChain, model: Model, blocks: dev.ControlBlocks, lanes: bool = False) -> None:
    """To the end of the task, cut short again and again; ``lanes``: in any of them by turns."""
    while not (chain.step() and chain.complete):
        if model.dice.random() < 0.5:
            blocks.clear_flag()
        chain.launch(model.dice.choice(chain.lanes) if lanes else None)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("foreign", [(), (3,), (1,), (6,), (2, 3, 5), (1, 2, 3, 4, 5, 6)])
def test_each_cta_runs_once_however_often_the_chain_is_cut_short(foreign: tuple[int, ...]) -> None:
    aborted = 0
    for seed in range(examples(40)):
        chain, model, blocks = made(seed, 0.1, foreign)
        for task in range(1, 4):
            chain.begin(torch.ones(2))
            run(chain, model, blocks)
            assert (model.runs == task).all(), f"seed {seed}"
        aborted += chain.counts.aborted
    assert aborted > 20 or len(foreign) == KERNELS


@pytest.mark.usefixtures("host")
def test_a_task_goes_on_in_another_lane_where_it_was_cut_short() -> None:
    moved = 0
    for seed in range(examples(64)):
        chain, model, blocks = made(seed, 0.0)
        chain.add_lane(blocks.row(2), STREAM)
        model.runs.zero_()
        model.interrupts = 0.2
        for task in range(1, 4):
            chain.begin(torch.ones(2))
            before = chain.control.data_ptr()
            run(chain, model, blocks, lanes=True)
            moved += before != chain.control.data_ptr()
            assert (model.runs == task).all(), f"seed {seed}"
    assert moved > 20


@pytest.mark.usefixtures("host")
def test_another_lane_is_captured_while_a_task_is_half_done() -> None:
    chain, model, blocks = made(1, 0.3)
    chain.begin(torch.ones(2))
    assert not chain.complete
    model.interrupts = 0.0
    blocks.clear_flag()
    runs = model.runs.clone()
    chain.add_lane(blocks.row(2), STREAM)
    model.runs.copy_(runs)
    run(chain, model, blocks)
    assert (model.runs == 1).all(), "calls before a capture use the gate of no queue"


@pytest.mark.usefixtures("host")
def test_a_task_that_is_discarded_leaves_nothing_to_the_next() -> None:
    for seed in range(examples(100)):
        chain, model, blocks = made(seed, 0.2)
        chain.begin(torch.ones(2))
        chain.step()
        if chain.complete:
            continue
        with pytest.raises(Conflict):
            chain.begin(torch.ones(2))
        chain.discard()
        blocks.clear_flag()
        model.interrupts = 0.0
        model.runs.zero_()
        chain.begin(torch.ones(2))
        assert chain.step() and chain.complete
        assert (model.runs == 1).all(), f"seed {seed}"


@pytest.mark.usefixtures("host")
def test_a_stop_of_one_queue_and_the_flag_of_all_do_not_undo_each_other() -> None:
    blocks = dev.ControlBlocks(3, 4, "cpu")
    blocks.stop(1, True)
    blocks.raise_flag()
    assert [bool(blocks.row(queue)[RT_ACTIVE]) for queue in range(3)] == [True, True, True]
    blocks.clear_flag()
    assert [bool(blocks.row(queue)[RT_ACTIVE]) for queue in range(3)] == [False, True, False]
    blocks.stop(1, False)
    assert not blocks.blocks[:, RT_ACTIVE].any()


@pytest.mark.usefixtures("host")
def test_a_launch_of_a_complete_task_runs_it_again() -> None:
    chain, model, blocks = made(0, 0.0, (4,))
    for task in range(1, 3):
        chain.launch()
        run(chain, model, blocks)
        assert (model.runs == task).all()


@pytest.mark.usefixtures("host")
def test_a_chain_with_parts_that_have_no_gate_has_one_lane() -> None:
    chain, _, blocks = made(0, 0.0, (4,))
    with pytest.raises(UsageError, match="one lane"):
        chain.add_lane(blocks.row(2), STREAM)


@pytest.mark.usefixtures("host")
def test_a_lane_with_a_control_block_of_another_size_is_refused() -> None:
    chain, _, _ = made(1, 0.0)
    with pytest.raises(UsageError):
        chain.add_lane(dev.ControlBlocks(1, CTAS + 2, "cpu").row(0), STREAM)


@pytest.mark.usefixtures("host")
def test_a_graph_keeps_the_weights_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "capture", lambda body, stream, keep: (Graph(body), body()))
    model = torch.nn.Linear(2, 2)
    weights = weakref.ref(model.weight)
    graph = dev.RealTimeGraph(model.__call__, (torch.ones(2),), None, STREAM)
    del model
    gc.collect()
    assert weights() is not None
    graph.release()
    gc.collect()
    assert weights() is None


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("nbytes", "gated", "order"),
    [(dev.HINT_BYTES, True, "flag copy flag clear"), (100, True, "copy flag clear"), (dev.HINT_BYTES, False, "copy")],
)
def test_gates_are_closed_before_large_inputs_are_copied(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, gated: bool, order: str
) -> None:
    monkeypatch.setattr(dev, "capture", lambda body, stream, keep: (Graph(body), body()))
    log: list[str] = []
    place = SimpleNamespace(nbytes=nbytes, copy_=lambda value, non_blocking: log.append("copy"))
    controls: Any = SimpleNamespace(raise_flag=lambda: log.append("flag"), clear_flag=lambda: log.append("clear"))
    graph = dev.RealTimeGraph(lambda _: None, (place,), controls if gated else None, STREAM)
    log.clear()
    graph.launch((1,))
    assert " ".join(log) == order


@pytest.mark.usefixtures("host")
def test_the_flag_is_one_for_all_queues_and_their_other_words_are_left_alone() -> None:
    blocks = dev.ControlBlocks(3, 4, "cpu")
    before = blocks.blocks.clone()
    blocks.raise_flag()
    changed = (blocks.blocks != before).nonzero().tolist()
    assert changed == [[queue, RT_ACTIVE] for queue in range(3)]
    blocks.clear_flag()
    assert torch.equal(blocks.blocks, before)
    assert blocks.blocks.stride(0) % 2 == 0, "the gate reads two words as one that must be aligned"
    with pytest.raises(UsageError):
        blocks.row(3)


@pytest.mark.usefixtures("host")
def test_a_chain_refuses_blocks_that_are_too_short() -> None:
    model = Model(random.Random(0))
    with pytest.raises(UsageError, match="words"):
        dev.GatedChain(model, (), dev.ControlBlocks(1, CTAS - 3, "cpu").row(0), None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("values", [(), (2, 2), (3,)])
def test_inputs_of_another_form_are_refused(values: tuple[int, ...]) -> None:
    chain, _, _ = made(0, 0.0)
    with pytest.raises(UsageError, match="the model takes"):
        chain.begin(*(torch.ones(size) for size in values))


@pytest.mark.usefixtures("host")
def test_the_head_of_a_chain_makes_no_tensors() -> None:
    """In a capture they would share memory with the model's results."""
    from torch.utils._python_dispatch import TorchDispatchMode

    chain, _, _ = made(0, 0.0)
    known = {one.data_ptr() for one in (chain.control, chain._closed, chain._zero, chain._start, chain._fresh)}
    ends = chain.control.data_ptr(), chain.control.data_ptr() + 4 * len(chain.control)

    places: list[int] = []

    class Made(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = op(*args, **(kwargs or {}))
            places.extend([found.data_ptr()] if isinstance(found, torch.Tensor) else [])
            return found

    with Made():
        chain._open_gate(chain.control)
    assert places
    assert not [place for place in places if place not in known and not ends[0] <= place < ends[1]]


@pytest.mark.parametrize(
    ("boundaries", "parts"),
    [
        ([], [(1, True, "head tail")]),
        ([(3, False), (4, True)], [(1, True, "head tail"), (3, False, ""), (4, True, "head tail")]),
        ([(1, False), (2, True)], [(1, False, ""), (2, True, "head tail")]),
        (
            [(2, False), (3, True), (3, False), (4, True)],
            [(1, True, "head tail"), (2, False, ""), (3, False, ""), (4, True, "head tail")],
        ),
    ],
)  # fmt: skip
def test_a_capture_is_cut_at_boundaries(boundaries: list[tuple[int, bool]], parts: list[tuple[int, bool, str]]) -> None:
    captured: list[list[str]] = []
    ended: list[Any] = []

    def new_graph() -> Any:
        captured.append([])
        graph = SimpleNamespace(done=captured[-1])
        graph.capture_end = lambda: ended.append(graph)
        return graph

    recorder = PartRecorder(new_graph, lambda: captured[-1].append("head"), lambda: captured[-1].append("tail"))
    recorder.begin(1, True)
    for boundary in boundaries:
        recorder.boundary(*boundary)
    recorder.end()
    assert [(part.first, part.gated, " ".join(part.graph.done)) for part in recorder.parts] == parts
    assert len(ended) == len(captured), "no capture is left open, also of a part that is dropped"
