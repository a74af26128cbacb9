"""The slow-down table of a device: what a best-effort model on the cores that a real-time model leaves, or on a share of a GPU's
multiprocessors, adds to its latency.

Measured through a runtime that admits everything, by turns alone and beside, so that a machine that slows down for a while adds
to both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...base.errors import UsageError
from ..client import RemoteModel, RuntimeClient
from ..embedded import Runtime
from ..transport.messages import ModelSource
from ..transport.tensors import TensorSpec
from .admission import ALWAYS, model_key
from .slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable

_ROUNDS = 4
GPU_SHARES = (8, 16, 32, 64)
"""Multiprocessors, in what a GPU of compute capability 9.0 can split."""


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
    """Of a device of the host's cores: every model in real time beside every model as best-effort work, ``samples`` requests
    each. Raises UsageError where the device has no core to spare."""
    left = len(cores) - rt_threads
    if left < 1:
        raise UsageError(
            f"a device of {len(cores)} cores leaves none beside real-time work", "give it more cores, or fewer threads"
        )
    options = {"cores": ",".join(map(str, cores)), "rt_threads": rt_threads}
    return _measure(models, {left: options}, samples, folder, progress)


def measure_gpu(
    models: Sequence[ModelToMeasure],
    *,
    shares: Sequence[int] = GPU_SHARES,
    samples: int = 100,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SlowdownTable:
    """Of the GPU of this process: the same for each number of multiprocessors in ``shares``. Raises WorldError with what the
    runtime says where there is no GPU, or it cannot be split so."""
    if not shares or min(shares) < 1:
        raise UsageError(f"shares {list(shares)}", "give numbers of multiprocessors, as in 8,16,32")
    each = {share: {"device": "cuda", "padding_sms": share} for share in sorted(set(shares))}
    return _measure(models, each, samples, folder, progress)


def _measure(
    models: Sequence[ModelToMeasure],
    shares: Mapping[int, Mapping[str, Any]],
    samples: int,
    folder: Path | None,
    progress: Callable[[int, int], None],
) -> SlowdownTable:
    """``shares``: each to the options of a runtime that gives it."""
    pairs: list[PairSlowdown] = []
    in_all = len({one.key for one in models}) ** 2 * len(shares)
    here = None
    for share, options in shares.items():
        with (
            Runtime(padding=ALWAYS, **options) as runtime,
            runtime.client("rt", folder=folder) as rt,
            runtime.client("be", folder=folder) as be,
        ):
            here = msgspec.convert(rt.stats()["fingerprint"], DeviceFingerprint)
            fast = {one.key: _load(rt, one) for one in models}
            slow = {one.key: _load(be, one) for one in models}
            for name, beside in ((a, b) for a in fast for b in slow):
                progress(len(pairs), in_all)
                slowdown = _pair(fast[name], slow[beside], samples)
                pairs.append(PairSlowdown(name, beside, share, slowdown, samples))
    assert here is not None
    return SlowdownTable(here, tuple(pairs))


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
