"""Models that tests serve."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tidewright.serve.define import serves


@serves(inputs={"x": "FP32[3]"}, outputs={"y": "FP32[1]"}, max_batch=8)
def total(x: Any) -> Any:
    if (x < 0).any():
        raise ValueError("negative")
    if (x == 99).all() and os.environ.get("DIE_ONCE") and not Path(os.environ["DIE_ONCE"]).exists():
        Path(os.environ["DIE_ONCE"]).touch()
        os._exit(1)
    if (x == 98).all():
        os._exit(1)
    return x.sum(axis=1, keepdims=True)


@serves(inputs={"x": "FP32[3]"}, max_batch=1)
def slow(x: Any) -> Any:
    time.sleep(0.02)
    return x


@serves(inputs={"x": "FP32[-1]", "word": "BYTES"}, outputs={"y": "FP64[-1]", "z": "BYTES"})
def single(x: Any, word: Any) -> Any:
    return x * 2, word


@serves(inputs={"x": "FP32[4]"}, outputs={"logits": "FP32[2]"}, max_batch=4, factory=True)
def network() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 2))


@serves(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"}, max_batch=4)
def forgetful(x: Any) -> Any:
    return x[:1]


_calls: list[int] = []


@serves(inputs={"x": "FP32[3]"}, max_batch=1)
def slow_at_first(x: Any) -> Any:
    _calls.append(1)
    time.sleep(0.3 if 4 < len(_calls) < 8 else 0.001)  # after the four calls of the warm-up
    return x


@serves(inputs={"x": "FP32[3]"}, max_batch=1)
def gated(x: Any) -> Any:
    """Waits until the file GATE is there; says in files beside it what it has run."""
    gate = Path(os.environ["GATE"])
    if (value := int(x[0, 0])) > 0:
        gate.with_suffix(f".{value}").touch()
        while not gate.exists():
            time.sleep(0.01)
    return x


@serves(inputs={"x": "FP32[3]"}, max_batch=8)
def sizes(x: Any) -> Any:
    """Writes the size of each batch to the file SIZES."""
    with Path(os.environ["SIZES"]).open("a") as out:
        print(len(x), file=out)
    return x
