"""Garbage goes, needed pages stay, and what is mostly garbage is written anew."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import ImageStore
from tidewright.checkpoint.store.lock import StoreLock

from .builders import image, name, read

pytestmark = pytest.mark.usefixtures("small_packs")


def test_nothing_is_left_of_dropped_images(store: ImageStore, tmp_path: Path) -> None:
    for serial in (1, 2):
        store.put(name(serial), image(tmp_path / str(serial), range(serial * 50, serial * 50 + 300)))
    before = store.stored_bytes()
    for serial in (1, 2):
        store.drop(name(serial))
    freed = store.gc()
    files = [path for path in store.root.rglob("*") if path.is_file() and path.stat().st_size]
    assert [path.parent.name for path in files] == ["keys"]
    assert freed.packs > 2 and 0 < freed.bytes < before


def test_poor_packs_are_written_anew(store: ImageStore, tmp_path: Path) -> None:
    store.put(name(1), image(tmp_path / "1", range(1, 401)))
    kept = random.Random(0).sample(range(1, 401), 80)
    store.put(name(2), image(tmp_path / "2", kept))
    full = store.stored_bytes()
    store.drop(name(1))
    freed = store.gc()
    assert freed.bytes > 0.6 * full and store.stored_bytes() < 0.4 * full
    assert store.gc().packs == 0, "a second collection has nothing to do"
    store.get(name(2), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "2")
    assert store.put(name(3), image(tmp_path / "3", kept)).new_bytes == 0


def test_many_small_packs_become_few(store: ImageStore, tmp_path: Path) -> None:
    for serial in range(1, 41):
        store.put(name(serial), image(tmp_path / str(serial), range(1, serial * 2)))
    assert len(list(store.root.rglob("*.pack"))) == 40
    store.gc()
    assert len(list(store.root.rglob("*.pack"))) < 5
    assert store.verify() == []


def test_an_unreadable_manifest_stops_removal_and_says_so(store: ImageStore, tmp_path: Path) -> None:
    for serial in (1, 2):
        store.put(name(serial), image(tmp_path / str(serial), range(serial * 500, serial * 500 + 100)))
    manifest = store.root / "tenants" / name(1).key
    manifest.write_bytes(manifest.read_bytes()[:-50])
    store.drop(name(2))
    freed = store.gc()
    assert freed.packs == 0 and "image 1 of job 7" in freed.notes[0]
    store.drop(name(1))
    assert store.gc().packs > 0


def test_a_cleaner_gives_up_while_the_store_is_in_use(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", lock=StoreLock(tmp_path / "store", patience_s=0.2, cleaner_s=0.05))
    other = StoreLock(tmp_path / "store", patience_s=0.2)
    with other.shared(), pytest.raises(WorldError, match="it is in use"):
        store.gc()
    with other.exclusive(), pytest.raises(WorldError, match="garbage collection does not finish"):
        store.drop(name())
    store.gc()
