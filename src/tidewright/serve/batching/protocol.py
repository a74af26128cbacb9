"""What a batching policy answers. It sees one model's queue as numbers and knows neither replicas nor other models."""

from __future__ import annotations

from typing import Protocol

from ..profile import LatencyTable


class Batcher(Protocol):
    """The batching policy of one model; an instance belongs to one model.

    Times are microseconds. Both questions are asked of a queue in the order of deadlines; answers depend on the arguments and
    on what ``completed`` reported alone.
    """

    name: str

    def size(self, start_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable) -> int:
        """How many of ``waiting`` items a batch takes that starts at ``start_us``; its earliest deadline is given. Requests are
        taken whole: as many as fit, and one at least.

        0: the first request cannot complete in time, and the policy would rather not run it. At most ``latency.max_batch``.
        """

    def earliest(
        self, now_us: int, first_arrived_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable
    ) -> int:
        """When a batch may start on a replica that is free now: ``now_us`` or before for at once.

        So many items wait; when the first request came and the earliest deadline are given.
        """

    def completed(self, batch: int, latency_us: int) -> None:
        """A batch of so many items took so long."""
