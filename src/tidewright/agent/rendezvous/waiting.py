"""Requests of one job that wait, found by what they wait for: a write costs those that it may concern, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .store import Condition


class WaitingRequest(NamedTuple):
    """A request as it came. ``serial`` tells requests of one connection apart."""

    serial: int
    code: int
    world: bytes
    parts: Sequence[bytes]


class WaitingRequests:
    """By connection, which has at most one, and by condition, in the order in which they began to wait for it."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[WaitingRequest, Sequence[Condition]]] = {}
        self._by_condition: dict[Condition, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, connection: int) -> bool:
        return connection in self._requests

    def add(self, connection: int, request: WaitingRequest, awaits: Sequence[Condition]) -> None:
        """Wait for any of ``awaits``; a request that waits already keeps its place where the condition is the same."""
        _, before = self._requests.get(connection, (request, ()))
        self._leave(connection, [condition for condition in before if condition not in awaits])
        self._requests[connection] = request, awaits
        for condition in awaits:
            self._by_condition.setdefault(condition, {})[connection] = None

    def get(self, connection: int) -> WaitingRequest | None:
        """The request of a connection that waits."""
        found = self._requests.get(connection)
        return None if found is None else found[0]

    def remove(self, connection: int) -> None:
        """It waits no longer; nothing happens when it does not."""
        found = self._requests.pop(connection, None)
        if found is not None:
            self._leave(connection, found[1])

    def on(self, condition: Condition) -> list[int]:
        """Connections whose requests wait for it."""
        return list(self._by_condition.get(condition, ()))

    def connections(self) -> list[int]:
        """All that wait."""
        return list(self._requests)

    def _leave(self, connection: int, conditions: Sequence[Condition]) -> None:
        for condition in conditions:
            waiting = self._by_condition[condition]
            del waiting[connection]
            if not waiting:
                del self._by_condition[condition]
