"""Services over the real API: real controller, agent and replicas; the controller is killed in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tidewright.base.errors import NotFound, UsageError
from tidewright.model.job import JobSpec
from tidewright.model.service import ServiceSpec
from tidewright.wire.services import ServiceView

from .test_processes import Site, site  # noqa: F401

pytestmark = pytest.mark.processes


def _service(tmp_path: Path, word: str, least: int = 2, most: int = 3) -> ServiceSpec:
    script = f"echo {word} >> {tmp_path}/starts; trap 'echo end >> {tmp_path}/ends; exit 0' TERM; while :; do sleep 0.05; done"
    replica = JobSpec(
        command=("/bin/sh", "-c", script), env={"PATH": os.environ["PATH"]}, gpu_share=250, tier="premium"
    )
    return ServiceSpec(name="echo", replica=replica, min_replicas=least, max_replicas=most)


def _only(site: Site) -> ServiceView:  # noqa: F811
    (found,) = site.client().services().services
    return found


def test_a_service_lives_through_a_killed_controller_and_is_updated(site: Site, tmp_path: Path) -> None:  # noqa: F811
    site.client().deploy(_service(tmp_path, "first"))
    site.until(lambda: _only(site).state == "ready")
    before = [one.job for one in _only(site).replicas]
    site.kill("controller")
    site.up()
    site.until(lambda: _only(site).state == "ready")
    assert [one.job for one in _only(site).replicas] == before
    assert (tmp_path / "starts").read_text() == "first\n" * 2
    site.client().scale_service("echo", 3)
    site.until(lambda: _only(site).running == 3)
    with pytest.raises(UsageError, match="not between 2 and 3"):
        site.client().scale_service("echo", 4)
    killed = site.client().job(before[0])
    assert killed.spec is not None and killed.spec.service == "echo" and killed.spec.user
    os.kill(_pid_of(tmp_path, before[0]), signal.SIGKILL)
    site.until(lambda: before[0] not in [one.job for one in _only(site).replicas] and _only(site).state == "ready")
    site.client().deploy(_service(tmp_path, "second"))
    site.until(lambda: (one := _only(site)).version == 2 and one.state == "ready", 60)
    assert {one.version for one in _only(site).replicas} == {2}
    site.client().delete_service("echo")
    site.until(lambda: not site.client().services().services)
    assert (tmp_path / "starts").read_text().split().count("second") == 3
    assert (tmp_path / "ends").read_text().count("end") == 6
    with pytest.raises(NotFound):
        site.client().delete_service("echo")


def _pid_of(tmp_path: Path, job: int) -> int:
    """The rank of a job, by its environment and its command."""
    mark = f"TIDE_JOB_ID={job}".encode()
    for found in Path("/proc").glob("[0-9]*"):
        try:
            words = (found / "cmdline").read_bytes().split(b"\0")
            mine = words[0] == b"/bin/sh" and f"{tmp_path}/starts".encode() in words[2]
            if mine and mark in (found / "environ").read_bytes().split(b"\0"):
                return int(found.name)
        except (OSError, IndexError):
            continue
    raise AssertionError(f"no rank of job {job}")
