"""``python -m tests.runtime.cuda.interpreted VARIANT CHAINS SEED``, with TRITON_INTERPRET=1: chains of in-place kernels
under the gate, in Triton's interpreter, while another thread raises and clears the flag at random. Prints counts as JSON.

The interpreter runs CTAs one after the other, so what CTAs do to each other at the gate is tested in test_control.py instead.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidewright.runtime.cuda.control import MARKS, RT_ACTIVE, ControlBlock
from tidewright.runtime.cuda.gate import GATE_SOURCE, gate_source

BLOCK = 32
CTAS = 12
KERNELS = """
import triton
import triton.language as tl


@triton.jit
def multiply(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, (tl.load(x + at) * 5 + 1) % 1009)


@triton.jit
def mix(x, y, n, BLOCK: tl.constexpr):
    '''In place, and it reads what other CTAs of the kernel before wrote.'''
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, (tl.load(y + at) * 3 + tl.load(x + (n - 1 - at))) % 1009)


@triton.jit
def normalize(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + at)
    tl.store(x + at, (row + tl.sum(row, axis=0)) % 1009)


@triton.jit
def accumulate(x, total, BLOCK: tl.constexpr):
    '''A grid of two dimensions; every CTA adds to the same few words.'''
    cta = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    at = tl.arange(0, BLOCK)
    tl.atomic_add(total + at, tl.load(x + cta * BLOCK + at))
"""


def _without(line: str, instead: str = "") -> str:
    changed = [instead if line in one else one for one in GATE_SOURCE.splitlines()]
    source = "\n".join(one for one in changed if one) + "\n"
    assert source != GATE_SOURCE
    return source


VARIANTS = {
    "gate": GATE_SOURCE,
    # A request shorter than the drain opens the gate again in the middle of the chain.
    "not-sticky": _without("tl.atomic_max(", "        tide_unused = 0"),
    # The kernel that was cut short runs again from its beginning.
    "kernel-restart": GATE_SOURCE.replace("== 0:\n        return\n", "== 2:\n        return\n"),
}


def main(variant: str, chains: int, seed: int) -> dict[str, int]:
    """How many chains were exact, and how often they were aborted, between and within kernels."""
    counts = {"chains": chains, "exact": 0, "aborted": 0, "partial": 0, "launched_chains": 0}
    with _module(gate_source(KERNELS, source=VARIANTS[variant])) as module:
        expected = Chain(module, seed).alone()
        for number in range(chains):
            chain = Chain(module, seed)
            chain.under_requests(random.Random(seed + number), counts)
            counts["exact"] += int(all((a == b).all() for a, b in zip(chain.buffers, expected, strict=True)))
    return counts


class Chain:
    """Eight launches on three buffers of int32, whose sums do not depend on the order of additions."""

    def __init__(self, module: Any, seed: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        size = CTAS * BLOCK
        self.module = module
        self.x, self.y = (torch.randint(0, 1000, (size,), generator=generator, dtype=torch.int32) for _ in range(2))
        self.total = torch.zeros(BLOCK, dtype=torch.int32)
        self.block = ControlBlock(CTAS)
        self.control = torch.tensor(self.block.words, dtype=torch.int32)
        self.block.words = self.control.numpy()  # the same memory, so that both see each other's writes

    @property
    def buffers(self) -> tuple[Any, Any, Any]:
        return self.x, self.y, self.total

    def alone(self) -> tuple[Any, Any, Any]:
        self._launch()
        assert self.block.completed
        return self.buffers

    def under_requests(self, draw: random.Random, counts: dict[str, int]) -> None:
        with _requests(self.block, draw):
            self._launch()
            counts["launched_chains"] += 1
            while not self.block.completed:
                counts["aborted"] += 1
                counts["partial"] += int(0 < sum(self.block.words[MARKS:]) < CTAS)
                self.block.resume()
                self._launch()
                counts["launched_chains"] += 1

    def _launch(self) -> None:
        steps = [self._multiply, self._mix, self._normalize, self._accumulate] * 2
        for kernel, step in enumerate(steps, 1):
            step(kernel)

    def _multiply(self, kernel: int) -> None:
        self.module.multiply[(CTAS,)](self.control, kernel, self.x, BLOCK=BLOCK)

    def _mix(self, kernel: int) -> None:
        self.module.mix[(CTAS,)](self.control, kernel, self.x, self.y, CTAS * BLOCK, BLOCK=BLOCK)

    def _normalize(self, kernel: int) -> None:
        self.module.normalize[(CTAS,)](self.control, kernel, self.y, BLOCK=BLOCK)

    def _accumulate(self, kernel: int) -> None:
        self.module.accumulate[(4, CTAS // 4)](self.control, kernel, self.y, self.total, BLOCK=BLOCK)


@contextmanager
def _requests(block: ControlBlock, draw: random.Random) -> Iterator[None]:
    """Real-time requests of random length, at random times, from another thread; most are shorter than what is left of the
    chain."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            time.sleep(draw.uniform(0.001, 0.06))
            block.words[RT_ACTIVE] = 1
            time.sleep(draw.choice([0.0, draw.uniform(0.0, 0.002), draw.uniform(0.0, 0.03)]))
            block.words[RT_ACTIVE] = 0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _module(text: str) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gated_kernels.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("gated_kernels", file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


if __name__ == "__main__":
    sys.setswitchinterval(0.0001)  # so that a request begins within a CTA, too, not only when this thread waits
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
