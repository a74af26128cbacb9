"""The conformance kit on the CPU device, with each way to stop best-effort work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.runtime.client import RuntimeClient
from tidewright.testing import runtime_kit

from .conftest import RunningRuntime, Start

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=["signal", "gate"])
def runtime(request: pytest.FixtureRequest, start_runtime: Start) -> RunningRuntime:
    return start_runtime("--stop", request.param)


def test_outputs_are_exact_under_preemption(runtime: RunningRuntime) -> None:
    assert runtime_kit.exact_under_preemption(runtime.socket, 100) >= 100


@pytest.mark.full
def test_outputs_are_exact_under_ten_thousand_preemptions(runtime: RunningRuntime) -> None:
    assert runtime_kit.exact_under_preemption(runtime.socket, 10_000) >= 10_000


def test_no_task_is_lost_or_doubled(runtime: RunningRuntime, tmp_path: Path) -> None:
    runtime_kit.none_lost_or_doubled(runtime.socket, tmp_path, 100)


def test_real_time_goes_first(runtime: RunningRuntime, tmp_path: Path) -> None:
    runtime_kit.real_time_goes_first(runtime.socket, tmp_path, 3)


def test_what_is_cancelled_in_time_never_runs(runtime: RunningRuntime) -> None:
    runtime_kit.cancelled_before_it_began(runtime.socket)


@pytest.mark.parametrize("stop", ["signal", pytest.param("gate", marks=pytest.mark.full)])
def test_device_time_follows_weights(start_runtime: Start, stop: str) -> None:
    runtime = start_runtime("--stop", stop, "--streams", "1", "--quantum-ms", "5")
    shares = runtime_kit.shares_follow_weights(runtime.socket, (1, 2, 1), 1.0)
    # How exact shares are is shown in virtual time (test_scheduler); here other processes take the cores, too.
    assert min(shares) > 0.5 * max(shares), shares


def test_a_client_sees_how_it_is_served(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        assert client.level in ("C3 signal", "C2 operator gate")
        assert client.device == "cpu"
