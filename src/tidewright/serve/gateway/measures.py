"""Prometheus metrics of the gateway, by service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class GatewayMeasures:
    """All services."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of, to = ("service",), self.registry
        name = "tidewright_serve_request_seconds"
        self._latency = Histogram(name, "From arrival to answer.", of, buckets=_LATENCIES, registry=to)
        self._batch = Histogram("tidewright_serve_batch_size", "Items of a batch.", of, buckets=_SIZES, registry=to)
        self._replicas = Gauge("tidewright_serve_replicas", "Replicas that are ready.", of, registry=to)
        self._requests = Counter(
            "tidewright_serve_requests", "Requests by how they ended.", ("service", "result"), registry=self.registry
        )

    def of(self, service: str) -> ServiceMeasures:
        """Those of one service."""
        return ServiceMeasures(
            self._latency.labels(service),
            self._batch.labels(service),
            self._replicas.labels(service),
            self._requests,
            service,
        )


class ServiceMeasures:
    """Metrics of one service."""

    def __init__(self, latency: Histogram, batch: Histogram, replicas: Gauge, requests: Counter, service: str) -> None:
        self.latency, self.batch, self.replicas = latency, batch, replicas
        self._requests, self._service = requests, service
        self.counts: dict[str, int] = {}
        self._counters: dict[str, Counter] = {}

    def _count(self, result: str) -> None:
        counter = self._counters.get(result)
        if counter is None:
            counter = self._counters[result] = self._requests.labels(self._service, result)
        counter.inc()
        self.counts[result] = self.counts.get(result, 0) + 1

    def done(self) -> None:
        """A request was answered."""
        self._count("ok")

    def refused(self, code: str) -> None:
        """A request was refused, by its code."""
        self._count(code)

    def failed(self, why: str) -> None:
        """A request ended with an error: of the ``model``, or its replica was ``lost``."""
        self._count(why)
