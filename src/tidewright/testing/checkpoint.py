"""Conformance kit for checkpoint drivers that keep an image (freeze, full): save, restore and discard keep their word.

The kit is given a running gang and a ``progress`` that grows while the gang runs; it leaves the gang running.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from ..base.errors import WorldError
from ..checkpoint.protocol import Driver, Gang, Image, Placement

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
        driver.restore(image, Placement(node=node))
    check_goes_on(progress, "after the restore")
    for _ in range(2):
        driver.discard(image)
    check_goes_on(progress, "after a discard")


def saved(driver: Driver, gang: Gang) -> Image:
    """Save, and check the image."""
    image = driver.save(gang)
    assert image is not None, "this kit is for drivers that keep an image"
    assert (image.job, image.attempt, image.driver) == (gang.job, gang.attempt, driver.name), "image of something else"
    assert msgspec.json.decode(msgspec.json.encode(image), type=Image) == image, "the image does not survive JSON"
    return image


def check_home(driver: Driver, image: Image, node: str) -> None:
    """An image with a home is restored nowhere else, and stays good when that is tried."""
    if not image.home:
        return
    assert image.home == node, "an image at home on another node"
    try:
        driver.restore(image, Placement(node=f"not-{node}"))
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
