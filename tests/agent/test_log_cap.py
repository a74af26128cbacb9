"""Logs stay below their limit, and what is left of them stays where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import examples
from tidewright.agent.processes.log_cap import NOTICE_BYTES, LogCap, notice, trim
from tidewright.checkpoint.files import file_rollback
from tidewright.live.api.logs import Tail

LIMIT = 2**20


def _lines(first: int, count: int) -> bytes:
    return b"".join(b"line %09d of a program that prints a lot\n" % number for number in range(first, first + count))


def _room(path: Path) -> int:
    return path.stat().st_blocks * 512


def _read(path: Path, tail: int | None = None) -> bytes:
    """As ``tide logs`` shows it."""

    async def paths() -> list[Path]:
        return [path]

    async def read() -> bytes:
        return b"".join([chunk async for chunk in Tail(paths, lambda: True, tail).read(False)])

    return asyncio.run(read())


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "rank0.1.log"


def test_the_middle_gives_its_room_back_and_a_line_says_so(path: Path) -> None:
    whole = _lines(0, 100_000)
    path.write_bytes(whole)
    assert trim(str(path), LIMIT) > 3 * LIMIT and trim(str(path), LIMIT) == 0
    assert _room(path) <= LIMIT and path.stat().st_size == len(whole)
    shown = _read(path)
    assert b"\0" not in shown and len(shown) <= LIMIT
    before, _, after = shown.partition(b"\n[tidewright: ")
    said, _, after = after.partition(b"]\n")
    assert whole.startswith(before) and whole.endswith(after) and len(after) >= LIMIT // 2
    assert b"removed here" in said and b"limit of a log is 1.0MiB" in said
    start, end = (int(word) for word in said.split(b"bytes ")[1].split(b")")[0].split(b" to "))
    assert whole[end:] == after and len(before) + NOTICE_BYTES == start


def test_it_grows_and_is_cut_again_and_again(path: Path) -> None:
    with path.open("ab", buffering=0) as log:
        for part in range(20):
            log.write(_lines(part * 10_000, 10_000))
            trim(str(path), LIMIT)
            assert _room(path) <= LIMIT
    shown = _read(path)
    assert shown.count(b"[tidewright: ") == 1, "the latest word on it takes the place of the one before"
    assert shown.startswith(b"line 000000000 ") and shown.endswith(_lines(199_999, 1)) and b"\0" not in shown
    assert _read(path, 2).count(b"\n") == 2
    assert b"line 000000000 " not in _read(path, 10**6), "a tail does not reach over what was removed"


@settings(max_examples=examples(12), deadline=None)
@given(limits=st.lists(st.integers(2**20, 2**22), min_size=1, max_size=4))
def test_any_limit_after_any_other(tmp_path_factory: pytest.TempPathFactory, limits: list[int]) -> None:
    path = tmp_path_factory.mktemp("logs") / "log"
    whole = b""
    for limit in limits:
        more = _lines(len(whole) // 50, limit // 40)
        whole += more
        with path.open("ab") as log:
            log.write(more)
        trim(str(path), limit)
        assert _room(path) <= limit and path.stat().st_size == len(whole)
        found = np.frombuffer(path.read_bytes(), np.uint8)
        other = (found != np.frombuffer(whole, np.uint8)) & (found != 0)
        assert other.sum() <= NOTICE_BYTES * len(limits), "what is there is what was written, but for the notices"


def test_a_small_log_and_a_missing_one_and_no_limit(path: Path, tmp_path: Path) -> None:
    path.write_bytes(_lines(0, 100))
    assert trim(str(path), LIMIT) == 0
    path.write_bytes(_lines(0, 100_000))
    LogCap(0).look([str(path)])
    assert _room(path) > LIMIT
    cap = LogCap(LIMIT)
    (tmp_path / "link").symlink_to(path)
    cap.look([str(tmp_path / "none"), str(tmp_path / "link"), str(tmp_path)])
    assert _room(path) > LIMIT, "a link is not followed"
    cap.look([str(path)])
    assert _room(path) <= LIMIT


def test_a_notice_fits_whatever_the_numbers() -> None:
    for numbers in ((4096, 8192, 2**20), (2**20, 2**60, 2**40)):
        assert len(notice(*numbers)) == NOTICE_BYTES, notice(*numbers)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "image" / "files").mkdir(parents=True)
    return tmp_path / "image"


@pytest.mark.parametrize("cut", ["neither", "log", "copy", "both"])
def test_an_image_takes_a_log_back_wherever_lines_were_removed(
    path: Path, images: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's log is the same file but for what either has lost; the copy's words are what counts."""
    monkeypatch.setattr(file_rollback, "OUTPUT", str(path))
    whole, copy = _lines(0, 100_000), images / "files" / "0"
    copy.write_bytes(whole)
    path.write_bytes(whole + b"more\n")
    for each, name in ((path, "log"), (copy, "copy")):
        if cut in (name, "both"):
            trim(str(each), LIMIT)
    entry = {"path": str(path), "size": len(whole), "copy": "files/0", "writes": True, "identity": [0, 0], "mtime": 0}
    entry |= {"mapped": False, "mode": 0o600}
    assert file_rollback.differs(entry, str(images)) == ""
    file_rollback.write_again(entry, str(images))
    assert path.stat().st_size == len(whole)
    if cut in ("copy", "both"):
        assert path.read_bytes()[-LIMIT // 2 :] == whole[-LIMIT // 2 :]


def test_another_file_in_the_place_of_a_log_is_no_log(
    path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rollback, "OUTPUT", str(path))
    (images / "files" / "0").write_bytes(_lines(0, 1000))
    path.write_bytes(_lines(7, 1000))
    entry = {
        "path": str(path),
        "size": 50,
        "copy": "files/0",
        "writes": True,
        "identity": [0, 0],
        "mtime": 0,
        "mapped": False,
    }
    assert "other content" in file_rollback.differs(entry, str(images))
