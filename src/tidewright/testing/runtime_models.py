"""Models for tests of a device runtime: exact, quick, and some that misbehave. Factories for ``RuntimeClient.load``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

Model = Callable[..., Any]


def double() -> Model:
    """Twice its input: next to nothing to do."""
    return lambda x: x * 2


def chain(operators: int = 40, size: int = 2000) -> Model:
    """In-place operators on one buffer, a gate between each two: whatever is done twice, or not at all, shows in every bit."""

    def run(x: Any) -> Generator[None, None, Any]:
        state = x.copy()
        for number in range(operators):
            np.sin(state, out=state)
            state *= 1.0 + number / operators
            state += number
            yield
        return state

    return run


def chain_result(x: Any, operators: int = 40) -> Any:
    """What ``chain`` gives, computed without a runtime."""
    steps = chain(operators)(x)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def counter(path: str) -> Model:
    """Appends a line to ``path`` for each run: how often tasks really ran."""

    def run(x: Any) -> Any:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{x[0]:.0f}\n")
        return x

    return run


def busy(seconds: float) -> Model:
    """One operator that computes for so long, with no gate in it; quick for inputs of 0 and less, as when it is loaded."""

    def run(x: Any) -> Any:
        ends = time.monotonic() + (seconds if x[0] > 0 else 0.0)
        while time.monotonic() < ends:
            pass
        return x

    return run


def held(path: str) -> Model:
    """Runs as long as there is a file at ``path``, with a gate at each look."""

    def run(x: Any) -> Generator[None, None, Any]:
        while os.path.exists(path):
            time.sleep(0.002)
            yield
        return x

    return run


def raising() -> Model:
    """Raises for inputs above 0."""

    def run(x: Any) -> Any:
        if x[0] > 0:
            raise ValueError("an input above 0")
        return x

    return run


def leaking(step_bytes: int = 2**24) -> Model:
    """Keeps memory with each run."""
    kept: list[Any] = []

    def run(x: Any) -> Any:
        kept.append(np.ones(step_bytes // 8))
        return x

    return run


def dying() -> Model:
    """Ends its process for inputs above 0."""

    def run(x: Any) -> Any:
        if x[0] > 0:
            os._exit(7)
        return x

    return run


def growing() -> Model:
    """Gives an output of another shape for inputs above 0."""
    return lambda x: np.zeros(3 if x[0] > 0 else 1, np.float32)


def broken() -> Model:
    """Cannot be made."""
    raise RuntimeError("no such weights")


def layers(width: int = 64, depth: int = 12) -> Any:
    """A torch module with fixed random weights."""
    import torch

    torch.manual_seed(7)
    modules = [part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    return torch.nn.Sequential(*modules)
