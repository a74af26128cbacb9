"""Replicas from an image, with everything real: controller, agent, gateway, replicas under CRIU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.criu_here import criu_here
from tidewright.app.serving import replica_command
from tidewright.model.job import JobSpec
from tidewright.model.service import ServiceSpec
from tidewright.wire.services import ServiceView

from .test_processes import Site, site  # noqa: F401

pytestmark = pytest.mark.processes

GATEWAY = """
import sys
from pathlib import Path
from tidewright import Client
from tidewright.app.serving import run_gateway
run_gateway(Path(sys.argv[1]), "127.0.0.1:0", Client(Path(sys.argv[1])))
"""
MODEL = """
import os
import socket
import numpy
from tidewright.serve.define import serves
if "HELD" in os.environ:
    held = socket.create_connection(("127.0.0.1", int(os.environ["HELD"])))
print("loaded", flush=True)


@serves(inputs={"x": "FP32[1]"}, outputs={"y": "FP64[1]"}, max_batch=4)
def draw(x):
    return numpy.random.random((len(x), 1))
"""


class Served:
    """One service of the model above, and a gateway."""

    def __init__(self, site: Site, directory: Path) -> None:  # noqa: F811
        self.site, self.directory = site, directory
        (directory / "drawing.py").write_text(MODEL)
        log = (directory / "gateway.log").open("wb")
        self.gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, str(site.state)], stdout=log, stderr=log)
        site.until((site.state / "serve.address").exists)

    def deploy(self, least: int, most: int, **env: str) -> None:
        command, serving = replica_command(self.site.state, "draw", "drawing:draw", 10**6, "", True, from_image=True)
        replica = JobSpec(
            command=command, env={"PATH": os.environ["PATH"], **serving, **env}, gpu_share=250, preempt="requeue",
            workdir=str(self.directory),
        )  # fmt: skip
        spec = ServiceSpec(
            name="draw", replica=replica, min_replicas=least, max_replicas=most, reports_ready=True, from_image=True
        )
        self.site.client().deploy(spec)

    def view(self) -> ServiceView:
        (found,) = self.site.client().services().services
        return found

    def jobs(self) -> list[int]:
        return [one.job for one in self.view().replicas if one.ready and one.state == "running"]

    def ask(self) -> float:
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
        address = (self.site.state / "serve.address").read_text()
        request = urllib.request.Request(f"http://{address}/v2/models/draw/infer", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return float(found["outputs"][0]["data"][0])

    def story(self, job: int) -> str:
        return " ".join(entry.why for entry in self.site.client().job(job).story)

    def until(self, true: Callable[[], object]) -> None:
        self.site.until(true, 60)

    def close(self) -> None:
        self.gateway.terminate()
        self.gateway.wait()


@pytest.fixture
def served(site: Site, tmp_path: Path) -> Iterator[Served]:  # noqa: F811
    found = criu_here()
    if isinstance(found, str):
        pytest.skip(found)
    one = Served(site, tmp_path)
    yield one
    one.close()


def test_replicas_start_from_the_image_of_the_first(served: Served) -> None:
    served.deploy(1, 1)
    served.until(lambda: served.view().image == "ready" and served.view().running == 1)
    image, (first,) = served.view().image_job, served.jobs()
    assert image != first and f"job {image}" in served.story(first)
    served.deploy(3, 3)
    served.until(lambda: served.view().running == 3)
    logs = [b"".join(served.site.client().logs(job)) for job in served.jobs()]
    assert all(log.count(b"loaded") == 1 and b"started from an image" in log for log in logs), logs
    drawn = {served.ask() for _ in range(20)}
    assert len(drawn) == 20, "replicas of one image draw different numbers"
    (lost, *others) = served.jobs()
    served.site.kill("agent")
    served.site.client().cancel(lost)
    served.until(lambda: served.view().running == 3 and lost not in served.jobs())
    assert set(others) < set(served.jobs()) and served.ask() not in drawn


@pytest.mark.full
def test_a_service_that_was_scaled_to_none_starts_from_the_image(served: Served) -> None:
    served.deploy(0, 1)
    served.until(lambda: served.view().image == "ready" and served.view().running == 1)
    served.site.client().scale_service("draw", 0)
    served.until(lambda: not served.view().replicas)
    assert served.ask() >= 0
    served.until(served.jobs)
    (job,) = served.jobs()
    assert f"job {served.view().image_job}" in served.story(job)


def test_a_model_that_cannot_be_saved_is_served_all_the_same(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        served.deploy(1, 1, HELD=str(listening.getsockname()[1]))
        served.until(lambda: served.view().image_error and served.view().running == 1)
        assert served.view().image in ("wanted", "failed") and "connection" in served.view().image_error
        served.until(lambda: served.ask() >= 0)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(
                f"http://{(served.site.state / 'serve.address').read_text()}/v2/models/other", timeout=9
            )
        os.kill(served.gateway.pid, signal.SIGTERM)
