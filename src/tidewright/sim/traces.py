"""Where traces come from: the packaged Philly trace, files, a generator, and third parties' formats.

A format is a factory ``(argument, devices) -> Trace``: ``argument`` is what follows the colon of ``--trace
name:argument`` and ``devices`` the size of the cluster. Others register theirs under the entry point group
``tidewright.traces``.
"""

from __future__ import annotations

import io
import lzma
from importlib.resources import files
from pathlib import Path

from ..base.errors import UsageError
from ..base.registry import Registry
from .trace import Trace, head
from .trace_csv import parse, read_csv

registry = Registry(
    "trace",
    "tidewright.traces",
    {
        "philly": "tidewright.sim.traces:philly",
        "synthetic": "tidewright.sim.synthetic:synthetic",
        "csv": "tidewright.sim.traces:from_file",
    },
)


def load_trace(text: str, devices: int) -> Trace:
    """The trace that ``text`` names: ``philly``, ``philly:10000`` (its first), ``synthetic:…``, or a CSV file's path.

    ``devices`` is the cluster's size, which loads are relative to. Raises UsageError when it cannot be read.
    """
    name, _, argument = text.partition(":")
    if name in registry.names():
        return registry.get(name)(argument, devices)  # type: ignore[no-any-return]
    if "/" in text or "." in text or Path(text).exists():
        return read_csv(Path(text))
    return registry.get(name)(argument, devices)  # type: ignore[no-any-return]


def from_file(argument: str, devices: int) -> Trace:
    """``csv:PATH``: a file whatever it is called."""
    return read_csv(Path(argument))


def philly(argument: str, devices: int) -> Trace:
    """The Philly trace (Jeon et al., ATC'19; CC-BY-4.0, see data/ATTRIBUTION.txt), or its first ``argument`` jobs."""
    if argument and not argument.isdigit():
        raise UsageError(
            f"philly:{argument}: not a number of jobs", "write philly, or philly:10000 for its first 10,000 jobs"
        )
    packed = files("tidewright.sim").joinpath("data/philly.csv.xz").read_bytes()
    trace = parse(io.StringIO(lzma.decompress(packed).decode("ascii")), "philly", "philly")
    return head(trace, int(argument)) if argument else trace
