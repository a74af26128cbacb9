"""When requests arrive: Poisson at a constant rate, or at the rates of a recorded burst. Seeded; times are whole microseconds."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.rng import stream_seed
from ..base.units import SECOND

_REMEDY = "give qps.csv of cluster-trace-v2026-GenAI"
RECORDED_BIN_S = 57
"""Seconds of each bin of the GenAI trace."""


@dataclass(frozen=True)
class RateCurve:
    """Relative rates of arrival in bins of ``bin_us``; ``source`` says who recorded them and what was changed."""

    rates: tuple[float, ...]
    bin_us: int
    source: str

    def __post_init__(self) -> None:
        bad = not self.rates or any(not math.isfinite(rate) or rate < 0 for rate in self.rates) or not sum(self.rates)
        if bad or self.bin_us < 1:
            raise UsageError("a curve of rates needs finite rates, not all 0", "give requests per second for each bin")

    @property
    def peak_over_mean(self) -> float:
        """The highest rate over the mean."""
        return max(self.rates) * len(self.rates) / sum(self.rates)


SYNTHETIC_BURST = RateCurve(
    (*[1.0] * 10, 2.0, 4.0, 6.0, *[8.0] * 4, 6.0, 4.0, 2.0, *[1.0] * 10), SECOND, "made up: eightfold for 4 s of 30 s"
)
"""A small burst for where no recording is: quiet, a rise within 3 s to eight times the rate, and back."""


def poisson(per_second: float, duration_us: int, seed: int) -> NDArray[numpy.int64]:
    """Arrival times of a Poisson process over ``duration_us``, rising. UsageError for rates that are not finite or negative."""
    if not math.isfinite(per_second) or per_second < 0 or duration_us < 1:
        raise UsageError(
            f"no arrivals at {per_second}/s for {duration_us} us", "give a finite rate >= 0 and a time above 0"
        )
    draw = numpy.random.default_rng(stream_seed(seed, "arrivals"))
    count = int(draw.poisson(per_second * duration_us / SECOND))
    return numpy.sort(draw.integers(0, duration_us, count, dtype=numpy.int64))


def along(curve: RateCurve, mean_per_second: float, seed: int) -> NDArray[numpy.int64]:
    """Arrival times of a Poisson process whose rate follows the curve, with this mean over all of it."""
    scale = mean_per_second * len(curve.rates) / sum(curve.rates)
    parts = [
        poisson(rate * scale, curve.bin_us, stream_seed(seed, "bin", index)) + index * curve.bin_us
        for index, rate in enumerate(curve.rates)
    ]
    return numpy.concatenate(parts)


def read_rates(path: Path, *, request_type: str, bin_us: int, first: int = 0, bins: int | None = None) -> RateCurve:
    """A curve from the ``qps.csv`` of Alibaba's cluster-trace-v2026-GenAI (columns timestamp_anon, value, request_type).

    Rates of one type are summed over containers. ``bin_us``: how long each recorded bin (57 s) lasts in the curve. ``bins`` of
    them from ``first`` are used. Raises UsageError for a file that is none.
    """
    summed = _summed(path, request_type)
    rates = _window([summed[at] for at in sorted(summed)], first, bins)
    return RateCurve(
        tuple(rates), bin_us, f"Alibaba cluster-trace-v2026-GenAI qps, {request_type}, bins {first}+{len(rates)}"
    )


def _summed(path: Path, request_type: str) -> dict[float, float]:
    """Time stamp, in seconds, to the rate summed over containers."""
    summed: dict[float, float] = {}
    line = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                line = reader.line_num
                _check_row(row)
                if row["request_type"] == request_type and row["value"]:
                    at, rate = _finite(row["timestamp_anon"]), _finite(row["value"])
                    summed[at] = summed.get(at, 0.0) + rate
    except OSError as error:
        raise UsageError(f"cannot read rates from {path}: {error.strerror}", _REMEDY) from error
    except KeyError as error:
        raise UsageError(f"{path}:1: no column {error.args[0]}", _REMEDY) from error
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}, in or after line {line}: {error}", _REMEDY) from error
    if not summed:
        raise UsageError(f"{path} has no rates of {request_type!r}", "give a request_type of the file")
    return summed


def _check_row(row: dict[str | Any, Any]) -> None:
    """Raises ValueError for more or fewer cells than the header has; the reader keeps both as None."""
    if None in row or None in row.values():
        raise ValueError("not as many cells as the header names")


def _finite(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no finite number from 0 on")
    return value


def read_day(path: Path, request_type: str) -> RateCurve:
    """The whole recorded day of one type by the clock: bins without a row had no requests. Raises UsageError."""
    summed = _summed(path, request_type)
    first = min(summed)
    rates = [0.0] * (round((max(summed) - first) / RECORDED_BIN_S) + 1)
    for at, value in summed.items():
        rates[round((at - first) / RECORDED_BIN_S)] += value
    source = (
        f"Alibaba cluster-trace-v2026-GenAI qps, {request_type}, {len(rates)} bins of {RECORDED_BIN_S} s by the clock"
    )
    return RateCurve(tuple(rates), RECORDED_BIN_S * SECOND, source)


def _window(rates: Sequence[float], first: int, bins: int | None) -> Sequence[float]:
    return rates[first : None if bins is None else first + bins]
