"""All or none: threads that each have done their part wait until it is known whether the others have done theirs."""

from __future__ import annotations

import threading


class Unanimous:
    """For ``parties`` threads, each of which either agrees, or refuses, once."""

    def __init__(self, parties: int) -> None:
        self._missing, self._refused = parties, False
        self._changed = threading.Condition()

    def agree(self) -> bool:
        """Wait for the others; whether all have agreed. One refusal is enough, and no rank waits any longer."""
        with self._changed:
            self._missing -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._refused or self._missing == 0)
            return not self._refused

    def refuse(self) -> None:
        """Have it end for all, as far as they still wait."""
        with self._changed:
            self._refused = True
            self._changed.notify_all()
