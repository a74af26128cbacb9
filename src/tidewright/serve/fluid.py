"""What a service of so many replicas carries within its objective, as a flow: requests per second that come, and those in time.

For stretches of hours, in which requests are too many to simulate one by one. A bound from below: ``tests/serve/test_fluid.py``
holds it against ``serve.simulate``, request by request.
"""

from __future__ import annotations

from .autoscale import replica_capacity
from .profile import LatencyTable

PLANNED = 0.95
"""Part of the capacity that is carried with 99 % of requests in time, Poisson arrivals and admission by deadline (measured by
bench/serving_sim.py); beyond it as much is carried, and the rest refused."""


class ServiceFlow:
    """One model on replicas of one device kind. Rates are requests per second."""

    def __init__(self, latency: LatencyTable, objective_us: int, planned: float = PLANNED) -> None:
        """Raises UsageError when not even a batch of one meets the objective."""
        self._latency, self._objective_us, self._planned = latency, objective_us, planned
        replica_capacity(latency, objective_us, 1)

    def capacity(self, replicas: int) -> float:
        """Requests per second that so many carry."""
        if not replicas:
            return 0.0
        return self._planned * replicas * replica_capacity(self._latency, self._objective_us, replicas)

    def within(self, per_second: float, replicas: int) -> float:
        """Requests per second answered within the objective, of those that arrive at this rate."""
        return min(per_second, self.capacity(replicas))
