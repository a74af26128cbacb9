"""How a rank ended, as data and in words."""

from __future__ import annotations

from msgspec import Struct

from ...base.signals import signal_name

SIGTERM_CODE, SIGKILL_CODE = 143, 137


class RankOutcome(Struct, frozen=True, omit_defaults=True):
    """How a rank ended. ``code`` is 128 + signal for a signal; ``error`` says why it never ran."""

    code: int = 0
    lost: bool = False
    error: str = ""
    fault: str = ""
    image: bool = False
    """The image it was to come back from is to blame."""
    ended: float = 0.0
    """Wall-clock seconds; 0: not known."""
    note: str = ""
    outside: bool = False
    """It was killed from outside its namespaces: by this agent, or by something that is not the program's doing."""
    memory_limit: int = 0
    """The limit of host memory in bytes for which the kernel killed it; 0: it did not."""
    cause: str = ""
    """What ended a rank that is ``lost``, where it is known."""


KILLED = RankOutcome(SIGKILL_CODE)
"""The end of ranks that were killed on purpose: an image stands for them, or they live elsewhere."""


def describe(code: int, note: str = "") -> str:
    """An exit code in words, and a note on it."""
    text = f"exit code {code}"
    if code > 128:
        number = code - 128
        name = signal_name(number)
        text = f"killed by signal {number}" + (f" ({name})" if name else "")
    return f"{text}, {note}" if note else text
