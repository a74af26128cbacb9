"""Full images of real processes: the kit, damage, faults in the middle of a dump, and what is refused."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint.site import Site, chain
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.criu.driver import Criu, DamagedImage, RanksLost
from tidewright.checkpoint.manifest import NAME, read_meta, verify, write_manifest
from tidewright.checkpoint.processes import alive
from tidewright.launch.init import VERDICT
from tidewright.testing.checkpoint import check_damage, check_driver, check_full, check_grows, check_leaves_running

pytestmark = pytest.mark.processes


def test_full_images_pass_the_kit(site: Site):
    check_full(site, chain)


def test_a_full_driver_is_a_driver(site: Site):
    gang = site.start()
    check_driver(site.driver("a"), gang, "a", lambda: len(site.output("a")))


def test_ranks_run_on_and_come_back_to_where_they_were(site: Site, tmp_path: Path):
    (tmp_path / "images").mkdir()
    check_leaves_running(site, tmp_path / "images", chain)


def flip(name: str):
    def damage(image: Path) -> None:
        content = bytearray((image / name).read_bytes())
        content[random.Random(7).randrange(len(content))] ^= 0x40
        (image / name).write_bytes(content)

    return damage


def cut(name: str):
    return lambda image: os.truncate(image / name, (image / name).stat().st_size // 2)


DAMAGE = {
    "a flipped bit in pages": (flip("pages-1.img"), "pages-1.img has other content"),
    "pages cut short": (cut("pages-1.img"), "pages-1.img has"),
    "a file gone": (lambda image: (image / "pagemap-100.img").unlink(), "pagemap-100.img: No such file"),
    "a flipped bit in meta": (flip("meta.json"), "meta.json has other content"),
    "half a manifest": (cut("manifest.json"), "no usable manifest"),
    "no manifest": (lambda image: (image / "manifest.json").unlink(), "no usable manifest"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_before_anything_runs(site: Site, what: str):
    damage, says = DAMAGE[what]
    assert says in check_damage(site, chain, damage)


def test_the_shim_itself_refuses_pages_cut_short(site: Site):
    """Damage that comes after the check: CRIU would loop on it without end."""
    driver, gang = site.driver("a"), site.start()
    image = Path(driver.save(gang).location) / "0"
    restore = driver.restore_spec(image)
    cut("pages-1.img")(image)
    directory = site.launch("b", restore=restore)
    error = site.read(directory, "error")
    assert error["image"] and "pages-1.img" in error["error"] and not (directory / "started").exists()


@pytest.mark.parametrize(
    ("verdict", "says", "damaged"),
    [
        ('{"error": "pages-1.img has other content", "image": true}', "pages-1.img has other content", True),
        ('{"error": "other libraries"}', "other libraries", False),
        (None, "the agent has not reported within 0 s whether the image is whole", False),
    ],
)
def test_nothing_is_touched_before_the_verdict(site: Site, verdict: str | None, says: str, damaged: bool):
    """The shim is started while the image is checked: it may come to nothing."""
    driver, gang = site.driver("a"), site.start()
    restore = driver.restore_spec(Path(driver.save(gang).location) / "0")
    directory = site.directory("b", 0)
    if verdict is not None:
        (directory / VERDICT).write_text(verdict)
    site.launch("b", at=directory, restore={**restore, "judged": True, "timeout_s": 0.3})
    error = site.read(directory, "error")
    assert says in error["error"] and bool(error.get("image")) == damaged
    assert not (directory / "started").exists() and not (directory / "restore.log").exists()


def test_a_restore_that_takes_too_long_is_ended_with_all_it_made(site: Site, tmp_path: Path):
    driver, gang = site.driver("a"), site.start()
    restore = driver.restore_spec(Path(driver.save(gang).location) / "0")
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\n{" ".join(site.criu.command)} "$@"\necho late >{tmp_path}/ran\nexec sleep 60\n')
    slow.chmod(0o755)
    directory = site.launch("b", restore={**restore, "criu": [str(slow)], "timeout_s": 1.0})
    assert "was not done after 1 s" in site.read(directory, "error")["error"]
    assert (tmp_path / "ran").exists(), "the rank had been restored when time was up"
    before = site.output("b")
    assert before == chain(len(before)) and site.output("b") == before


def killer(site: Site, path: Path, after_s: float) -> Criu:
    """A CRIU that is killed some time after its start."""
    path.write_text(
        f'#!/bin/sh\n{" ".join(site.criu.command)} "$@" &\npid=$!\nsleep {after_s}\nkill -9 $pid\nwait $pid\nexit 1\n'
    )
    path.chmod(0o755)
    return Criu((str(path),), site.criu.version)


MOMENTS_S = (0.005, 0.01, 0.02, 0.03, 0.05)
"""From the start of CRIU to its end."""


@pytest.mark.parametrize("leave_running", [False, True])
@pytest.mark.parametrize(
    "moments", [MOMENTS_S[::4], pytest.param(MOMENTS_S, marks=pytest.mark.full)], ids=["some", "all"]
)
def test_criu_killed_in_the_middle_of_a_dump(
    site: Site, tmp_path: Path, leave_running: bool, moments: tuple[float, ...]
):
    """All ranks run on, or it is said that one was lost: CRIU sets traps in a task's code, for moments."""
    gang = site.start(2)
    for number, after_s in enumerate(moments):
        driver = site.driver("a", killer(site, tmp_path / f"killer{number}", after_s))
        with pytest.raises(WorldError) as caught:
            driver.dump(gang.ranks, tmp_path, leave_running=leave_running)
        lost = isinstance(caught.value, RanksLost)
        assert lost == any(not alive(handle.pid, handle.start) for handle in gang.ranks)
        assert not (tmp_path / "0").exists() and not (tmp_path / "1").exists()
        if lost:
            site.clean()
            shutil.rmtree(tmp_path / "a" / "logs")
            gang = site.start(2)
        for rank in range(2):
            check_grows(site, "a", rank, chain)
    image = site.driver("a").save(gang)
    site.driver("b").restore(image, placement())
    check_grows(site, "b", 1, chain)


def slowed(site: Site, path: Path, before_s: float = 0.0, after_s: float = 0.0) -> Criu:
    """A CRIU that takes a while to begin, or to be gone."""
    path.write_text(
        f'#!/bin/sh\nsleep {before_s}\n{" ".join(site.criu.command)} "$@"\ncode=$?\nsleep {after_s}\nexit $code\n'
    )
    path.chmod(0o755)
    return Criu((str(path),), site.criu.version)


ENDS_WHEN_INTERRUPTED = """
import ctypes, select
epoll, events = select.epoll(), (ctypes.c_char * 12)()
print("waiting", flush=True)
ctypes.CDLL(None).epoll_wait(epoll.fileno(), events, 1, 30_000)
"""
"""An image interrupts this call (docs/checkpoints.md)."""


def test_a_rank_that_ends_before_its_criu_is_gone_has_an_image(site: Site, tmp_path: Path):
    """CRIU lives in its namespace and is killed with it."""
    gang = site.start(command=[sys.executable, "-I", "-S", "-c", ENDS_WHEN_INTERRUPTED])
    assert wait_until(lambda: site.output("a") == ["waiting"], 10)
    time.sleep(0.05)
    driver = site.driver("a", slowed(site, tmp_path / "slow", after_s=5.0))
    report = driver.dump(gang.ranks, tmp_path / "image", leave_running=True)
    assert verify(tmp_path / "image" / "0").size_bytes == report.size_bytes
    assert wait_until(lambda: not alive(gang.ranks[0].pid, gang.ranks[0].start), 10)


def test_ranks_that_end_before_criu_comes_to_them_are_named(site: Site, tmp_path: Path):
    gang = site.start(command=[sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.4)"])
    with pytest.raises(RanksLost, match="rank 0 has ended during the dump") as caught:
        site.driver("a", slowed(site, tmp_path / "slow", before_s=2.0)).dump(
            gang.ranks, tmp_path / "image", leave_running=True
        )
    assert caught.value.ranks == (0,) and not (tmp_path / "image" / "0").exists()


def placement():
    from tidewright.checkpoint.protocol import RestorePlacement

    return RestorePlacement(node="b")


def test_an_image_of_other_pages_is_no_image(site: Site):
    gang = site.start()
    image = site.driver("a").save(gang)
    with pytest.raises(DamagedImage):
        flip("core-100.img")(Path(image.location) / "0")
        site.driver("b").check(Path(image.location) / "0")


def _taken_elsewhere(image: Path) -> list[str]:
    """Make an image one of a host with another processor and other libraries; what must be said of it, in order."""
    meta = read_meta(image)
    meta["host"]["flags"] += ["sse9", "avx1024"]
    lacking, newer, *_ = (entry for entry in meta["maps"] if ".so" in entry["path"])
    lacking["path"] = "/opt/elsewhere/libother.so.1"
    newer["print"] = "build-id:0123456789abcdef"
    (image / "meta.json").write_bytes(msgspec.json.encode(meta))
    write_manifest(image)
    libraries = {lacking["path"]: "is missing", newer["path"]: "is another version"}
    return [
        "this processor lacks avx1024, sse9, which the program may have chosen to use",
        *(f"{entry['path']} {libraries[entry['path']]}" for entry in meta["maps"] if entry["path"] in libraries),
    ]


def test_a_host_without_what_an_image_needs_starts_nothing(site: Site):
    """One rank's image is enough, the last one's: it is known before the first is started."""
    gang = site.start(2)
    check_grows(site, "a", 1, chain)
    image = site.driver("a").save(gang)
    place = Path(image.location) / "1"
    ours = {name: (place / name).read_bytes() for name in ("meta.json", NAME)}
    differences = _taken_elsewhere(place)
    with pytest.raises(WorldError) as caught:
        site.driver("b").restore(image, placement())
    assert not isinstance(caught.value, DamagedImage)
    assert str(caught.value) == f"image {place} cannot be restored on b: {'; '.join(differences)}"
    assert not (site.root / "b").exists() and not any(alive(each.pid, each.start) for each in site.handles)
    for name, content in ours.items():
        (place / name).write_bytes(content)
    site.driver("b").restore(image, placement())
    check_grows(site, "b", 1, chain)
