"""Files before a restore: what is put back, what is left alone, what forbids it."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.checkpoint.files import capture as files
from tidewright.checkpoint.files import file_rollback
from tidewright.checkpoint.files.file_rollback import roll_back

from ..sizes import examples

CONTENT = st.binary(max_size=40)


@contextmanager
def holder(path: Path, mode: str, mapped: bool = False) -> Iterator[int]:
    """A process that has a file open, or mapped; its pid."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        file = path.open(mode)
        if mapped:
            shared = "+" in mode
            access = {"flags": mmap.MAP_SHARED} if shared else {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ}
            memory = mmap.mmap(file.fileno(), 0, **access)
            file.close()
            if shared:
                memory[:5] = b"first"
        os.write(writing, b".")
        signal.pause()
    os.read(reading, 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def captured(
    directory: Path, path: Path, *, limit: int = 10**6, mode: str = "r+b", mapped: bool = False
) -> dict[str, Any]:
    """The meta of a process that has ``path`` open."""
    image = directory / "image"
    image.mkdir(exist_ok=True)
    with holder(path, mode, mapped) as pid:
        meta = files.Capture(image, limit).take([pid], pid)
    meta["files"] = [entry for entry in meta["files"] if entry["path"] == str(path)]
    meta["maps"] = [entry for entry in meta["maps"] if entry["path"] == str(path)]
    meta["dirs"] = []
    return meta


@settings(deadline=None, max_examples=examples(40))
@given(before=CONTENT, after=st.none() | CONTENT, more=CONTENT, replaced=st.booleans(), kept=st.integers(0, 40))
def test_the_content_is_what_it_was_or_nothing_is_touched(before, after, more, replaced, kept):
    """``after`` None: grown by ``more`` or cut to ``kept``; ``replaced``: by another file of that name."""
    with tempfile.TemporaryDirectory() as name:
        directory, path = Path(name), Path(name, "sub", "file")
        path.parent.mkdir()
        path.write_bytes(before)
        meta = captured(directory, path)
        now = after if after is not None else (before + more)[: len(before) + len(more) - kept if kept < 20 else None]
        if replaced:
            path.rename(path.with_name("older"))  # so that the inode is not given again
        path.write_bytes(now)
        said = roll_back(meta, str(directory / "image"))
        if said:
            assert replaced and not before.startswith(now) and not now.startswith(before)
            assert path.read_bytes() == now and "other content" in said[0]
        else:
            assert path.read_bytes() == before


def test_missing_files_and_directories_are_made_again(tmp_path: Path):
    path = tmp_path / "deep" / "down" / "file"
    path.parent.mkdir(parents=True)
    path.write_text("text")
    path.chmod(0o640)
    meta = captured(tmp_path, path)
    meta["dirs"] = [{"path": str(tmp_path / "deep" / "cwd"), "mode": 0o751, "uid": os.getuid(), "gid": os.getgid()}]
    path.unlink()
    path.parent.rmdir()
    assert roll_back(meta, str(tmp_path / "image"), dry=True) == [] and not path.exists()
    assert roll_back(meta, str(tmp_path / "image")) == []
    assert path.read_text() == "text" and path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "deep" / "cwd").stat().st_mode & 0o777 == 0o751


def test_what_is_only_read_must_be_there(tmp_path: Path):
    path = tmp_path / "data"
    path.write_text("text")
    meta = captured(tmp_path, path, mode="rb")
    assert roll_back(meta, str(tmp_path / "image")) == []
    path.write_text("longer")
    assert roll_back(meta, str(tmp_path / "image")) == [f"{path} has 6 bytes, had 4"]
    path.unlink()
    assert roll_back(meta, str(tmp_path / "image")) == [f"{path} is missing"]
    path.mkdir()
    assert "not a regular file" in roll_back(meta, str(tmp_path / "image"))[0]


def test_large_files_are_recorded_only(tmp_path: Path):
    path = tmp_path / "data"
    path.write_text("0123456789")
    meta = captured(tmp_path, path, limit=5)
    with path.open("a") as file:
        file.write("more")
    assert roll_back(meta, str(tmp_path / "image")) == [] and path.read_text() == "0123456789"
    path.rename(tmp_path / "older")
    assert "too large to keep a copy" in roll_back(meta, str(tmp_path / "image"))[0]
    path.write_text("0123456789")
    assert "too large to keep a copy" in roll_back(meta, str(tmp_path / "image"))[0]


def test_all_differences_are_listed_and_nothing_is_changed(tmp_path: Path):
    first, second, grown = (tmp_path / name for name in ("first", "second", "grown"))
    entries = []
    for path in (first, second, grown):
        path.write_text("text")
        entries += captured(tmp_path, path, mode="rb" if path != grown else "r+b")["files"]
    first.unlink()
    second.write_text("x")
    grown.write_text("text and more")
    said = roll_back({"files": entries, "dirs": [], "box": []}, str(tmp_path / "image"))
    assert len(said) == 2 and grown.read_text() == "text and more"


def test_writes_through_a_mapping_are_undone_whatever_the_clock_says(tmp_path: Path):
    path = tmp_path / "mapped"
    path.write_bytes(bytes(4096))
    meta = captured(tmp_path, path, mapped=True)
    (entry,) = meta["files"]
    with path.open("r+b") as file:
        file.write(b"later")
    os.utime(path, ns=(entry["mtime"], entry["mtime"]))
    assert entry["mapped"] and roll_back(meta, str(tmp_path / "image")) == []
    assert path.read_bytes()[:5] == b"first"


def test_mapped_files_are_distinguished_from_other_versions(tmp_path: Path):
    path = tmp_path / "lib"
    path.write_bytes(b"one" * 5000)
    maps = captured(tmp_path, path, mode="rb", mapped=True)["maps"]
    assert len(maps) == 1 and files.mapped_differences(maps) == []
    path.write_bytes(b"two" * 5000)
    assert files.mapped_differences(maps) == [f"{path} is another version"]
    path.write_bytes(b"two")
    assert files.mapped_differences(maps) == [f"{path} has 3 bytes, had 15000"]
    path.unlink()
    assert files.mapped_differences(maps) == [f"{path} is missing"]


def test_the_log_is_filled_up_or_begins_with_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "out"
    path.write_text("printed so far\n")
    monkeypatch.setattr(file_rollback, "OUTPUT", str(path))
    whole, record_only = captured(tmp_path, path), captured(tmp_path, path, limit=0)
    for meta, content in ((whole, b"printed so far\n"), (record_only, bytes(15))):
        path.rename(tmp_path / f"old{content[0]}")
        path.touch()  # as the shim of the next attempt does
        assert roll_back(meta, str(tmp_path / "image")) == [] and path.read_bytes() == content


def test_complaints_name_the_cause(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        "Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE\nWarn x\n(0.1) Error (a.c:2): File has bad size\n"
    )
    assert file_rollback.complaint(str(log)) == "(a.c:2): File has bad size"
    assert file_rollback.complaint(str(tmp_path / "none")) == ""
