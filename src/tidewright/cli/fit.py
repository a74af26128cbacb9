"""Cells of a table in the width of a terminal: which columns are shortened, then left out, so that no line wraps.

Pure: knows neither the terminal nor what the columns are about.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Spaces between two columns."""
_ELLIPSIS = "…"
_PLAIN_BELOW = 0x300
"""Below the first combining character, every printable one takes one cell."""
_EMOJI_FORM = "\ufe0f"
_LEFT_TO_RIGHT = "\u200e"


@dataclass(frozen=True)
class Slot:
    """What may be done to a column. ``least``: cells to which it may be shortened, 0 when it is shown whole; ``leave``: its
    turn to be left out, the highest first, 0 never; ``tail``: its end is shown too (``train-resn…-large``)."""

    natural: int
    least: int = 0
    leave: int = 0
    tail: bool = False


def cells(text: str) -> int:
    """Terminal cells that a line takes: two for a wide character (Unicode annex 11), none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(char: str) -> int:
    if char == _LEFT_TO_RIGHT:
        return 0
    if ord(char) < _PLAIN_BELOW or char == _EMOJI_FORM:  # after a narrow character, the emoji form makes it wide
        return 1
    if unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int, tail: bool = False) -> str:
    """``text`` in at most ``width`` cells: its beginning, with ``tail`` its end too, and "…" for what was left out."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    behind = (width - 1) * 3 // 8 if tail else 0
    return _head(text, width - 1 - behind) + _ELLIPSIS + _tail(text, behind)


def _head(text: str, width: int) -> str:
    for at, char in enumerate(text):
        width -= _cells_of(char)
        if width < 0:
            return text[:at]
    return text


def _tail(text: str, width: int) -> str:
    begin = len(text)
    for at in range(len(text) - 1, -1, -1):
        own = _cells_of(text[at])
        if own > width:
            break
        width -= own
        begin = at if own else begin  # a combining character goes with the one before it
    return text[begin:]


def pad(text: str, width: int, right: bool) -> str:
    """``text`` in exactly ``width`` cells."""
    blank = " " * (width - cells(text))
    return blank + text if right else text + blank


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` cells, broken at spaces; a longer word (a path) stays whole, so that it can be copied."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1].strip() and cells(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def closed(text: str) -> str:
    """``text``, and a left-to-right mark after right-to-left letters: terminals that turn these would turn the next cell's
    figures with them (Unicode annex 9)."""
    if text.isascii() or all(unicodedata.bidirectional(char) not in ("R", "AL") for char in text):
        return text
    return text + _LEFT_TO_RIGHT


def fitted(slots: Sequence[Slot], width: int) -> list[int]:
    """Cells for each column, 0 for one that is left out, all of them with their gaps within ``width``.

    Columns are shortened first, the longest most, down to their least; then left out, in their order; then those that are left
    are shortened again. Where even that is too wide, columns at the right end lose what does not fit.
    """
    shown = list(range(len(slots)))
    while _least(slots, shown) > width and (last := _next_to_leave(slots, shown)) is not None:
        shown.remove(last)
    widths = dict(zip(shown, _shortened([slots[at] for at in shown], width), strict=True))
    return _clipped([widths.get(at, 0) for at in range(len(slots))], width)


def _least(slots: Sequence[Slot], shown: Sequence[int]) -> int:
    return sum(min(slots[at].natural, slots[at].least or slots[at].natural) + GAP for at in shown) - GAP


def _next_to_leave(slots: Sequence[Slot], shown: Sequence[int]) -> int | None:
    return max((at for at in shown if slots[at].leave), key=lambda at: slots[at].leave, default=None)


def _shortened(slots: Sequence[Slot], width: int) -> list[int]:
    """The widest cap on columns that may be shortened under which all fit; what is then left goes to the first of them."""
    room = width - GAP * (len(slots) - 1)

    def under(cap: int) -> list[int]:
        return [min(slot.natural, max(slot.least, cap)) if slot.least else slot.natural for slot in slots]

    low, high = 0, max((slot.natural for slot in slots), default=0)
    while low < high:
        cap = (low + high + 1) // 2
        low, high = (cap, high) if sum(under(cap)) <= room else (low, cap - 1)
    found = under(low)
    for at, slot in enumerate(slots):
        if slot.least:
            found[at] += max(0, min(slot.natural - found[at], room - sum(found)))
    return found


def _clipped(widths: list[int], width: int) -> list[int]:
    at = 0
    for column, own in enumerate(widths):
        widths[column] = max(0, min(own, width - at))
        at += widths[column] + GAP if widths[column] else 0
    return widths
