"""The log callback of the kube services, and an error in one line of text."""

from __future__ import annotations

from collections.abc import Callable

from ...base.errors import TideError

Log = Callable[[str], None]


def one_line(error: TideError) -> str:
    """For an event or an answer: what is wrong, and what to do about it."""
    remedy = getattr(error, "remedy", "")
    return f"{getattr(error, 'message', error)}{f'; {remedy}' if remedy else ''}"
