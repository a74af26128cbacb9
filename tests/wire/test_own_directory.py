"""What a daemon sees of a state directory that is removed, replaced or renamed under it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.wire import own_directory
from tidewright.wire.own_directory import DirectoryLost, OwnDirectory
from tidewright.wire.socket_file import SocketFile


@pytest.fixture
def state(tmp_path: Path) -> Path:
    found = tmp_path / "state"
    found.mkdir()
    (found / "lock").touch()
    (found / "journal").touch()
    return found


@pytest.fixture
def own(state: Path) -> Iterator[OwnDirectory]:
    lock = os.open(state / "lock", os.O_RDWR)
    found = OwnDirectory(state, "lock", lock)
    found.add("journal", "not there")
    yield found
    found.close()
    os.close(lock)


def test_nothing_is_lost_by_what_goes_on_in_it(own: OwnDirectory, state: Path) -> None:
    (state / "other").touch()
    (state / "journal").write_text("turns")
    (state / "other").unlink()
    own.require()
    assert own.lost() == ""


def test_a_directory_that_is_removed_renamed_or_replaced_is_lost(own: OwnDirectory, state: Path) -> None:
    away = state.with_name("away")
    state.rename(away)
    assert own.lost() == f"{state} has been removed or renamed"
    state.write_text("a file")
    assert own.lost()
    state.unlink()
    shutil.copytree(away, state)
    assert own.lost() == f"another directory has been put in the place of {state}"
    shutil.rmtree(state)
    state.symlink_to(away)
    assert own.lost() == "", "the same one, by another way"


@pytest.mark.parametrize("name", ["lock", "journal"])
def test_a_file_that_is_removed_or_replaced_is_lost(own: OwnDirectory, state: Path, name: str) -> None:
    (state / name).rename(state / "kept")
    assert own.lost() == f"{state / name} has been removed or renamed"
    (state / name).touch()
    assert own.lost() == f"another file has been put in the place of {state / name}"
    with pytest.raises(DirectoryLost, match="tide up"):
        own.require()
    own.drop(name)
    own.require()


def test_a_file_server_that_does_not_answer_loses_nothing(
    own: OwnDirectory, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> os.stat_result:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(own_directory.os, "stat", fails)
    assert own.lost() == ""


def test_a_lock_of_a_directory_that_was_replaced_meanwhile_is_refused(state: Path) -> None:
    lock = os.open(state / "lock", os.O_RDWR)
    shutil.rmtree(state)
    state.mkdir()
    (state / "lock").touch()
    with pytest.raises(DirectoryLost, match="another file"):
        OwnDirectory(state, "lock", lock)
    os.close(lock)


def test_it_is_waited_for(own: OwnDirectory, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_directory, "LOOK_EVERY_S", 0.01)

    async def body() -> str:
        waiting = asyncio.create_task(own.until_lost())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        shutil.rmtree(state)
        return await waiting

    assert "has been removed" in asyncio.run(body())


def test_a_socket_is_neither_made_nor_removed_in_a_directory_that_is_anothers(own: OwnDirectory, state: Path) -> None:
    file = SocketFile(state / "s", own)
    file.bind(1).close()
    state.rename(state.with_name("away"))
    state.mkdir()
    (state / "s").touch()
    with pytest.raises(OSError, match="another directory"):
        file.bind(1)
    file.remove()
    assert (state / "s").exists()
