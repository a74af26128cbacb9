"""Goodput by Pollux's model (Qiao et al., OSDI'21, section 3), and its step times fitted to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..model.rate import Goodput, StepTime
from ..model.table import Column

_BATCHES = 64
"""Global batch sizes tried between the smallest and the largest, in equal ratios."""


class StepSample(NamedTuple):
    """One measurement: seconds of a step of ``per_device`` samples on each of ``devices`` devices on ``nodes`` nodes."""

    devices: int
    nodes: int
    per_device: float
    seconds: float


def step_s(times: StepTime, devices: int, nodes: int, per_device: float, accumulated: int = 0) -> float:
    """Seconds of a step that accumulates gradients ``accumulated`` times before it synchronises (equations 9 to 11)."""
    gradient = times.gradient + times.gradient_per_sample * per_device
    synchronise = _synchronise(times, devices, nodes)
    return float(accumulated * gradient + _overlapped(np.float64(gradient), np.float64(synchronise), times.overlap))


def efficiency(noise: float, least: int, batch: float) -> float:
    """Progress per sample at a batch, relative to that at the least batch (equation 6)."""
    return (noise + least) / (noise + batch)


def best_goodput(model: Goodput, kind: str, devices: int, nodes: int) -> float:
    """Useful samples per second with the best batch for these devices (equation 12); 0 where no batch fits."""
    return _best(model.steps[kind], model.batch, model.most_batch, model.most_per_device, model.noise, devices, nodes)


@lru_cache(maxsize=4096)
def _best(
    times: StepTime, least: int, most: int, most_per_device: int, noise: float, devices: int, nodes: int
) -> float:
    smallest = max(least, devices)  # a device computes at least one sample
    batches = np.unique(np.rint(np.geomspace(smallest, max(most, smallest), _BATCHES)))
    per_device = np.ceil(batches / devices)
    accumulated = np.maximum(np.ceil(per_device / most_per_device) - 1, 0)
    micro = np.ceil(per_device / (accumulated + 1))
    gradient = times.gradient + times.gradient_per_sample * micro
    seconds = accumulated * gradient + _overlapped(gradient, _synchronise(times, devices, nodes), times.overlap)
    total = micro * (accumulated + 1) * devices
    found: float = (total / seconds * (noise + least) / (noise + total)).max().item()
    return found


def _synchronise(times: StepTime, devices: int, nodes: int) -> float:
    if devices <= 1:
        return 0.0
    if nodes > 1:
        return times.remote + times.remote_per_device * (devices - 2)
    return times.local + times.local_per_device * (devices - 2)


def _overlapped(gradient: Any, synchronise: Any, overlap: float) -> Any:
    """Both one after the other where ``overlap`` is 1, the longer of the two alone as it grows. Columns or numbers."""
    return (gradient**overlap + synchronise**overlap) ** (1 / overlap)


def fit(samples: Sequence[StepSample]) -> StepTime:
    """The step times that fit measurements best, by root mean squared error of logarithms (section 4.1). Needs scipy.

    What no sample shows stays as optimistic as it can be: synchronising costs nothing until two devices, or two nodes, were
    seen. Raises ValueError without a sample.
    """
    if not samples:
        raise ValueError("a fit needs at least one measured step")
    from scipy.optimize import minimize  # scipy takes 0.2 s to import

    columns = np.array(samples, float).T
    devices, nodes, per_device, seconds = columns
    shown = (devices > 1) & (nodes <= 1), nodes > 1
    guess = np.array([seconds.min() / 2, np.median(seconds / per_device) / 2, *(1e-3, 1e-4) * 2, 1.5])
    bounds: list[tuple[float, float | None]] = [(1e-9, None)] * 2
    for several in (bool(shown[0].any()), bool(shown[1].any())):
        bounds += [(0.0, None)] * 2 if several else [(0.0, 0.0)] * 2
    bounds.append((1.0, 10.0) if any(several.any() for several in shown) else (1.0, 1.0))
    if len(set(per_device.tolist())) == 1:
        bounds[0] = (1e-9, 1e-9)  # one size alone does not show which part of a step is fixed

    def error(values: Column) -> float:
        gradient = values[0] + values[1] * per_device
        more = np.maximum(devices - 2, 0)
        wait = np.where(nodes > 1, values[4] + values[5] * more, values[2] + values[3] * more)
        wait = np.where(devices > 1, wait, 0.0)
        predicted = _overlapped(gradient, wait, values[6])
        return float(np.sqrt(np.mean((np.log(predicted) - np.log(seconds)) ** 2)))

    guess = np.clip(guess, [low for low, _ in bounds], [np.inf if high is None else high for _, high in bounds])
    found = minimize(error, guess, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12, "maxiter": 2000})
    return StepTime(*(float(value) for value in found.x))
