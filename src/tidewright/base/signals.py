"""Signals by their names."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """``"SIGKILL"``; empty where a number has no name, as most real-time signals have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else ""
