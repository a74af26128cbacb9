"""What a chain does with its control block, with CPU tensors for the device's and a function for the graph: each CTA runs once,
however often real-time work cuts the chain short. On a GPU: ``test_device_gpu``."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tidewright.base.errors import Conflict, UsageError
from tidewright.runtime.cuda import device as dev
from tidewright.runtime.cuda.control import RT_ACTIVE, CtaDecision, decide

torch = pytest.importorskip("torch")
KERNELS, CTAS = 6, 5


class Words:
    """A control block's words as ``decide`` takes them."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def __getitem__(self, at: int) -> int:
        return int(self.block[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.block[at] = value


class Model:
    """A gated chain whose CTAs count how often they run; before each of them real-time work may begin or end."""

    largest_grid = CTAS

    def __init__(self, dice: random.Random, interrupts: float) -> None:
        self.dice, self.interrupts = dice, interrupts
        self.runs = torch.zeros((KERNELS, CTAS), dtype=torch.int32)
        self.block: Any = None
        self.gates = True

    def bind(self, block: Any) -> None:
        self.block = block

    def levels(self) -> list[Any]:
        return [SimpleNamespace(kernel="k", level=dev.GateLevel.CTA_GATE if self.gates else dev.GateLevel.BOUNDED)]

    def function(self, *_: Any) -> Any:
        for kernel in range(1, KERNELS + 1):
            for cta in random.Random(self.dice.random()).sample(range(CTAS), CTAS):
                if self.dice.random() < self.interrupts:
                    self.block[RT_ACTIVE] = 1 - int(self.block[RT_ACTIVE])
                if decide(Words(self.block), kernel, cta) is CtaDecision.RUN:  # type: ignore[arg-type]
                    self.runs[kernel - 1, cta] += 1
        return self.runs


class Graph:
    def __init__(self, body: Callable[[], Any]) -> None:
        self.replay = body


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device: a graph is its function, a stream does everything at once."""
    monkeypatch.setattr(dev, "capture", lambda body, stream: (Graph(body), body()))
    monkeypatch.setattr(dev, "_pinned", lambda words: torch.empty(words, dtype=torch.int32))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None, query=lambda: True))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)


def made(seed: int, interrupts: float) -> tuple[dev.GatedChain, Model, dev.ControlBlocks]:
    model = Model(random.Random(seed), 0.0)
    blocks = dev.ControlBlocks(3, CTAS, "cpu")
    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda other: None)
    chain = dev.GatedChain(model, (torch.zeros(2),), blocks.row(1), stream)  # type: ignore[arg-type]
    model.runs.zero_()
    model.interrupts = interrupts
    return chain, model, blocks


@pytest.mark.usefixtures("host")
def test_each_cta_runs_once_however_often_the_chain_is_cut_short() -> None:
    aborted = 0
    for seed in range(200):
        chain, model, blocks = made(seed, 0.1)
        for task in range(1, 4):
            chain.begin(torch.ones(2))
            while not (chain.step() and chain.complete):
                if model.dice.random() < 0.5:
                    blocks.clear_flag()
                chain.launch()
            assert (model.runs == task).all(), f"seed {seed}"
        aborted += chain.counts.aborted
    assert aborted > 200


@pytest.mark.usefixtures("host")
def test_a_task_that_is_discarded_leaves_nothing_to_the_next() -> None:
    for seed in range(100):
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
def test_a_chain_refuses_kernels_without_a_gate_and_blocks_that_are_too_short() -> None:
    model = Model(random.Random(0), 0.0)
    with pytest.raises(UsageError, match="words"):
        dev.GatedChain(model, (), dev.ControlBlocks(1, CTAS - 3, "cpu").row(0), None)  # type: ignore[arg-type]
    model.gates = False
    with pytest.raises(UsageError, match="kernels without a gate: k"):
        dev.GatedChain(model, (), dev.ControlBlocks(1, CTAS, "cpu").row(0), None)  # type: ignore[arg-type]


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
        chain._open_gate()
    assert places
    assert not [place for place in places if place not in known and not ends[0] <= place < ends[1]]
