"""Options of a command line that win over what a file of jobs says.

Each knows the key of a YAML spec that it is (``yaml_spec.KEYS``) and the option of sbatch(1) that it is; it may be one of them
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .located import COMMAND_LINE, Mapping, Mistakes, Scalar, Value
from .located import Sequence as ValueList


@dataclass(frozen=True)
class Override:
    """One option as ``written``. ``values`` are its words, one for most options."""

    written: str
    key: str
    sbatch: str
    values: tuple[str, ...]
    instead: str = ""
    """What to give for a YAML spec, where it is of batch scripts alone."""

    @property
    def value(self) -> Value:
        """Its words as a spec would hold them: a list where it may be repeated."""
        scalars = tuple(Scalar(one, COMMAND_LINE) for one in self.values)
        return ValueList(scalars, COMMAND_LINE) if self.key in _LISTS else scalars[-1]


_LISTS = ("env", "after", "webhook")
_DROPS = {
    "array": ("at_once",),
    "share": ("gpu_memory", "gpu_milli"),
    "gpu_memory": ("share",),
    "gpu_milli": ("share",),
}
"""Keys of a file that another way to ask for the same replaces."""


def laid_over(document: Mapping, overrides: Sequence[Override], mistakes: Mistakes) -> Mapping:
    """A YAML document with the options in the place of its keys; variables are added to its own."""
    entries, lines = dict(document.entries), dict(document.key_lines)
    for one in overrides:
        if not one.key:
            mistakes.add(
                COMMAND_LINE,
                f"{one.written} is an option of batch scripts" + (f"; give {one.instead}" if one.instead else ""),
            )
            continue
        for dropped in _DROPS.get(one.key, ()):
            entries.pop(dropped, None)
            lines.pop(dropped, None)
    for one in overrides:
        if one.key:
            entries[one.key] = _added(entries.get("env"), one) if one.key == "env" else one.value
            lines[one.key] = COMMAND_LINE
    return Mapping(entries, lines, document.line)


def _added(before: Value | None, one: Override) -> Value:
    if isinstance(before, Mapping):
        pairs = (text.partition("=") for text in one.values)
        more = {name: Scalar(value, COMMAND_LINE) for name, _, value in pairs}
        return Mapping(
            {**before.entries, **more}, {**before.key_lines, **dict.fromkeys(more, COMMAND_LINE)}, before.line
        )
    if isinstance(before, ValueList):
        own = one.value
        return ValueList((*before.items, *(own.items if isinstance(own, ValueList) else ())), before.line)
    return one.value
