"""What a controller makes of an agent that refuses launches, has lost devices, or says that some are faulty."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tests.live.fakes import FakeFabric
from tests.live.harness import Running
from tidewright.model.job import JobSpec
from tidewright.model.node import DeviceFault
from tidewright.wire.client import Client


def submit(client: Client, *command: str) -> int:
    return client.submit([JobSpec(command=command, preempt="none")]).ids[0]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def test_a_node_with_fewer_devices_than_the_book_has_fails_no_job(tmp_path: Path) -> None:
    fabric = FakeFabric(devices=4)
    with Running(tmp_path, fabric) as running, running.client() as client:
        first, _ = submit(client, "sleep"), submit(client, "sleep")
        until(lambda: len(fabric.starts) == 2)
        fabric.node = replace(fabric.node, devices=2)  # started anew with fewer, and not reported
        late = submit(client, "true")
        until(lambda: any("indices below 2" in line.why for line in client.why(late).story))
        assert client.job(late).state in ("queued", "held")
        running.soon(lambda: fabric.connect(False))
        running.soon(fabric.connect)
        until(lambda: client.nodes().nodes[0].devices == 2)
        running.soon(lambda: fabric.finish((first, 1), 0))
        until(lambda: client.job(late).state == "completed")


def test_a_node_that_refuses_everything_is_cordoned_and_the_jobs_wait(tmp_path: Path) -> None:
    fabric = FakeFabric(devices=4)
    fabric.broken = "cannot record the launch: No space left on device"
    with Running(tmp_path, fabric) as running, running.client() as client:
        jobs = [submit(client, "true") for _ in range(3)]
        until(lambda: client.nodes().nodes[0].state == "cordoned")
        node = client.nodes().nodes[0]
        assert node.free == 0 and "No space left on device" in node.why
        assert "tidewright_nodes_cordoned 1.0" in client.metrics()
        assert all(client.job(job).state in ("queued", "held") for job in jobs)
        fabric.broken = ""
        client.undrain("here")
        until(lambda: all(client.job(job).state == "completed" for job in jobs))


def test_a_faulty_device_is_known_from_the_inventory_and_from_news(tmp_path: Path) -> None:
    fabric = FakeFabric(devices=2)
    fabric.faults = (DeviceFault(0, "XID 48: uncorrectable ECC error", True),)
    with Running(tmp_path, fabric) as running, running.client() as client:
        until(
            lambda: (
                bool(client.nodes().nodes) and client.nodes().nodes[0].faults == {0: "XID 48: uncorrectable ECC error"}
            )
        )
        job = submit(client, "sleep")
        until(lambda: client.job(job).state == "running")
        assert client.job(job).where[0].devices == (1,)
        running.soon(lambda: fabric.health())
        until(lambda: client.nodes().nodes[0].faults == {} and client.nodes().nodes[0].free == 1)
