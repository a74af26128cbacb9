"""The health of a node's devices, where the driver misbehaves: nothing waits for it for good, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tidewright.agent import health
from tidewright.agent.health import Faults, HealthMonitor
from tidewright.devices.fake import FakeBackend
from tidewright.devices.protocol import DeviceHealth


class Hanging(FakeBackend):
    """Its driver does not return until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__("n1", 2)
        self.gate, self.asked = threading.Event(), 0

    def health(self) -> tuple[DeviceHealth, ...]:
        self.asked += 1
        self.gate.wait()
        return super().health()


def monitor(backend: FakeBackend, root: Path) -> tuple[HealthMonitor, list[Faults]]:
    published: list[Faults] = []
    return HealthMonitor(backend, root / "health.json", "boot", published.append), published


def test_a_driver_that_hangs_closes_its_devices_and_takes_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.05)
    backend = Hanging()
    watched, published = monitor(backend, tmp_path)

    async def body() -> None:
        try:
            for _ in range(3):
                await watched.refresh()
            assert backend.asked == 1 and len(published) == 1
            assert [one.device for one in watched.faults] == [0, 1] and "has not answered" in watched.faults[0].why
            assert (await watched.under((1,))).startswith("device 1: the driver has not answered")
        finally:
            backend.gate.set()
        monkeypatch.setattr(health, "ANSWER_S", 30.0)
        while watched.faults:
            await asyncio.sleep(0.01)
            await watched.refresh()
        assert published[-1] == ()

    asyncio.run(body())


def test_a_look_that_fails_keeps_what_was_known_and_ends_of_ranks_are_still_told(tmp_path: Path) -> None:
    backend = FakeBackend("n1", 2)
    watched, _ = monitor(backend, tmp_path)

    async def body() -> None:
        backend.sick[1] = "hot"
        assert await watched.under((1,)) == "device 1: hot"
        sound = backend.health
        backend.health = lambda: 1 / 0  # type: ignore[assignment, return-value]
        assert await watched.under((1,)) == "device 1: hot"
        backend.health = sound  # type: ignore[method-assign]
        backend.sick.clear()
        assert await watched.under((1,)) == ""

    asyncio.run(body())
