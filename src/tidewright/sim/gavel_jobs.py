"""The continuous workload of Gavel's evaluation (Narayanan et al., OSDI'20, section 7.1), drawn as its artifact draws it.

Jobs arrive as a Poisson process; run times on V100s are log-uniform, 10^1.5 to 10^3 minutes for four fifths and 10^3 to 10^4 for
the others; models are drawn from its table.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np

from ..base.errors import UsageError
from ..base.key_values import key_values
from ..base.units import SECOND
from ..model.job import Phase
from .formats import fastest
from .trace import Trace, changed, make_trace

_BATCHES = {
    "ResNet-18": (16, 32, 64, 128, 256), "ResNet-50": (16, 32, 64, 128), "Transformer": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80), "Recommendation": (512, 1024, 2048, 4096, 8192),
}  # fmt: skip
_MODELS = [
    *(f"{model} (batch size {batch})" for model, sizes in _BATCHES.items() for batch in sizes),
    "A3C",
    "CycleGAN",
]
_ALONE = ("Recommendation", "A3C", "CycleGAN")
"""Models that run on one device only."""
_SIZES = ((0.95, 8), (0.8, 4), (0.7, 2))
_REMEDY = "write e.g. gavel-continuous:jobs=5000,lam=9000,seed=0,multi=no (lam: mean seconds between arrivals)"


def continuous(argument: str, devices: int) -> Trace:
    """``gavel-continuous:jobs=N,lam=SECONDS,seed=N,multi=yes|no``. ``multi``: whether jobs of several devices are among them.

    Raises UsageError for other settings. The times between arrivals and the jobs come from two generators, as there.
    """
    given = {"jobs": "1000", "lam": "9000", "seed": "0", "multi": "no"}
    for key, value in key_values(argument, "gavel-continuous", _REMEDY).items():
        if key not in given:
            raise UsageError(f"gavel-continuous: no setting {key!r}", _REMEDY)
        given[key] = value
    try:
        jobs, lam, seed = int(given["jobs"]), float(given["lam"]), int(given["seed"])
    except ValueError:
        raise UsageError(f"gavel-continuous:{argument}: not numbers", _REMEDY) from None
    if jobs < 1 or not 0 < lam < 1e9 or given["multi"] not in ("yes", "no"):
        raise UsageError(f"gavel-continuous:{argument}: out of range", _REMEDY)
    return _draw(jobs, lam, seed, given["multi"] == "yes", f"gavel-continuous:{argument}")


def _draw(jobs: int, lam: float, seed: int, multi: bool, name: str) -> Trace:
    dice, gaps = Random(seed + 2), Random(seed + 3)
    on_v100, best_of = fastest("gavel", ("v100",)), fastest("gavel", ("k80", "p100", "v100"))
    at, rows = 0.0, []
    for _ in range(jobs):
        size = _size(dice)  # drawn for single-device jobs, too
        length = 60 * 10 ** (dice.uniform(3, 4) if dice.random() >= 0.8 else dice.uniform(1.5, 3))
        size = size if multi else 1
        model = dice.choice(_MODELS)
        while size > 1 and model.startswith(_ALONE):
            model = dice.choice(_MODELS)
        # A trace's run times are those on the fastest kind, which is not a V100 for every model.
        best = best_of[model, size]
        rows.append((at, length * on_v100[model, size] / best, size, _MODELS.index(model), SECOND / best))
        at += -math.log(1.0 - gaps.random()) * lam
    submit, duration, devices, workloads, step = np.array(rows).T
    trace = make_trace(
        name, submit, duration, devices.astype(np.int64), workloads=workloads.astype(np.int32),
        phases=tuple((Phase(model),) for model in _MODELS), step_us=step,
    )  # fmt: skip
    return changed(trace, placement="any")


def _size(dice: Random) -> int:
    drawn = dice.uniform(0, 1)
    return next((size for least, size in _SIZES if drawn >= least), 1)
