"""Random faults over jobs that are imaged: each ends with the numbers of an uninterrupted run, or says what was lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tidewright.base.units import SECOND
from tidewright.live.api.cause_views import cause_view
from tidewright.model.cause import Cause, Code, reported
from tidewright.wire.api import JobView, StoryLine

from .hosts import Hosts, owns_up
from .storm import DISK_MB, Kind, Storm

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(isinstance(criu_here(), str), reason="no CRIU here: tide setup criu"),
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
        (Code.WITH(Code.NOT_RESUMABLE(reported("image 7 is damaged")), Code.NO_IMAGE_LEFT(65 * SECOND)), True),
        (Code.WITH(reported("image 3 is damaged"), Code.ROLLED_BACK(250_000, 7)), True),
        (Code.NO_IMAGE_LEFT(65 * SECOND), False),  # which was it?
        (Code.WITH(reported("image 8 is damaged"), Code.NO_IMAGE_LEFT(65 * SECOND)), False),  # it never had that one
        (reported("image 7 is damaged, all of its work is lost"), False),  # how much?
        (reported("the image was lost"), False),
        (Code.EXIT_CODE(1), False),
    ],
)
def test_a_failure_names_its_image_and_how_much_is_lost(why: Cause, enough: bool) -> None:
    failed = Code.IMAGE_FAILED(8, reported("no room"))
    told = [cause_view(one) for one in (Code.RUNS_FROM_IMAGE(3), Code.IMAGE_UNUSABLE(7), failed, why)]
    story = tuple(StoryLine(at, "IMAGE", view.text, view) for at, view in enumerate(told))
    assert owns_up(JobView(id=1, name="job", state="failed", cause=told[-1], story=story)) == enough


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
