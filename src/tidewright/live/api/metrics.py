"""Prometheus metrics, read off the book when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...engine.book import Book
from ...engine.calibration import StartCalibration
from ...engine.commands import Command, Ended
from ...model.job import State
from ...plan.render import render
from ..controller.loop import Loop
from ..journal.archive import GPU_SECOND
from .views import held_devices


class Metrics:
    """A collector for ``prometheus_client``; counters run since this controller started, except for what the book keeps."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ended = {state: 0 for state in State if state >= State.COMPLETED}
        self._preemptions = 0
        self._held_s = 0.0

    def note(self, commands: list[Command]) -> None:
        """Count what a durable turn ended."""
        for command in commands:
            if isinstance(command, Ended):
                self._ended[State(command.state)] += 1
                self._preemptions += command.preemptions
                self._held_s += command.held_milli_us / 1e9

    def collect(self) -> Iterator[Any]:
        """The families, in the form prometheus_client wants."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        book = self._loop.driver.engine.book
        jobs = GaugeMetricFamily("tidewright_jobs", "Jobs that have not ended, by state.", labels=["state"])
        for state in State:
            if state < State.COMPLETED:
                jobs.add_metric([state.word], book.counts[state])
        yield jobs
        ended = CounterMetricFamily("tidewright_jobs_ended", "Jobs ended since the start.", labels=["state"])
        for state, count in self._ended.items():
            ended.add_metric([state.word], count)
        yield ended
        yield CounterMetricFamily("tidewright_preemptions", "Preemptions of ended jobs.", value=self._preemptions)
        yield CounterMetricFamily("tidewright_held_gpu_seconds", "GPU-seconds held by ended jobs.", value=self._held_s)
        lost = CounterMetricFamily(
            "tidewright_lost_gpu_seconds", "GPU-seconds of work done and lost again, by all jobs of the journal.",
            value=book.ledger.lost_total / GPU_SECOND,
        )  # fmt: skip
        yield lost
        total = sum(book.board.layout.node_size)
        yield GaugeMetricFamily("tidewright_devices", "Devices of the pool.", value=total)
        yield GaugeMetricFamily("tidewright_devices_held", "Devices in use.", value=held_devices(book))
        yield GaugeMetricFamily("tidewright_nodes", "Nodes known.", value=len(book.nodes))
        yield GaugeMetricFamily("tidewright_nodes_down", "Nodes that are down or silent.", value=len(book.node_down))
        yield GaugeMetricFamily(
            "tidewright_nodes_cordoned",
            "Nodes that refused launches and are unschedulable for a while.",
            value=len(book.outages.cordoned),
        )
        yield self._faults(book)
        yield CounterMetricFamily("tidewright_turns", "Turns of the journal.", value=self._loop.driver.turns)
        yield GaugeMetricFamily(
            "tidewright_journal_writable", "0 while the disk is full.", value=float(not self._loop.journal_error)
        )
        yield GaugeMetricFamily(
            "tidewright_run_time_prediction_error_ratio",
            "Factor by which the middle one of the last predictions of run times was off; 0: none yet.",
            value=book.run_times.error_factor(),
        )
        yield GaugeMetricFamily(
            "tidewright_run_time_estimate_sigma",
            "Standard deviation of the logarithm of users' estimates of run times over what they were for.",
            value=book.run_times.sigma,
        )
        yield from _forecasts(book.start_calibration)
        yield GaugeMetricFamily(
            "tidewright_plan_seconds", "How long the last plan took.", value=self._loop.last_planning_s
        )

    @staticmethod
    def _faults(book: Book) -> Any:
        """One series for each device out of service; the reason is a label, as there are few at any time."""
        from prometheus_client.core import GaugeMetricFamily

        found = GaugeMetricFamily(
            "tidewright_device_out_of_service", "1 for each device that is unschedulable.",
            labels=["node", "device", "reason"],
        )  # fmt: skip
        for index, spec in enumerate(book.board.layout.nodes):
            for device, why in sorted({fault.device: render(fault.why) for fault in book.outages.of(index)}.items()):
                found.add_metric([spec.name, str(device), why], 1)
        return found


def _forecasts(found: StartCalibration) -> Iterator[Any]:
    """How often forecasts of starts hold."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    starts = CounterMetricFamily(
        "tidewright_forecast_starts", "Starts before, inside and after the interval forecast, of all in the journal.",
        labels=["outcome"],
    )  # fmt: skip
    for outcome, count in (("earlier", found.earlier), ("inside", found.inside), ("later", found.later)):
        starts.add_metric([outcome], count)
    yield starts
    yield GaugeMetricFamily(
        "tidewright_forecast_start_error_seconds",
        "By how much the latest starts came after the middle of the interval forecast, in the median.",
        value=found.median_error_us() / 1e6,
    )


def exposition(metrics: Metrics) -> bytes:
    """Everything as Prometheus text."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return generate_latest(registry)
