"""The slow-down table of a device: what a best-effort model on the cores that a real-time model leaves, or on a share of a GPU's
multiprocessors, adds to its latency.

Measured through a runtime that admits everything, by turns alone and beside, so that a machine that slows down for a while adds
to both.
"""

from __future__ import annotations

import contextlib
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
from .nvidia_rule import GPU_SHARES
from .slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable

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
    """Of the GPU of this process: the same for each number of multiprocessors in ``shares`` that it has, over requests beside
    best-effort work that is not padded: to have its gates closed costs real-time work something in any case. Raises UsageError
    where no share is left, WorldError with what the runtime says where there is no GPU, or it cannot be split so."""
    if not shares or min(shares) < 1:
        raise UsageError(f"shares {list(shares)}", "give numbers of multiprocessors, as in 8,16,32")
    with _Measured(models, folder, device="cuda") as without:
        sms = without.rt.stats()["sms"]
        each = {share: {"device": "cuda", "padding_sms": share} for share in sorted(set(shares)) if share < sms}
        if not each:
            raise UsageError(f"the GPU has {sms} multiprocessors", "give best-effort work fewer (--sms)")
        return _measure(models, each, samples, folder, progress, without)


class _Measured:
    """A runtime with all models loaded in both classes."""

    def __init__(self, models: Sequence[ModelToMeasure], folder: Path | None, **options: Any) -> None:
        with contextlib.ExitStack() as stack:
            runtime = stack.enter_context(Runtime(**options))
            self.rt, be = (stack.enter_context(runtime.client(kind, folder=folder)) for kind in ("rt", "be"))
            self.fast = {one.key: _load(self.rt, one) for one in models}
            self.slow = {one.key: _load(be, one) for one in models}
            self._stack = stack.pop_all()

    def __enter__(self) -> _Measured:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _measure(
    models: Sequence[ModelToMeasure],
    shares: Mapping[int, Mapping[str, Any]],
    samples: int,
    folder: Path | None,
    progress: Callable[[int, int], None],
    without: _Measured | None = None,
) -> SlowdownTable:
    """``shares``: each to the options of a runtime that gives it. ``without``: one that does not pad, beside whose best-effort
    work requests are timed to compare with; None: they are timed alone."""
    pairs: list[PairSlowdown] = []
    names = list(dict.fromkeys(one.key for one in models))
    number, in_all, here = 0, len(names) ** 2 * len(shares), None
    for share, options in shares.items():
        with _Measured(models, folder, padding=ALWAYS, **options) as padded:
            here = msgspec.convert(padded.rt.stats()["fingerprint"], DeviceFingerprint)
            for name, beside in ((a, b) for a in names for b in names):
                progress(number, in_all)
                number += 1
                if without is not None and share not in padded.slow[beside].shares:
                    continue  # it has a kernel without a gate, and is never padded
                slowdown = _pair(padded, without, name, beside, samples)
                pairs.append(PairSlowdown(name, beside, share, slowdown, samples))
    assert here is not None
    return SlowdownTable(here, tuple(pairs))


def _load(client: RuntimeClient, model: ModelToMeasure) -> RemoteModel:
    return client.load(
        model.source.factory, model.inputs, arguments=model.source.arguments, state=model.source.state, name=model.key
    )


def _pair(padded: _Measured, without: _Measured | None, name: str, beside: str, samples: int) -> float:
    """The 90th percentile beside over that without padding, less 1: best-effort work shows in the slower requests first."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_ROUNDS):
        for with_padding in (False, True):
            runtime = padded if with_padding else without
            rt = (runtime or padded).fast[name]
            be = None if runtime is None else runtime.slow[beside]
            times[with_padding] += _requests(rt, be, -(-samples // _ROUNDS))
    return _upper(times[True]) / _upper(times[False]) - 1


def _requests(rt: RemoteModel, be: RemoteModel | None, count: int) -> list[float]:
    """Seconds of each request, with a best-effort model kept busy meanwhile."""
    given, times = zeros(rt.signature.inputs), []
    other = zeros(be.signature.inputs) if be is not None else []
    pending = [be.submit(*other) for _ in range(be.slots)] if be is not None else []
    for _ in range(count):
        times.append(_timed(rt, given))
        while be is not None and pending[0].done():
            pending.pop(0)
            pending.append(be.submit(*other))
    for task in pending:
        task.result()
    return times


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
