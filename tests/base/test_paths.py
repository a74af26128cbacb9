"""Directories that change while they are looked through."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tidewright.base.paths import matching, modified_ns


def test_matches_are_sorted_and_hidden_names_are_asked_for(tmp_path: Path) -> None:
    for name in ("b/2.json", "a/1.json", "a/.0.json", "c/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert matching(tmp_path, "*/*.json") == [tmp_path / "a/1.json", tmp_path / "b/2.json"]
    assert matching(tmp_path, "*/.*") == [tmp_path / "a/.0.json"]
    assert matching(tmp_path / "nowhere", "*/*") == []


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path) -> None:
    """``Path.glob`` raises here, within some thousand looks."""
    (tmp_path / "stays").mkdir()
    (tmp_path / "stays/file").touch()
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            (tmp_path / "goes").mkdir()
            (tmp_path / "goes/file").touch()
            shutil.rmtree(tmp_path / "goes")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(3000):
            assert tmp_path / "stays/file" in matching(tmp_path, "*/file")
    finally:
        done.set()
        thread.join()


def test_a_file_that_is_gone_was_modified_long_ago(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert modified_ns(tmp_path / "file") > modified_ns(tmp_path / "gone") == 0
