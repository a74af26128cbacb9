"""The slow-down table of a CPU device: what a best-effort model on the cores that a real-time model leaves adds to its latency.

Measured through a runtime that admits everything, by turns alone and beside, so that a machine that slows down for a while adds
to both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...base.errors import UsageError
from ..client import RemoteModel, RuntimeClient
from ..embedded import Runtime
from ..transport.messages import ModelSource
from ..transport.tensors import TensorSpec
from .cpu_rule import ALWAYS, fingerprint, model_key
from .slowdown import PairSlowdown, SlowdownTable

_ROUNDS = 4


class ModelToMeasure(msgspec.Struct, frozen=True):
    """One model: as for ``RuntimeClient.load``."""

    source: ModelSource
    inputs: tuple[TensorSpec, ...]

    @property
    def key(self) -> str:
        return model_key(self.source)


def measure(
    models: Sequence[ModelToMeasure],
    *,
    cores: Sequence[int],
    rt_threads: int = 1,
    samples: int = 100,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SlowdownTable:
    """Every model in real time beside every model as best-effort work, ``samples`` requests each. Raises UsageError where the
    device has no core to spare."""
    left = len(cores) - rt_threads
    if left < 1:
        raise UsageError(
            f"a device of {len(cores)} cores leaves none beside real-time work", "give it more cores, or fewer threads"
        )
    options = {"padding": ALWAYS, "cores": ",".join(map(str, cores)), "rt_threads": rt_threads}
    pairs = []
    with (
        Runtime(**options) as runtime,
        runtime.client("rt", folder=folder) as rt,
        runtime.client("be", folder=folder) as be,
    ):
        fast = {one.key: _load(rt, one) for one in models}
        slow = {one.key: _load(be, one) for one in models}
        for number, (name, beside) in enumerate((a, b) for a in fast for b in slow):
            progress(number, len(fast) * len(slow))
            slowdown = _pair(fast[name], slow[beside], samples)
            pairs.append(PairSlowdown(name, beside, left, slowdown, samples))
    return SlowdownTable(fingerprint(len(cores), rt_threads), tuple(pairs))


def _load(client: RuntimeClient, model: ModelToMeasure) -> RemoteModel:
    return client.load(
        model.source.factory, model.inputs, arguments=model.source.arguments, state=model.source.state, name=model.key
    )


def _pair(rt: RemoteModel, be: RemoteModel, samples: int) -> float:
    """The 90th percentile beside over that alone, less 1: best-effort work shows in the slower requests first."""
    alone: list[float] = []
    shared: list[float] = []
    given, other = zeros(rt.signature.inputs), zeros(be.signature.inputs)
    for _ in range(_ROUNDS):
        alone += [_timed(rt, given) for _ in range(-(-samples // _ROUNDS))]
        pending = [be.submit(*other) for _ in range(be.slots)]
        for _ in range(-(-samples // _ROUNDS)):
            shared.append(_timed(rt, given))
            while pending[0].done():
                pending.pop(0)
                pending.append(be.submit(*other))
        for task in pending:
            task.result()
    return _upper(shared) / _upper(alone) - 1


def _timed(model: RemoteModel, given: Sequence[Any]) -> float:
    began = time.perf_counter()
    model.infer(*given)
    return time.perf_counter() - began


def _upper(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


def zeros(specs: Iterable[TensorSpec]) -> list[Any]:
    """Inputs of these shapes."""
    import numpy as np

    return [np.zeros(spec.shape, spec.dtype) for spec in specs]
