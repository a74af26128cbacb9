"""Manifests: what was written is read, in the form it always had, and nothing else passes for one."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tidewright.checkpoint.store.keys import PAGE, TenantKey
from tidewright.checkpoint.store.manifest import (
    BadManifest,
    FileEntry,
    Header,
    ImageManifest,
    Recipe,
    decode,
    piece_offsets,
)

from .builders import name

KEY = TenantKey(bytes(32))
HASHES = np.arange(8, dtype=np.uint64).reshape(-1, 2)
EMPTY = Recipe(np.empty(0, np.intp), HASHES[:0])
FILE = FileEntry(path="a", size=9 * PAGE + 5, mode=0o600, hash="00", pages=4)


def encode(recipe: Recipe, file: FileEntry) -> bytes:
    """A manifest of this file and an empty one."""
    files = (file, FileEntry(path="b/c", size=0, mode=0o644, hash="11"))
    header = Header(
        name=name(), key=KEY.id, made_us=1, raw_bytes=2, new_bytes=3, stored_bytes=4, files=files,
        directories=(("b", 0o700),), meta={"x": 1},
    )  # fmt: skip
    return b"".join(ImageManifest(header, (recipe, EMPTY)).encode(KEY))


def forged(**changes: object) -> bytes:
    """One with another header for the file than the rest was made for, sealed."""
    data = encode(Recipe(np.array([0, 3, 4, 9]) * PAGE, HASHES), FILE)
    length = int.from_bytes(data[8:12], "little")
    header = msgspec.json.decode(data[12 : 12 + length])
    header["files"][0] |= changes
    text = msgspec.json.encode(header)
    parts = (data[:8], len(text).to_bytes(4, "little"), text, data[12 + length : -32])
    return b"".join((*parts, KEY.seal(*parts)))


def test_manifests_without_shifts_are_as_they_always_were() -> None:
    data = encode(Recipe(np.array([0, 3, 4, 9]) * PAGE, HASHES), FILE)
    assert blake3(data).hexdigest() == "11b488235e15c56f340ef70a1c43b6f05b747a532babb87e5276eca8629906d2"
    found = decode(data, KEY)
    assert found.header.files[0] == FILE and (found.hashes == HASHES).all()
    assert found.recipes[0].offsets.tolist() == [0, 3 * PAGE, 4 * PAGE, 9 * PAGE]


@st.composite
def cut_files(draw: st.DrawFn) -> FileEntry:
    size, shifts = draw(st.integers(0, 40 * PAGE)), []
    at = draw(st.integers(0, 5))
    while at + 2 <= size // PAGE and draw(st.booleans()):
        end = draw(st.integers(at + 2, size // PAGE))
        shifts.append((at, end, draw(st.integers(1, PAGE - 1))))
        at = end + draw(st.integers(0, 5))
    return FileEntry(path="a", size=size, mode=0o600, hash="00", shifts=tuple(shifts))


@given(cut_files(), st.data())
def test_pieces_tile_a_file_and_come_back(file: FileEntry, data: st.DataObject) -> None:
    inside = {page: shift for first, end, shift in file.shifts for page in range(first, end)}
    heads = {first for first, _, _ in file.shifts}
    wanted = set()
    for page in range(-(-file.size // PAGE)):
        wanted |= {page * PAGE} if page in heads or page not in inside else set()
        wanted |= {page * PAGE + inside[page]} if page in inside else set()
    offsets = piece_offsets(file)
    assert offsets.tolist() == sorted(wanted)
    used = np.array(data.draw(st.lists(st.booleans(), min_size=len(offsets), max_size=len(offsets))), bool)
    hashes = np.arange(2 * used.sum(), dtype=np.uint64).reshape(-1, 2)
    file = msgspec.structs.replace(file, pages=int(used.sum()))
    found = decode(encode(Recipe(offsets[used], hashes), file), KEY)
    assert found.header.files[0] == file
    assert found.recipes[0].offsets.tolist() == offsets[used].tolist() and (found.recipes[0].hashes == hashes).all()


BAD = {
    "in no order": [[5, 8, 64], [0, 3, 64]],
    "one over another": [[0, 4, 64], [3, 6, 64]],
    "before the file": [[-2, 3, 64]],
    "beyond its whole pages": [[3, 10, 64]],
    "one page": [[3, 4, 64]],
    "no page": [[3, 3, 64]],
    "backwards": [[5, 3, 64]],
    "no shift": [[0, 3, 0]],
    "a page": [[0, 3, PAGE]],
    "back": [[0, 3, -64]],
    "huge": [[0, 2**62, 64]],
    "not numbers": [[0, 3, "64"]],
    "too few": [[0, 3]],
}


@pytest.mark.parametrize("shifts", BAD.values(), ids=BAD)
def test_a_file_cannot_be_cut_anywhere(shifts: list[object]) -> None:
    with pytest.raises(BadManifest):
        decode(forged(shifts=shifts), KEY)


numbers = st.one_of(st.integers(-3, 12), st.integers(-(2**64), 2**64))


@given(numbers, numbers, st.lists(st.tuples(numbers, numbers, numbers), max_size=3))
def test_what_does_not_add_up_is_refused(size: int, pages: int, shifts: list[tuple[int, int, int]]) -> None:
    try:
        found = decode(forged(size=size, pages=pages, shifts=shifts), KEY)
    except BadManifest:
        return
    assert len(found.recipes[0].offsets) == pages == 4
