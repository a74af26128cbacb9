"""A disk that a job has filled, with real daemons on a small file system: everything that frees it goes on working."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tests.small_disk import small_disk_at
from tidewright.checkpoint.criu.driver import Criu
from tidewright.cli.shell import run
from tidewright.live.controller.disk_space import RESERVE, RESERVE_BYTES, free_bytes

pytestmark = pytest.mark.processes
FULL = 7
FLOOD = 'while :; do head -c 100000 /dev/zero | tr "\\0" x; done 2>/dev/null'
"""Writes as fast as it can, and on when it cannot."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    with small_disk_at(tmp_path / "small", 48) as place:
        yield place


class Tide:
    """Types ``tide`` commands at real daemons; returns the exit code and what was said."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state, self._capsys = state, capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        code, out, err = self.apart(*arguments)
        return code, out + err

    def apart(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, and both outputs."""
        self._capsys.readouterr()
        code = run(["--state", str(self.state), *arguments])
        said = self._capsys.readouterr()
        assert "Errno" not in said.err, said.err
        return code, said.out, said.err

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, self("ps", "--all")[1]
            time.sleep(0.05)


@pytest.fixture
def tide(small: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Tide]:
    found = Tide(small / "state", capsys)
    yield found
    for path in found.state.glob("logs/*/*"):
        path.unlink()
    (small / "filler").unlink(missing_ok=True)
    found("up")
    found("down", "--jobs")


def _fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("ab", buffering=0) as file:
        for size in (2**20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def test_what_frees_a_full_disk_works_on_it(tide: Tide, small: Path) -> None:
    assert tide("up", "--slots", "3")[0] == 0
    assert (tide.state / RESERVE).stat().st_blocks * 512 == RESERVE_BYTES
    tide("run", "--name", "flood", "--", "sh", "-c", FLOOD)
    tide("run", "--name", "calm", "--level", "freeze", "--", "sleep", "600")
    tide("run", "--name", "usual", "--", "sleep", "600")
    tide.until(lambda: free_bytes(small) == 0 and tide("ps")[1].count(" running ") == 3)

    code, said = tide("run", "--name", "refused", "--", "true")
    assert code == FULL and "is full" in said and "free some" in said
    assert "refused" not in tide("ps", "--all")[1]
    code, said = tide("doctor")
    assert code == 1 and "logs/1/rank0.1.log takes" in said

    assert tide("suspend", "calm")[0] == tide("suspend", "usual")[0] == 0
    tide.until(lambda: tide("ps")[1].count(" held ") == 2)
    imaged = isinstance(criu_here(), Criu)
    assert not imaged or "frozen, as there is no room for an image: no room on" in tide("show", "usual")[1]
    assert tide("resume", "usual")[0] == 0
    tide.until(lambda: tide("ps")[1].count(" held ") == 1 and tide("ps")[1].count(" running ") == 2)
    assert tide("cancel", "usual")[0] == 0
    assert tide("cancel", "flood")[0] == 0
    tide.until(lambda: "flood" not in tide("ps")[1])
    _fill(small / "filler")
    assert tide("down")[0] == 0
    _fill(small / "filler")
    code, said = tide("doctor")
    assert code == 1 and "BAD" in said and "repair" not in said, "a full disk is no damage"

    code, said = tide("up")
    assert (code == 0) or (code == FULL and "logs/1/rank0.1.log" in said and "free some" in said), said
    (small / "filler").unlink()
    assert tide("up")[0] == 0
    (tide.state / "logs" / "1" / "rank0.1.log").unlink()
    assert tide("cancel", "calm")[0] == 0
    assert tide("run", "--wait", "--", "true")[0] == 0, "there is room again"
    assert (tide.state / RESERVE).stat().st_blocks * 512 == RESERVE_BYTES
    assert "refused" not in tide("ps", "--all")[1]


def test_a_start_without_any_room_says_what_is_full(tide: Tide, small: Path) -> None:
    assert tide("up", "--slots", "1")[0] == 0
    tide("down")
    (tide.state / RESERVE).unlink()
    _fill(small / "filler")
    code, said = tide("up")
    assert code == FULL and "0B of 48.0MiB are free" in said and "does not lie in that directory" in said
    assert "damaged" not in said and "repair" not in said
    (small / "filler").unlink()
    assert tide("up")[0] == 0
