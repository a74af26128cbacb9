"""Conformance kit for checkpoint drivers that keep an image (freeze, full): save, restore and discard keep their word.

The kit is given a running gang and a ``progress`` that grows while the gang runs; it leaves the gang running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ..base.errors import WorldError
from ..checkpoint.protocol import Driver, Gang, GangImage, RankHandle, RestorePlacement

PATIENCE_S = 10.0
PAUSE_S = 0.15
"""How long a saved gang is watched for signs of life."""


def check_driver(driver: Driver, gang: Gang, node: str, progress: Callable[[], float], kind: str = "cpu") -> None:
    """Run the whole kit. Raises AssertionError naming the broken promise."""
    assert driver.name and driver.level, "a driver has a name and a level"
    verdict = driver.can(gang, kind)
    assert verdict.ok and not verdict.reason, f"refused: {verdict.reason}"
    check_goes_on(progress, "before the save")
    image = saved(driver, gang)
    check_stopped(progress)
    again = saved(driver, gang)
    assert again.home == image.home, "saving twice moved the image"
    check_home(driver, image, node)
    check_stopped(progress)
    for _ in range(2):
        driver.restore(image, RestorePlacement(node=node))
    check_goes_on(progress, "after the restore")
    for _ in range(2):
        driver.discard(image)
    check_goes_on(progress, "after a discard")


def saved(driver: Driver, gang: Gang) -> GangImage:
    """Save, and check the image."""
    image = driver.save(gang)
    assert image is not None, "this kit is for drivers that keep an image"
    assert (image.job, image.attempt, image.driver) == (gang.job, gang.attempt, driver.name), "image of something else"
    assert msgspec.json.decode(msgspec.json.encode(image), type=GangImage) == image, "the image does not survive JSON"
    return image


def check_home(driver: Driver, image: GangImage, node: str) -> None:
    """An image with a home is restored nowhere else, and stays good when that is tried."""
    if not image.home:
        return
    assert image.home == node, "an image at home on another node"
    try:
        driver.restore(image, RestorePlacement(node=f"not-{node}"))
    except WorldError:
        return
    raise AssertionError("restored away from home")


def check_goes_on(progress: Callable[[], float], when: str) -> None:
    """The gang runs."""
    start, deadline = progress(), time.monotonic() + PATIENCE_S
    while progress() <= start:
        assert time.monotonic() < deadline, f"no progress {when}"
        time.sleep(0.01)


def check_stopped(progress: Callable[[], float]) -> None:
    """The gang does not run."""
    before = progress()
    time.sleep(PAUSE_S)
    assert progress() == before, "a saved gang still runs"


class DriverSite(Protocol):
    """Where full images are played with: ranks that print lines, on two nodes that share only where images lie."""

    def start(self, world: int = 1) -> Gang:
        """A fresh gang on node "a"."""
        ...

    def driver(self, node: str) -> FullDriver:
        """A driver of node "a" or "b"."""
        ...

    def output(self, node: str, rank: int = 0) -> list[str]:
        """Whole lines that a rank has printed so far, as that node has them."""
        ...


class FullDriver(Driver, Protocol):
    """A driver whose images are files in ``Image.location``, one directory per rank, and which can leave ranks running."""

    def dump(self, handles: Sequence[RankHandle], directory: Path, *, leave_running: bool) -> object:
        """As CriuDriver has it."""
        ...


Expected = Callable[[int], list[str]]
"""The first n lines of an undisturbed run."""


def check_full(site: DriverSite, expected: Expected, world: int = 2) -> None:
    """Save on one node, restore on another and back on the first, which needs nothing that is left of the ranks."""
    a, b, gang = site.driver("a"), site.driver("b"), site.start(world)
    ranks = range(world)
    for rank in ranks:
        check_grows(site, "a", rank, expected)
    image = saved(a, gang)
    assert not image.home, "a full image is at home anywhere"
    held = sum(path.stat().st_size for path in Path(image.location).rglob("*") if path.is_file())
    assert 0 < image.size_bytes <= held, f"an image of {held} bytes says that it has {image.size_bytes}"
    b.restore(image, RestorePlacement(node="b"))
    b.restore(image, RestorePlacement(node="b"))
    for rank in ranks:
        check_grows(site, "b", rank, expected)
    check_twice(site, image, expected)
    a.discard(image)
    a.discard(image)
    assert not Path(image.location).exists(), "a discarded image is still there"
    check_grows(site, "b", 0, expected)


def check_twice(site: DriverSite, image: GangImage, expected: Expected) -> None:
    """One image restored while its other copy runs: both do the same, and neither notices."""
    site.driver("a").restore(image, RestorePlacement(node="a"))
    for node in ("a", "b"):
        check_grows(site, node, 0, expected)


def check_leaves_running(site: DriverSite, directory: Path, expected: Expected) -> None:
    """An image of ranks that run on is what they were then: restored later, they begin again there."""
    driver, gang = site.driver("a"), site.start(1)
    check_grows(site, "a", 0, expected)
    driver.dump(gang.ranks, directory, leave_running=True)
    check_grows(site, "a", 0, expected)
    image = GangImage(driver=driver.name, job=gang.job, attempt=gang.attempt, location=str(directory), ranks=gang.ranks)
    site.driver("b").restore(image, RestorePlacement(node="b"))
    check_grows(site, "b", 0, expected)


def check_damage(site: DriverSite, expected: Expected, damage: Callable[[Path], None]) -> str:
    """A damaged image is refused before anything of it runs; what the refusal says."""
    driver, gang = site.driver("a"), site.start(1)
    check_grows(site, "a", 0, expected)
    image = saved(driver, gang)
    damage(Path(image.location) / "0")
    try:
        site.driver("b").restore(image, RestorePlacement(node="b"))
    except WorldError as error:
        assert not site.output("b"), "something of a damaged image has run"
        return str(error)
    raise AssertionError("a damaged image was restored")


def check_grows(site: DriverSite, node: str, rank: int, expected: Expected) -> None:
    """A rank runs on a node, and has printed just what an undisturbed one would have."""
    check_goes_on(lambda: len(site.output(node, rank)), f"of rank {rank} on node {node}")
    lines = site.output(node, rank)
    assert lines == expected(len(lines)), f"rank {rank} on node {node} has lost, repeated or mistaken a step"
