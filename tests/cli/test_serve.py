"""``tide serve`` at a stub of the controller."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .stub import Terminal


def test_deploy_takes_the_options_of_run(tide: Terminal) -> None:
    found = tide(
        "serve",
        "deploy",
        "vision",
        "--replicas",
        "1:4",
        "--share",
        "0.5",
        "--sla",
        "premium",
        "--",
        "true",
        "--port",
        "0",
    )
    assert (found.code, found.out) == (0, "deployed vision; see tide serve ls vision\n")
    assert found.err == "warning: standard is short\n"
    name, service = tide.stub.calls[-1]
    assert (name, service.name, service.min_replicas, service.max_replicas) == ("deploy", "vision", 1, 4)
    spec = service.replica
    assert (spec.command, spec.gpu_share, spec.tier, spec.workdir) == (
        ("true", "--port", "0"),
        500,
        "premium",
        os.getcwd(),
    )
    assert spec.env["PATH"] == os.environ["PATH"]
    tide("serve", "deploy", "--replicas", "2", "--class", "be", "--gpu-mem", "1GiB", "batch", "--", "true")
    service = tide.stub.calls[-1][1]
    assert (service.min_replicas, service.max_replicas) == (2, 2)
    assert (service.replica.share_class, service.replica.tier, service.replica.gpu_share) == ("be", "basic", 0)


@pytest.mark.parametrize("text", ["", "x", "1:", ":2", "1:x", "-1", "1.5", "9" * 30, "\u0661"])
def test_replicas_that_are_no_numbers(tide: Terminal, text: str) -> None:
    found = tide("serve", "deploy", "vision", f"--replicas={text}", "--", "true")
    assert found.code == 2 and "write it like 2, or 1:4" in found.err


def test_programs_that_are_not_there_are_refused_at_once(tide: Terminal) -> None:
    found = tide("serve", "deploy", "vision", "--", "no-such-program")
    assert found.code == 3 and "no such program" in found.err and not tide.stub.calls


def test_ls(tide: Terminal) -> None:
    lines = [line.split() for line in tide("serve", "ls").out.splitlines()]
    assert lines[1] == ["vision", "updating", "1/2", "1:4", "2", "4", "premium", "1", "31,30"]
    found = tide("serve", "ls", "vision")
    assert found.out.startswith("vision: updating, version 2, deployed 5.0s ago\n")
    assert "4 restarts; job 29 ended 2.0s ago: out of memory: rank 0 passed its limit of 4GiB (--mem)\n" in found.out
    assert [line.split()[:4] for line in found.out.splitlines()[3:]] == [
        ["31", "vision-1", "running", "2"], ["30", "vision-0", "stopping", "1"],
    ]  # fmt: skip
    assert "is being stopped" in found.out and "3 replicas ended soon after one another" in found.err
    assert tide("serve", "ls", "vision", "-o", "name").out == "31\n30\n"
    assert json.loads(tide("serve", "ls", "-o", "json").out)["services"][0]["name"] == "vision"
    assert json.loads(tide("serve", "ls", "vision", "-o", "json").out)["version"] == 2
    missing = tide("serve", "ls", "other")
    assert missing.code == 3 and "tide serve ls" in missing.err


def test_scale_and_delete(tide: Terminal) -> None:
    assert tide("serve", "scale", "vision", "3").out == "vision is scaled to 3 replicas\n"
    assert tide.stub.calls[-1] == ("scale_service", "vision", 3)
    assert tide("serve", "scale", "vision", "-1").code == 2
    assert tide("serve", "delete", "vision", "other").out == "vision is being deleted\nother is being deleted\n"
    assert tide.stub.calls[-2:] == [("delete_service", "vision"), ("delete_service", "other")]


def test_models_are_deployed_with_what_their_replicas_need(tide: Terminal) -> None:
    words = ("--objective", "50ms", "--batching", "aimd", "--env", "A=b")
    assert tide("serve", "deploy", "digits", "--model", "app:predict", *words).code == 0
    service = tide.stub.calls[-1][1]
    spec = service.replica
    assert service.reports_ready and spec.command[1:] == ("-m", "tidewright.serve.replica.main")
    options = json.loads(spec.env["TIDE_SERVE_OPTIONS"])
    assert (options["service"], options["model"], options["objective_us"]) == ("digits", "app:predict", 50_000)
    assert options["batching"] == "aimd" and spec.env["A"] == "b" and spec.preempt == "requeue"
    assert spec.env["TIDE_SERVE_GATEWAY"] == str(tide.state.absolute() / "serve.sock")
    for wrong in (
        ("--model", "app:predict", "--", "true"), (), ("--objective", "1s", "--", "true"),
        ("--model", "app:predict", "--batching", "never"), ("--model", "app:predict", "--objective", "0"),
    ):  # fmt: skip
        assert tide("serve", "deploy", "digits", *wrong).code == 2


def test_how_long_a_peak_is_remembered(tide: Terminal) -> None:
    for words, expected in ((), 60_000_000), (("--scale-down-delay", "5s"), 5_000_000):
        assert tide("serve", "deploy", "digits", "--model", "app:predict", *words).code == 0
        assert tide.stub.calls[-1][1].scale_down_us == expected
    assert tide("serve", "deploy", "digits", "--scale-down-delay", "5s", "--", "true").code == 2


def test_a_reclaim_deadline_is_of_any_service(tide: Terminal) -> None:
    for words in (("--model", "app:predict"), ("--", "true")):
        assert tide("serve", "deploy", "web", "--reclaim", "2s", *words).code == 0
        assert tide.stub.calls[-1][1].reclaim_us == 2_000_000
    assert tide("serve", "deploy", "web", "--", "true").code == 0
    assert tide.stub.calls[-1][1].reclaim_us == 0


def test_the_gateway_and_its_top_say_what_is_missing(tide: Terminal, tmp_path: Path) -> None:
    found = tide("serve", "top")
    assert found.code != 0 and "tide serve gateway" in found.err
    token = tmp_path / "token"
    token.write_text("x" * 20)
    token.chmod(0o644)
    assert "chmod 600" in tide("serve", "gateway", "--token-file", str(token)).err
    token.chmod(0o600)
    token.write_text("short")
    assert "at least 16" in tide("serve", "gateway", "--token-file", str(token)).err
    assert "loopback" in tide("serve", "gateway", "--listen", "0.0.0.0:0").err
    assert "write it like" in tide("serve", "gateway", "--listen", "nonsense").err


def test_logs_of_all_replicas(tide: Terminal) -> None:
    tide.stub.output = (b"one\n", b"two\n")
    assert tide("serve", "logs", "vision").out == "vision-1: one\nvision-1: two\nvision-0: one\nvision-0: two\n"
    assert tide("serve", "logs", "other").code == 3


def test_requests_that_may_run_only_once(tide: Terminal) -> None:
    for words, idempotent in (((), True), (("--once",), False)):
        tide("serve", "deploy", "digits", "--model", "app:predict", *words)
        assert json.loads(tide.stub.calls[-1][1].replica.env["TIDE_SERVE_OPTIONS"])["idempotent"] is idempotent
    assert tide("serve", "deploy", "digits", "--once", "--", "true").code == 2
