"""Where traces come from: the packaged Philly trace, files, a generator, and third parties' formats.

A format is a factory ``(argument, devices) -> Trace``: ``argument`` is what follows the colon of ``--trace
name:argument`` and ``devices`` the size of the cluster. Others register theirs under the entry point group
``tidewright.traces``.
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from ..base.errors import UsageError
from ..base.registry import Registry
from .stream import Reading
from .synthetic import draw_tiers, tier_shares
from .trace import Trace, changed, head
from .trace_csv import parse, read_csv

registry = Registry(
    "trace",
    "tidewright.traces",
    {
        "philly": "tidewright.sim.traces:philly",
        "synthetic": "tidewright.sim.synthetic:synthetic",
        "csv": "tidewright.sim.traces:from_file",
        "tiresias": "tidewright.sim.formats:tiresias",
        "helios": "tidewright.sim.formats:helios",
        "pai": "tidewright.sim.formats:pai",
        "gavel": "tidewright.sim.formats:gavel",
    },
)


FILES = ("csv", "tiresias", "helios", "pai", "gavel")
"""Formats that read files and say how far they are."""


def load_trace(text: str, devices: int, reading: Reading | None = None) -> Trace:
    """The trace that ``text`` names: ``philly``, ``philly:10000`` (its first), ``synthetic:…``, or a CSV file's path.

    ``devices`` is the cluster's size, which loads are relative to; ``reading`` hears how much of a file is read. Raises
    UsageError when it cannot be read.
    """
    name, _, argument = text.partition(":")
    if name not in registry.names() and ("/" in text or "." in text or Path(text).exists()):
        return read_csv(Path(text), reading=reading)
    factory: Callable[..., Trace] = registry.get(name)
    return factory(argument, devices, reading) if name in FILES else factory(argument, devices)


def from_file(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """``csv:PATH``: a file whatever it is called."""
    return read_csv(Path(argument), reading=reading)


def philly(argument: str, devices: int) -> Trace:
    """The Philly trace (Jeon et al., ATC'19; CC-BY-4.0, see data/ATTRIBUTION.txt), all jobs of one tier.

    ``argument``: the number of jobs to take from its start, and ``tiers=premium:0.2/basic:0.8`` to draw their tiers, with commas
    between. Raises UsageError for anything else.
    """
    count, tiers = 0, None
    for part in filter(None, argument.split(",")):
        key, _, text = part.partition("=")
        if part.isdigit() and int(part):
            count = int(part)
        elif key == "tiers":
            tiers = tier_shares(text)
        else:
            raise UsageError(
                f"philly:{argument}: {part!r} is not a number of jobs",
                "write philly, philly:10000 for its first 10,000 jobs, or philly:10000,tiers=premium:0.2/standard:0.3/basic:0.5",
            )
    packed = files("tidewright.sim").joinpath("data/philly.csv.xz").read_bytes()
    trace = parse(io.StringIO(lzma.decompress(packed).decode("ascii")), "philly", "philly")
    if tiers is not None:
        trace = changed(trace, tier=draw_tiers(tiers, len(trace), seed=1))
    return head(trace, count) if count else trace
