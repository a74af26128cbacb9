"""Files for results: there whole or as before, and looked at before the work."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tidewright.base.errors import UsageError
from tidewright.base.output_file import OutputFile, check_output, write_output

FULL = Path("/dev/full")


def test_it_is_written_whole_and_keeps_the_old_one_until_then(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_bytes(b"old")
    target.chmod(0o640)
    file = OutputFile(target, "--out")
    file.stream.write(b"new")
    assert target.read_bytes() == b"old"
    file.finish()
    assert target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["out.csv"]


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "out.csv", "--out")
    file.stream.write(b"half")
    file.discard()
    file.discard()
    assert os.listdir(tmp_path) == []


def test_a_new_file_has_the_mode_that_open_gives(tmp_path: Path) -> None:
    write_output(tmp_path / "a", b"x", "--out")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_of_a_link_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_output(tmp_path / "link", b"x", "--out")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"x"


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_output(pipe, "--out")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_output(pipe, b"rows", "--out")
    reader.join(10)
    assert read == [b"rows"] and pipe.is_fifo()


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_named_with_the_option() -> None:
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left") as caught:
        write_output(FULL, b"x" * 100_000, "--out")
    assert caught.value.remedy == "give another path with --out"
    with pytest.raises(UsageError, match="No space left"):  # what fits into a buffer fails when it is flushed
        write_output(FULL, b"x", "--out")


@pytest.mark.parametrize("there", [False, True])
def test_what_could_not_be_written_is_known_before(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_output(None, "--out")
    with pytest.raises(UsageError, match="there is no directory"):
        check_output(tmp_path / "no" / "out", "--out")
    check_output(tmp_path / "out", "--out")
    assert os.listdir(tmp_path) == []
    if os.path.isdir("/proc/self"):
        with pytest.raises(UsageError, match="cannot write /proc/out"):
            check_output(Path("/proc/out"), "--out")
    if there:
        (tmp_path / "out").write_bytes(b"old")
        check_output(tmp_path / "out", "--out")
        assert (tmp_path / "out").read_bytes() == b"old"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    if there:
        with pytest.raises(UsageError, match="Permission denied"):
            check_output(tmp_path / "out", "--out")
