"""Where a process of ours begins and ends, whichever command it runs: its streams, Ctrl-C, its exit code.

Loads nothing big, so that an interrupt while the rest is loaded finds it in place.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as a shell reports it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE."""


def exit_with(command: Callable[[], int]) -> None:
    """Exit with what a command returns. Ctrl-C is no traceback while modules are loaded, nor a second one while it ends."""
    try:
        _open_standard_streams()
        code = command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(code)


def _open_standard_streams() -> None:
    """A stream that the caller has closed (``>&-``) is the null device, lest the next file that is opened be written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
