"""What the extender tells Prometheus. Names: base units, ``_total`` for counters, no label per pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from .cluster_cache import ClusterCache

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ExtenderMetrics:
    """One registry of its own, so two extenders in a process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "tidewright_kube_"
        self._seconds = Histogram(
            f"{prefix}request_seconds", "Time to answer", ["verb"], buckets=BUCKETS, registry=self.registry
        )
        self._answers = Counter(
            f"{prefix}requests_total", "Answers by HTTP status", ["verb", "code"], registry=self.registry
        )
        self._leading = Gauge(f"{prefix}leading", "1 while this replica leads", registry=self.registry)
        self._stale = Gauge(f"{prefix}stale_seconds", "Since the API server was last in touch", registry=self.registry)
        self._relists = Gauge(f"{prefix}relists", "Full lists since the start", ["what"], registry=self.registry)
        self._units = Gauge(f"{prefix}gpu_memory_units", "Of all shared GPUs", ["what"], registry=self.registry)
        self._reserved = Gauge(f"{prefix}reservations", "Given to pods that do not show it yet", registry=self.registry)
        self._over = Gauge(
            f"{prefix}overcommitted_gpus", "GPUs of which more is held than they have", registry=self.registry
        )

    def answered(self, verb: str, status: int, seconds: float) -> None:
        """One request."""
        self._seconds.labels(verb).observe(seconds)
        self._answers.labels(verb, str(status)).inc()

    def look(self, cluster_cache: ClusterCache | None, leading: bool) -> None:
        """Read the gauges off; without a site only that this replica stands by."""
        self._leading.set(leading)
        if cluster_cache is None:
            return
        pool = cluster_cache.handler.chooser.pool
        self._stale.set(cluster_cache.stale_s())
        for one in cluster_cache.reflectors():
            self._relists.labels(one.path.rsplit("/", 1)[-1]).set(one.relists)
        self._units.labels("total").set(
            sum(card.units for inventory in pool.inventories.values() for card in inventory.cards)
        )
        self._units.labels("held").set(sum(sum(held.units.values()) for held in pool.held.values()))
        self._reserved.set(len(pool.reserved))
        self._over.set(sum(len(gpus) for gpus in pool.overcommitted().values()))

    def text(self) -> str:
        """The exposition format."""
        return generate_latest(self.registry).decode()
