"""What the wrapper does to NCCL, as far as that can be seen without a GPU: a stand-in writes down what is done to it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .gang import Gang, harass
from .test_inject_cut import free_port, run

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_communicators_are_awaited_aborted_and_made_anew(size: int, tmp_path: Path) -> None:
    """Every group at each cut. Messages are left out: gloo's, unlike NCCL's, must not be waited for twice."""
    plain, _ = run(tmp_path / "plain", size, ["queued.py", "800", "gloo"], False, 0, 0)
    gang = Gang(tmp_path / "cut", size, ["queued.py", "800", "nccl"])
    try:
        gang.start(free_port())
        while not ((report := gang.cut()).worlds and report.ranks == size):
            gang.release()
            time.sleep(0.05)
        gang.release()
        harass(gang, seed=4, cuts=4, pause_s=0.05)
        cut = gang.wait()
    finally:
        gang.end()
    assert [found["sums"] for found in cut.values()] == [found["sums"] for found in plain.values()]
    for rank, found in cut.items():
        check(found["log"], 2 if rank in (0, 1) else 1)


def check(log: list[str], groups: int) -> None:
    """``groups`` that this rank is in; those of the last words are destroyed by the program's end."""
    assert log[:1] == ["made"]
    cuts, events = 0, iter(log)
    alive = 0
    for event in events:
        if event == "made":
            alive += 1
        elif event == "aborted":
            alive -= 1
            cuts += alive == 0
        assert 0 <= alive <= groups
    assert cuts >= 2 and "waited" in log
    for at, event in enumerate(log):
        if event == "aborted" and log[at - 1] != "aborted":
            assert log[at - 1] in ("waited", "made"), "works under way are waited for before"
