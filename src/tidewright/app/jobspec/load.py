"""Job specs from a file, from stdin or from a command: YAML or a batch script, by the name and the first lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ...base.errors import UsageError
from . import located, sbatch, yaml_spec
from .loaded import Loaded, Submitter
from .overrides import Override

STDIN = "-"
"""Stands for stdin in the place of a file."""


def load(
    path: Path, submitter: Submitter, arguments: tuple[str, ...] = (), overrides: Sequence[Override] = ()
) -> Loaded:
    """Specs of a YAML file, or of a script with ``#SBATCH`` lines (then ``arguments`` are the script's own); ``-`` is stdin.
    ``overrides``: options of the command line, which win over the file.

    Raises UsageError listing every mistake as ``file:line: what``.
    """
    piped = str(path) == STDIN
    text = located.decoded(sys.stdin.buffer.read(located.MAX_FILE + 1), "stdin") if piped else located.read_text(path)
    if path.suffix not in (".yaml", ".yml") and (text.startswith("#!") or "\n#SBATCH" in f"\n{text}"):
        return sbatch.load(None if piped else path, text, submitter, arguments, overrides)
    if arguments:
        raise UsageError("arguments are for scripts; a YAML spec names its own", f"leave out {' '.join(arguments)!r}")
    return yaml_spec.parse(text, "stdin" if piped else str(path), submitter, overrides)


def wrapped(command: str, submitter: Submitter, overrides: Sequence[Override] = ()) -> Loaded:
    """A command line as a batch script of its own, as sbatch(1) --wrap."""
    return sbatch.load(None, f"#!/bin/sh\n{command}\n", submitter, (), overrides, name="wrap")
