"""Random faults over jobs that are imaged: each ends with the numbers of an uninterrupted run, or says what was lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidewright.checkpoint.program import find_criu
from tidewright.wire.api import JobView, StoryLine

from .hosts import Hosts, owns_up
from .storm import DISK_MB, Kind, Storm

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(isinstance(find_criu(), str), reason="no CRIU here: tide setup criu"),
]
FEW = {"alone": Kind("plain_numpy", 1, 1500), "pair": Kind("ddp_mlp", 2, 100), "pool": Kind("pool", 1, 300)}
MANY = {
    "numbers-1": Kind("plain_numpy", 1, 7800),
    "pair-1": Kind("ddp_mlp", 2, 520),
    "table-1": Kind("table", 1, 3900),
    "gpt-1": Kind("fsdp2_gpt", 2, 195),
    "pool-1": Kind("pool", 1, 1170),
    "numbers-2": Kind("plain_numpy", 1, 7800),
    "pair-2": Kind("ddp_mlp", 2, 520),
    "table-2": Kind("table", 1, 3900),
    "gpt-2": Kind("fsdp2_gpt", 2, 195),
    "pool-2": Kind("pool", 1, 1170),
}

LEAST_RIGHT = 0.8
"""Part of the jobs that end bit by bit as if nothing had been, whatever the others have to say."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    found.clean()
    assert (found.left(), found.groups()) == ([], [])


def storm(hosts: Hosts, kinds: dict[str, Kind], seed: int) -> Storm:
    return Storm(hosts, random.Random(seed), dict(kinds))


@pytest.mark.full
@pytest.mark.timeout(420)
def test_a_few_faults(hosts: Hosts) -> None:
    found = storm(hosts, FEW, seed=3)
    found.run(faults=8, pause_s=1.0, limit_s=60)
    assert found.verdict() == "", "seed 3"
    assert sorted(found.right()) == sorted(found.kinds), found.ends()


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [100])
def test_a_hundred_faults_over_ten_jobs(hosts: Hosts, seed: int) -> None:
    hosts.small_disk("c", DISK_MB)
    found = storm(hosts, MANY, seed)
    found.run(faults=100, pause_s=3.0, limit_s=900)
    assert found.verdict() == "", f"seed {seed}"
    assert len(found.done) == 100, found.done
    assert len(found.right()) >= len(found.kinds) * LEAST_RIGHT, found.ends()


@pytest.mark.parametrize(
    ("why", "enough"),
    [
        ("cannot be resumed: image 7 is damaged; no image is left, 1m05s of work lost", True),
        ("image 3 is damaged; rolled back 250ms to image 7, which is damaged, too", True),
        ("no image is left, 1m05s of work lost", False),  # which was it?
        ("image 8 is damaged; no image is left, 1m05s of work lost", False),  # it never had that one
        ("image 7 is damaged, all of its work is lost", False),  # how much?
        ("the image was lost", False),
        ("exit code 1", False),
    ],
)
def test_a_failure_names_its_image_and_how_much_is_lost(why: str, enough: bool) -> None:
    told = ("goes on from image 3", "image 7 cannot be used any more", "image 8 could not be made: no room", why)
    story = tuple(StoryLine(at=at, what="IMAGE", why=line) for at, line in enumerate(told))
    assert owns_up(JobView(id=1, name="job", state="failed", why=why, story=story)) == enough


def pretence(name: str) -> Callable[[], str]:
    """A deed that is only said to be done."""

    def deed() -> str:
        return "something"

    deed.__name__ = name
    return deed


def test_what_users_do_is_no_fault(tmp_path: Path) -> None:
    found = storm(Hosts(tmp_path), FEW, seed=1)
    found.hosts.mounted, found.filler = [tmp_path], tmp_path / "filler"
    for deed in (*found.faults(), *found.wishes()):
        setattr(found, deed.__name__, pretence(deed.__name__))
    for _ in range(500):
        found.strike()
    wished = {line.split()[1] for line in found.wished}
    assert wished == {"suspend:", "migrate:", "scale:", "checkpoint:", "room:"}
    assert not wished & {line.split()[1] for line in found.done}
    assert len(found.done) + len(found.wished) == 500


def test_nothing_hit_is_no_fault(tmp_path: Path) -> None:
    found = storm(Hosts(tmp_path), FEW, seed=1)
    assert (found.freeze_agent(), found.freeze_host(), found.kill_agent(), found.flip()) == ("", "", "", "")
