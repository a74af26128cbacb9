"""Job specs from a file: YAML or a batch script, by its name and its first lines."""

from __future__ import annotations

from pathlib import Path

from ...base.errors import UsageError
from . import located, sbatch, yaml_spec
from .loaded import Loaded, Submitter


def load(path: Path, submitter: Submitter, arguments: tuple[str, ...] = ()) -> Loaded:
    """Specs of a YAML file, or of a script with ``#SBATCH`` lines (then ``arguments`` are the script's own).

    Raises UsageError listing every mistake as ``file:line: what``.
    """
    text = located.read_text(path)
    if path.suffix not in (".yaml", ".yml") and (text.startswith("#!") or "\n#SBATCH" in text):
        return sbatch.load(path, text, submitter, arguments)
    if arguments:
        raise UsageError("arguments are for scripts; a YAML spec names its own", f"leave out {' '.join(arguments)!r}")
    return yaml_spec.parse(text, str(path), submitter)
