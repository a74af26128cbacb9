"""What goes in comes out, and equal pages are kept once."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import Conflict, UsageError
from tidewright.checkpoint.store import ImageMissing, ImageStore

from ...sizes import examples
from .builders import PAGE, content, image, name, read, write

seeds = st.lists(st.integers(0, 30), max_size=150)
files = st.dictionaries(st.sampled_from(["a", "b.img", "d/e", "d/f/g"]), st.tuples(seeds, st.integers(0, PAGE - 1)))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(files, min_size=1, max_size=4), st.data())
def test_every_image_comes_back(images: list[dict[str, tuple[list[int], int]]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, root = ImageStore(Path(folder) / "store"), Path(folder)
        wanted = {}
        for serial, made in enumerate(images, 1):
            wanted[serial] = {path: content(pages, tail) for path, (pages, tail) in made.items()}
            report = store.put(name(serial), write(root / f"in{serial}", wanted[serial]), meta={"serial": serial})
            assert report.raw_bytes == sum(map(len, wanted[serial].values()))
        for serial in data.draw(st.sets(st.sampled_from(sorted(wanted)))):
            store.drop(name(serial))
            del wanted[serial]
        store.gc()
        assert store.verify() == []
        for serial, expected in wanted.items():
            store.get(name(serial), root / f"out{serial}")
            assert read(root / f"out{serial}") == expected
            assert store.meta(name(serial)) == {"serial": serial}
        assert [entry.name for entry in store.ls()] == [name(serial) for serial in sorted(wanted)]


@pytest.mark.usefixtures("small_packs")
def test_equal_pages_are_kept_once(store: ImageStore, tmp_path: Path) -> None:
    first = store.put(name(1), image(tmp_path / "1", range(1, 401)))
    same = store.put(name(1, rank=1), image(tmp_path / "2", range(1, 401)))
    later = store.put(name(2), image(tmp_path / "3", [*range(1, 361), *range(1000, 1040)]))
    assert first.new_bytes > 400 * PAGE and same.new_bytes == 0 and later.new_bytes == 40 * PAGE
    assert later.stored_bytes < 0.2 * first.stored_bytes
    store.get(name(2), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "3")


def test_another_tenant_shares_nothing(store: ImageStore, tmp_path: Path) -> None:
    source = image(tmp_path / "in", range(1, 50))
    first, other = store.put(name(), source), store.put(name(tenant="other/../team"), source)
    assert first.new_bytes == other.new_bytes > 0
    assert {entry.name.tenant for entry in store.ls()} == {"team", "other/../team"}
    keys = list((store.root / "keys").iterdir())
    assert len({key.read_bytes() for key in keys}) == 2
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in store.root.rglob("*"))


def test_zero_pages_take_no_room(store: ImageStore, tmp_path: Path) -> None:
    report = store.put(name(), write(tmp_path / "in", {"pages-1.img": bytes(5000 * PAGE + 100)}))
    assert report.new_bytes == 0 and report.stored_bytes < 2000
    store.get(name(), tmp_path / "out")
    found = (tmp_path / "out" / "pages-1.img").stat()
    assert found.st_size == 5000 * PAGE + 100 and found.st_blocks == 0


def test_modes_and_empty_directories_come_back(store: ImageStore, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a": b"1", "d/b": b"2"})
    (source / "a").chmod(0o640)
    (source / "none").mkdir(mode=0o755)
    (source / "d").chmod(0o500)
    store.put(name(), source)
    store.get(name(), tmp_path / "out")
    modes = {one: stat.S_IMODE((tmp_path / "out" / one).stat().st_mode) for one in ("a", "none", "d")}
    assert modes == {"a": 0o640, "none": 0o755, "d": 0o500}


def test_what_an_image_cannot_be(store: ImageStore, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a": b"1"})
    store.put(name(), source)
    with pytest.raises(Conflict, match="already"):
        store.put(name(), source)
    with pytest.raises(Conflict, match="exists"):
        store.get(name(), source)
    with pytest.raises(ImageMissing):
        store.get(name(9), tmp_path / "out")
    with pytest.raises(ImageMissing):
        store.verify(name(9))
    with pytest.raises(UsageError, match="not a directory"):
        store.put(name(2), tmp_path / "nowhere")
    os.symlink("/etc/passwd", source / "link")
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        store.put(name(2), source)
    assert not (tmp_path / "out").exists() and not store.has(name(2))
    store.drop(name(9))
    assert store.gc().leftovers == 0


def test_a_second_store_on_the_same_directory_sees_everything(store: ImageStore, tmp_path: Path) -> None:
    other = ImageStore(store.root)
    store.put(name(1), image(tmp_path / "1", range(1, 90)))
    assert other.put(name(2), image(tmp_path / "2", range(1, 90))).new_bytes == 0
    store.drop(name(1))
    store.drop(name(2))
    assert other.gc().packs == 1
    assert store.put(name(3), image(tmp_path / "3", range(1, 90))).new_bytes > 0
    other.get(name(3), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "3")
