"""Nothing damaged is ever handed out as sound, and the report says what is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import ImageDamaged, ImageStore

from ...sizes import seeds
from .builders import image, name, read

pytestmark = pytest.mark.usefixtures("small_packs")


@pytest.fixture
def filled(store: ImageStore, tmp_path: Path) -> ImageStore:
    """Two serials that share pages 100 to 299."""
    store.put(name(1), image(tmp_path / "in1", range(1, 300)))
    store.put(name(2), image(tmp_path / "in2", range(100, 400)))
    return store


def parts(store: ImageStore, suffix: str = "") -> list[Path]:
    return sorted(path for path in (store.root / "tenants").rglob(f"*{suffix}") if path.is_file())


@pytest.mark.parametrize("seed", seeds(60))
def test_any_damage_is_seen(filled: ImageStore, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = rng.choice(parts(filled))
    data = bytearray(path.read_bytes())
    deed = rng.choice(["flip", "cut", "remove", "zero"])
    if deed == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif deed == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif deed == "zero":
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :])
    else:
        path.unlink()
    store = ImageStore(filled.root)
    lost = []
    for serial in (1, 2):
        try:
            store.get(name(serial), tmp_path / f"out{serial}")
            assert read(tmp_path / f"out{serial}") == read(tmp_path / f"in{serial}")
        except WorldError as error:
            assert f"image {serial} of job 7, rank 0" in str(error)
            assert not (tmp_path / f"out{serial}").exists()
            lost.append(serial)
    findings = ImageStore(filled.root).verify()
    reported = {image.serial for finding in findings for image in finding.images}
    gone = {serial for serial in lost if not store.has(name(serial))}
    assert reported == set(lost) - gone
    assert lost or not findings or path.suffix == ".idx" or path.suffix == ".pack"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_report_names_image_file_and_who_else_lost_it(filled: ImageStore, tmp_path: Path) -> None:
    pack = max(parts(filled, ".pack"), key=lambda path: path.stat().st_ctime_ns)
    shared = [path for path in parts(filled, ".pack") if path != pack]
    for path in shared:
        for at in range(0, path.stat().st_size, 4000):
            flip(path, at)
    with pytest.raises(ImageDamaged) as caught:
        filled.get(name(1), tmp_path / "out")
    text = str(caught.value)
    assert "image 1 of job 7, rank 0 is damaged: " in text and "changed bytes at byte" in text
    assert "job.serial.rank 7.2.0" in text


def test_verify_of_one_image_reads_only_its_packs(filled: ImageStore, tmp_path: Path) -> None:
    filled.put(name(9), image(tmp_path / "in9", range(5000, 5100)))
    newest = max(parts(filled, ".pack"), key=lambda path: path.stat().st_mtime_ns)
    flip(newest, 5)
    assert filled.verify(name(1)) == []
    assert {finding.images for finding in filled.verify()} == {(name(9),)}
    assert {finding.what for finding in filled.verify(name(9))} == {"pack", "page"}


def test_pages_seen_again_heal_what_lost_them(filled: ImageStore, tmp_path: Path) -> None:
    for path in parts(filled, ".pack"):
        flip(path, 100)
    assert filled.verify()
    with pytest.raises(ImageDamaged):
        filled.get(name(1), tmp_path / "no")
    report = filled.put(name(3), image(tmp_path / "in3", range(1, 400)))
    assert report.new_bytes > 0, "damaged pages do not count as known"
    for serial in (1, 2, 3):
        filled.get(name(serial), tmp_path / f"out{serial}")
        assert read(tmp_path / f"out{serial}") == read(tmp_path / f"in{serial}")
    assert not [finding for finding in filled.verify() if finding.images]
    filled.gc()
    assert filled.verify(name(2)) == []


def test_gc_keeps_a_damaged_pack_that_is_still_needed(filled: ImageStore) -> None:
    damaged = parts(filled, ".pack")[0]
    flip(damaged, 100)
    filled.verify()
    filled.gc()
    assert damaged.exists()
    before = parts(filled)
    filled.gc()
    assert parts(filled) == before, "what is sound in it was taken out once"
    for serial in (1, 2):
        filled.drop(name(serial))
    filled.gc()
    assert not parts(filled)


@pytest.mark.parametrize("gone", [False, True])
def test_a_lost_key_is_said_and_not_replaced(filled: ImageStore, tmp_path: Path, gone: bool) -> None:
    key = next((filled.root / "keys").iterdir())
    if gone:
        key.unlink()
    else:
        flip(key, 3)
    store = ImageStore(filled.root)
    with pytest.raises(WorldError, match=r"key of tenant 'team' is (damaged|missing)"):
        store.get(name(1), tmp_path / "out")
    assert "key of tenant 'team' is" in store.gc().notes[0] and len(parts(store)) > 3
    assert [finding.what for finding in store.verify()] == ["key"]
