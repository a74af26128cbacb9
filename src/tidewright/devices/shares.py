"""Who has which part of each device of a node. Pure: it enforces nothing, and asks no device.

Memory of frozen holders is listed and does not count against others: only CPU slots freeze, and what their processes keep
is memory of the host, which is counted there (docs/why/shares.md).
"""

from __future__ import annotations

from collections.abc import Callable

from ..base.errors import UsageError
from ..base.units import format_bytes
from .protocol import Slice

WHOLE = 1000
"""Thousandths of a device's compute."""


class ShareTable:
    """Of a node with ``devices`` devices of ``memory`` bytes each."""

    def __init__(self, devices: int, memory: int) -> None:
        self._devices, self._memory = devices, memory
        self._by_holder: dict[str, Slice] = {}

    def add(self, part: Slice) -> None:
        """In place of what its holder has. Raises UsageError, with everything as it was."""
        self._check(part)
        others = [one for one in self._by_holder.values() if one.device == part.device and one.holder != part.holder]
        _fits(part, others, "compute", WHOLE, lambda one: one.set_aside, lambda amount: f"{amount}/1000 of compute")
        _fits(part, others, "memory", self._memory, lambda one: 0 if one.frozen else one.memory, format_bytes)
        self._by_holder[part.holder] = part

    def release(self, holder: str) -> None:
        """Harmless for a holder of nothing."""
        self._by_holder.pop(holder, None)

    def all(self) -> tuple[Slice, ...]:
        """By device and holder."""
        return tuple(sorted(self._by_holder.values(), key=lambda one: (one.device, one.holder)))

    def _check(self, part: Slice) -> None:
        if not 0 <= part.device < self._devices:
            raise UsageError(f"a share of device {part.device} of {self._devices}", "ask for a device that exists")
        if not 0 <= part.compute <= WHOLE or part.memory < 0 or part.ranks < 1 or not part.holder:
            raise UsageError(
                f"{part} is no share of a device", f"give a holder, 0 to {WHOLE} of compute, memory and ranks"
            )


def _fits(
    part: Slice,
    others: list[Slice],
    what: str,
    most: int,
    amount: Callable[[Slice], int],
    words: Callable[[int], str],
) -> None:
    asked, left = amount(part), most - sum(map(amount, others))
    if asked > left:
        raise UsageError(
            f"a share of {words(asked)} of device {part.device}, which has {words(max(0, left))} left",
            f"ask for less {what}, or wait until another share of the device is released",
        )
