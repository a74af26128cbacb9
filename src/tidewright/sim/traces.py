"""Where traces come from: the packaged Philly trace, files, a generator, and third parties' formats.

A format is a factory ``(argument, devices) -> Trace``: ``argument`` is what follows the colon of ``--trace
name:argument`` and ``devices`` the size of the cluster. Others register theirs under the entry point group
``tidewright.traces``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..base.registry import Registry
from .stream import Reading
from .trace import Trace
from .trace_csv import read_csv

registry = Registry(
    "trace",
    "tidewright.traces",
    {
        "philly": "tidewright.sim.philly:philly",
        "synthetic": "tidewright.sim.synthetic:synthetic",
        "csv": "tidewright.sim.traces:from_file",
        "tiresias": "tidewright.sim.formats:tiresias",
        "helios": "tidewright.sim.formats:helios",
        "pai": "tidewright.sim.formats:pai",
        "gavel": "tidewright.sim.formats:gavel",
        "gavel-continuous": "tidewright.sim.gavel_jobs:continuous",
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
    if name not in registry and ("/" in text or "." in text or Path(text).exists()):
        return read_csv(Path(text), reading=reading)
    factory: Callable[..., Trace] = registry.get(name)
    return factory(argument, devices, reading) if name in FILES else factory(argument, devices)


def from_file(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """``csv:PATH``: a file whatever it is called."""
    return read_csv(Path(argument), reading=reading)
