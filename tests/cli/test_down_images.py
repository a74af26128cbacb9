"""``tide down --jobs`` right after an image: nothing of any image stays on the disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import command
from tests.command import Finished
from tests.criu_here import criu_here
from tidewright.checkpoint.criu.driver import Criu

FOUND = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}"),
]
HOLD = "import os, time; held = os.urandom(20 << 20); print('up', flush=True); time.sleep(600)"
Tide = Callable[..., Finished]


@pytest.fixture
def tide(tmp_path: Path) -> Iterator[Tide]:
    def run(*arguments: str) -> Finished:
        return command.tide(tmp_path / "s", *arguments, cwd=tmp_path)

    yield run
    run("down", "--jobs")


def kept(images: Path) -> list[str]:
    """Files of images, raw or stored; not the store's locks and keys."""
    files = (path for path in images.rglob("*") if path.is_file())
    return [str(path) for path in files if path.name not in ("lock", "turn") and path.parent.name != "keys"]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_images_end_with_their_jobs(tide: Tide, tmp_path: Path) -> None:
    images = tmp_path / "s" / "images"
    assert tide("up", "--slots", "2", "--images", f"file://{tmp_path}/far").returncode == 0
    for _job in (1, 2):
        assert tide("run", "--parsable", "--", sys.executable, "-c", HOLD).returncode == 0
    until(lambda: all("up" in tide("logs", str(job)).stdout for job in (1, 2)))
    assert tide("checkpoint", "1").returncode == 0
    until(lambda: list((tmp_path / "far").glob("*/images/1.*")))
    assert kept(images)
    assert tide("checkpoint", "2").returncode == 0
    until(lambda: list((images / "work").glob("2.*")))
    done = tide("down", "--jobs")
    assert done.returncode == 0, done.stderr
    until(lambda: not os.path.exists(tmp_path / "s" / "agent.pid"))
    assert not kept(images)
    assert not list((tmp_path / "far").glob("*/images/*"))
