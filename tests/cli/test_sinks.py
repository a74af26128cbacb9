"""What is written to, and what an empty filter chooses: nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tidewright.base.errors import UsageError
from tidewright.cli.journal import _sink

from .stub import Terminal


@pytest.mark.parametrize("command", ["cancel -y --state held", "hold -y --all", "ps", "ps -a"])
@pytest.mark.parametrize("option", ["--user", "--team", "--name"])
def test_an_empty_filter_is_a_mistake(tide: Terminal, command: str, option: str) -> None:
    said = tide(*command.split(), option, "")
    assert said.code == 2 and f"{option} is empty" in said.err and not tide.stub.calls


def test_a_journal_is_written_through_links_and_into_pipes_and_replaces_neither(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("target")
    with _sink(link) as sink:
        sink.write(b"all of it")
    assert link.is_symlink() and (tmp_path / "target").read_bytes() == b"all of it"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with _sink(pipe) as sink:
        sink.write(b"all of it")
    reader.join(20)
    assert got == [b"all of it"] and pipe.is_fifo()
    with pytest.raises(UsageError, match="names no file"), _sink(Path("")):
        pass
