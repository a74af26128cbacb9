"""The packaged Philly trace. It refuses to know what is made of it."""

from __future__ import annotations

import io
import lzma
from functools import cache
from importlib.resources import files

import numpy as np

from ..base.errors import UsageError
from .synthetic import draw_tiers, tier_shares
from .trace import Trace, changed, head
from .trace_csv import parse


def philly(argument: str, devices: int) -> Trace:
    """The Philly trace (Jeon et al., ATC'19; CC-BY-4.0, see data/ATTRIBUTION.txt), all jobs of one tier.

    ``argument``: the number of jobs to take from its start, and ``tiers=premium:0.2/basic:0.8`` to draw their tiers, with commas
    between. Raises UsageError for anything else.
    """
    count, tiers = 0, None
    for part in filter(None, argument.split(",")):
        key, _, text = part.partition("=")
        if part.isdecimal() and int(part) and not count:
            count = int(part)
        elif key == "tiers" and tiers is None:
            tiers = tier_shares(text)
        else:
            raise UsageError(
                f"philly:{argument}: {part!r} is not a number of jobs, or there twice",
                "write philly, philly:10000 for its first 10,000 jobs, or philly:10000,tiers=premium:0.2/standard:0.3/basic:0.5",
            )
    trace = _packaged()
    if tiers is not None:
        trace = changed(trace, tier=draw_tiers(tiers, len(trace), seed=1))
    return head(trace, count) if count else trace


@cache
def _packaged() -> Trace:
    """All rows, read once in a process: several traces are made of them. Their columns cannot be written to."""
    packed = files("tidewright.sim").joinpath("data/philly.csv.xz").read_bytes()
    trace = parse(io.StringIO(lzma.decompress(packed).decode("ascii")), "philly", "philly")
    for field in trace.__struct_fields__:
        column = getattr(trace, field)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return trace
