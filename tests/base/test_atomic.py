"""A file is replaced in one step, or is as it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidewright.base.atomic import write_atomically

WRITES = """
import sys
from pathlib import Path
from tidewright.base.atomic import write_atomically
place, number = Path(sys.argv[1]), 0
while True:
    write_atomically(place, str(number % 10).encode() * 200_000)
    number += 1
    print(number, flush=True)
"""


def test_it_is_there_with_its_mode_and_no_draft_is(tmp_path: Path) -> None:
    for durable in (False, True):
        write_atomically(tmp_path / "a", b"new", durable=durable)
    write_atomically(tmp_path / "b", b"other", mode=0o640, draft=tmp_path / "elsewhere")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new", "b": b"other"}
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in "ab"] == ["0o600", "0o640"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_the_old_one_stays_when_it_fails(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = tmp_path / "a"
    place.write_bytes(b"old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(place, b"new", durable=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"another's")
    for name in ("a", ".a.new"):
        (tmp_path / name).symlink_to("target")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "target").read_bytes() == b"another's"
    assert not (tmp_path / "a").is_symlink() and (tmp_path / "a").read_bytes() == b"new"


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    place = tmp_path / "a"
    for seen in range(1, 6):
        with subprocess.Popen([sys.executable, "-c", WRITES, str(place)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(seen):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        found = place.read_bytes()
        assert len(found) == 200_000 and len(set(found)) == 1
    write_atomically(place, b"over the draft that one of them may have left")
