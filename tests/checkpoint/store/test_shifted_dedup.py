"""Ranks whose tensors lie shifted by less than a page: found where that is worth it, and exact in any case."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.checkpoint.store import (
    FsspecRemote,
    ImageDamaged,
    ImageStore,
    ingest,
    pack,
    restore_reader,
    shifted_dedup,
)
from tidewright.checkpoint.store.keys import TenantKey
from tidewright.checkpoint.store.shifted_dedup import MOST_MISSES, RecentAnchors, ShiftSearch, anchor_hashes, words_of

from ...sizes import examples
from .builders import PAGE, content, name, read, write

SECRET = b"of the cluster"
# Of rank 0's content: from which page on, how many; then bytes of its own, in sixteens.
sixteens = st.one_of(st.integers(0, 300), st.integers(0, 75).map(lambda lines: 4 * lines))
moves = st.tuples(st.integers(0, 60), st.integers(0, 60), sixteens)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(f"noise {seed}").randbytes(size)


def moved(data: bytes, made: list[tuple[int, int, int]], cut: int = 0) -> bytes:
    """Pieces of ``data``, with as much between them as moves what follows."""
    pieces = [data[first * PAGE : (first + pages) * PAGE] + noise(16 * own, own) for first, pages, own in made]
    return b"".join(pieces)[cut:]


@contextmanager
def small() -> Iterator[None]:
    """As the fixture small_packs, for each of many examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "PACK_BYTES", 160 * 1024)
        patch.setattr(pack, "FRAME_PAGES", 8)
        patch.setattr(ingest, "SEGMENT", 32 * PAGE)
        patch.setattr(shifted_dedup, "_CHOSEN", np.uint64(2**64 - 1))
        yield


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.integers(0, 200), min_size=60, max_size=100),
    st.lists(st.lists(moves, min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(0, 5000),
    st.booleans(),
)
def test_moved_content_comes_back_from_everywhere(
    seeds: list[int], ranks: list[list[tuple[int, int, int]]], cut: int, alone: bool
) -> None:
    with small(), tempfile.TemporaryDirectory() as folder:
        root, first = Path(folder), content(seeds)
        files = [
            {"pages-1.img": first},
            *({"a": moved(first, one, cut), "b": moved(first, one[::-1])} for one in ranks),
        ]
        here, there = (ImageStore(root / where, secret=SECRET) for where in ("here", "there"))
        for rank, made in enumerate(files):
            here.put(name(rank=rank), write(root / f"in{rank}", made))
        if alone:
            here.drop(name(rank=0))
            here.gc()
        remote = FsspecRemote(f"file://{root}/remote")
        assert here.verify() == []
        for rank in range(alone, len(files)):
            (root / f"out{rank}").mkdir()
            here.push(name(rank=rank), remote)
            there.pull(name(rank=rank), remote)
            for store in (here, there):
                store.get(name(rank=rank), root / f"out{rank}" / store.root.name)
                assert read(root / f"out{rank}" / store.root.name) == files[rank]
        assert there.verify() == [] and there.gc().packs == 0


@pytest.fixture
def ranks(store: ImageStore, tmp_path: Path) -> ImageStore:
    """Rank 1 has what rank 0 has, 2 MiB in each of three tensors, shifted differently and with zeros between."""
    tensors = [noise(512 * PAGE, seed) for seed in range(3)]
    write(tmp_path / "in0", {"pages-1.img": b"".join(tensors)})
    gaps = (noise(64, 7), noise(1344 - 64, 8) + bytes(20 * PAGE), bytes(640))
    shifted = b"".join(gap + tensor for gap, tensor in zip(gaps, tensors, strict=True)) + noise(100, 9)
    write(tmp_path / "in1", {"small": b"1", "d/pages-1.img": shifted})
    store.put(name(rank=0), tmp_path / "in0")
    return store


def test_a_shifted_rank_adds_little(ranks: ImageStore, tmp_path: Path) -> None:
    report = ranks.put(name(rank=1), tmp_path / "in1")
    assert report.new_bytes < 0.01 * report.raw_bytes
    assert ranks.put(name(rank=2), tmp_path / "in1").new_bytes == 0
    ranks.get(name(rank=1), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "in1")


def test_zeros_around_a_shifted_tensor_take_no_room(store: ImageStore, tmp_path: Path) -> None:
    tensor = noise(512 * PAGE)
    store.put(name(rank=0), write(tmp_path / "in0", {"pages-1.img": tensor}))
    files = {"pages-1.img": bytes(640) + tensor + bytes(PAGE - 640)}
    assert store.put(name(rank=1), write(tmp_path / "in1", files)).new_bytes == 0
    store.get(name(rank=1), tmp_path / "out")
    assert read(tmp_path / "out") == files


def test_pages_that_differ_cost_little_more_than_themselves(ranks: ImageStore, tmp_path: Path) -> None:
    data = bytearray(noise(640, 5) + (tmp_path / "in0/pages-1.img").read_bytes())
    spots = range(20 * PAGE, len(data), 50 * PAGE)
    for at in spots:
        data[at] ^= 1
    report = ranks.put(name(rank=1), write(tmp_path / "holes", {"pages-1.img": data}))
    assert report.new_bytes < 5 * len(spots) * PAGE
    ranks.get(name(rank=1), tmp_path / "out")
    assert read(tmp_path / "out") == {"pages-1.img": data}


def test_only_ranks_of_one_image_are_compared(ranks: ImageStore, tmp_path: Path) -> None:
    for other in (name(serial=2), name(job=8), name(rank=1, tenant="other")):
        assert ranks.put(other, tmp_path / "in1").new_bytes > 1500 * PAGE
        ranks.drop(other)
        ranks.gc()
    assert ImageStore(ranks.root).put(name(rank=1), tmp_path / "in1").new_bytes > 1500 * PAGE, "another process"


@pytest.mark.usefixtures("small_packs")
def test_what_a_shifted_rank_needs_is_kept_when_packs_are_written_anew(ranks: ImageStore, tmp_path: Path) -> None:
    half = (tmp_path / "in1/d/pages-1.img").read_bytes()[: 300 * PAGE]
    ranks.put(name(rank=1), write(tmp_path / "half", {"pages-1.img": half}))
    ranks.drop(name(rank=0))
    assert ranks.gc().packs > 10 and ranks.verify() == []
    assert ranks.stored_bytes() < 1.2 * len(half)
    ranks.get(name(rank=1), tmp_path / "out")
    assert read(tmp_path / "out") == {"pages-1.img": half}


def test_damage_in_a_shifted_file_is_seen_and_named(ranks: ImageStore, tmp_path: Path) -> None:
    ranks.put(name(rank=1), tmp_path / "in1")
    largest = max(ranks.root.rglob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ImageDamaged, match=r"rank 1 is damaged: d/pages-1.img: pack .* changed bytes"):
        ranks.get(name(rank=1), tmp_path / "out")
    pages = [one.problem for one in ranks.verify(name(rank=1)) if one.what == "page"]
    assert len(pages) == 1 and pages[0].startswith("d/pages-1.img: 64 of ")


def test_pieces_assembled_wrongly_are_reported_by_page(
    ranks: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.put(name(rank=1), tmp_path / "in1")

    def spoil(file: int, data: memoryview, offset: int) -> None:
        os.pwrite(file, data, offset)
        for at in (100, 100 * PAGE + 63, 100 * PAGE + 64):  # in the head, and in two whole pages
            if offset <= at < offset + len(data):
                os.pwrite(file, bytes([data[at - offset] ^ 1]), at)

    monkeypatch.setattr(restore_reader, "_write_all", spoil)
    with pytest.raises(ImageDamaged, match=r"d/pages-1.img: its content is not what was saved \(pages 0, 99, 100\)"):
        ranks.get(name(rank=1), tmp_path / "out")


def test_a_file_that_shrinks_meanwhile_is_taken_as_read(
    ranks: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "in1/d/pages-1.img", 5 * 2**20 + 77
    data, used_pages = path.read_bytes(), ingest.used_pages

    def shrink(segment: memoryview) -> np.ndarray:
        with path.open("r+b") as file:
            file.truncate(size)
        return used_pages(segment)

    monkeypatch.setattr(ingest, "used_pages", shrink)
    assert ranks.put(name(rank=1), tmp_path / "in1").raw_bytes == size + 1
    ranks.get(name(rank=1), tmp_path / "out")
    assert (tmp_path / "out/d/pages-1.img").read_bytes() == data[:size]


def test_misleading_content_is_given_up_soon() -> None:
    """Anchor hashes everywhere, and no page that matches."""
    segment, asked = memoryview(noise(256 * PAGE)), 0
    windows = np.frombuffer(segment, np.uint64).reshape(-1, 8)[:, :4]
    known = np.sort(windows @ shifted_dedup._FACTORS)

    def has(hashes: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(hashes)
        return np.zeros(len(hashes), bool)

    assert ShiftSearch(TenantKey(bytes(32)), has, known).shifted_ranges(segment, np.arange(256)) == []
    assert asked == MOST_MISSES + 1


def test_constant_content_is_no_anchor() -> None:
    segment = memoryview(bytes(PAGE) + b"12345678" * 512 + b"1234567812345678abcdefghabcdefgh" * 128)
    assert len(words_of(segment)) == 3 and len(anchor_hashes(segment, np.arange(2))) == 0


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3), st.lists(st.integers(0, 50))), max_size=40))
def test_anchor_hashes_of_the_last_images_are_kept(added: list[tuple[int, int, list[int]]]) -> None:
    latest, model = RecentAnchors(), dict[int, tuple[int, set[int]]]()
    for job, serial, marks in added:
        latest.add(job, serial, np.array(marks, np.uint64))
        known, before = model.pop(job, (serial, set[int]()))
        model[job] = serial, set(marks) | (before if known == serial else set[int]())
        for old in list(model)[:-8]:
            del model[old]
        for each in range(1, 13):
            for one in (1, 2, 3):
                wanted = model[each][1] if each in model and model[each][0] == one else set()
                assert latest.get(each, one).tolist() == sorted(wanted)


def test_of_very_many_anchor_hashes_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifted_dedup, "_MOST", 100)
    latest = RecentAnchors()
    for at in range(10):
        latest.add(1, 1, np.arange(at * 90, at * 90 + 90, dtype=np.uint64))
        assert 45 <= len(latest.get(1, 1)) <= 100
