"""Causes as the API shows them: code, arguments by name, and words."""

from __future__ import annotations

from ...model.cause import Cause, Code
from ...plan.render import named, render
from ...wire.api import CauseView

_PLAIN: dict[Code, CauseView] = {}
"""Views of causes without arguments, made once: most changes of state have one of these."""


def cause_view(why: Cause) -> CauseView:
    """A cause as the API shows it."""
    if why.args:
        return CauseView(why.code.value, {name: _arg(name, value) for name, value in named(why).items()}, render(why))
    found = _PLAIN.get(why.code)
    if found is None:
        found = _PLAIN[why.code] = CauseView(why.code.value, {}, render(why))
    return found


def cause_view_or_none(why: Cause | None) -> CauseView | None:
    """The same of a cause that there may be."""
    return None if why is None else cause_view(why)


def _arg(name: str, value: object) -> str | int | CauseView | tuple[str | int | CauseView, ...]:
    if name == "state":
        return str(value).lower()  # causes in old journals have states in capitals
    if isinstance(value, tuple):
        return tuple(_one(each) for each in value)
    return _one(value)


def _one(value: object) -> str | int | CauseView:
    if isinstance(value, Cause):
        return cause_view(value)
    return value if isinstance(value, int) else str(value)
