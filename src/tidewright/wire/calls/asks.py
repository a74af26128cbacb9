"""What groups of calls need of the client that they are part of."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Asks(Protocol):
    """A client that can ask: one request, its answer as ``kind``."""

    def _ask(
        self, method: str, path: str, kind: type[T], body: Struct | None = None, query: dict[str, Any] | None = None
    ) -> T: ...
