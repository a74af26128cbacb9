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


def _service(tmp_path: Path, word: str, least: int, most: int) -> ServiceSpec:
    script = f"echo {word} >> {tmp_path}/starts; trap 'echo end >> {tmp_path}/ends; exit 0' TERM; while :; do sleep 0.05; done"
    replica = JobSpec(
        command=("/bin/sh", "-c", script), env={"PATH": os.environ["PATH"]}, gpu_share=250, tier="premium"
    )
    return ServiceSpec(name="echo", replica=replica, min_replicas=least, max_replicas=most)


def _only(site: Site) -> ServiceView:  # noqa: F811
    (found,) = site.client().services().services
    return found


@pytest.mark.parametrize(("least", "updated"), [(1, 1), pytest.param(2, 3, marks=pytest.mark.full)])
def test_a_service_lives_through_a_killed_controller_and_is_updated(
    site: Site,  # noqa: F811
    tmp_path: Path,
    least: int,
    updated: int,
) -> None:
    """Each replica that is updated runs for a while (``PROVEN_US``) until the next one is."""
    most = least + 1
    site.client().deploy(_service(tmp_path, "first", least, most))
    site.until(lambda: _only(site).state == "ready")
    before = [one.job for one in _only(site).replicas]
    site.kill("controller")
    site.up()
    site.until(lambda: _only(site).state == "ready")
    assert [one.job for one in _only(site).replicas] == before
    assert (tmp_path / "starts").read_text() == "first\n" * least
    site.client().scale_service("echo", most)
    site.until(lambda: _only(site).running == most)
    with pytest.raises(UsageError, match=f"not between {least} and {most}"):
        site.client().scale_service("echo", most + 1)
    killed = site.client().job(before[0])
    assert killed.spec is not None and killed.spec.service == "echo" and killed.spec.user
    os.kill(_pid_of(tmp_path, before[0]), signal.SIGKILL)
    site.until(lambda: before[0] not in [one.job for one in _only(site).replicas] and _only(site).state == "ready")
    site.client().scale_service("echo", updated)
    site.until(lambda: len(_only(site).replicas) == updated)
    site.client().deploy(_service(tmp_path, "second", least, most))
    site.until(lambda: (one := _only(site)).version == 2 and one.state == "ready", 60)
    assert {one.version for one in _only(site).replicas} == {2}
    site.client().delete_service("echo")
    site.until(lambda: not site.client().services().services)
    assert (tmp_path / "starts").read_text().split().count("second") == updated
    assert (tmp_path / "ends").read_text().count("end") == (most - updated) + 2 * updated
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
