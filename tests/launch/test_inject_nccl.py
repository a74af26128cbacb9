"""What the wrapper does to NCCL, as far as that can be seen without a GPU: a stand-in writes down what is done to it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.ports import free_port

from .gang import Gang, harass
from .warm import Warm

pytestmark = pytest.mark.processes


STEPS = 1000


def trained(gang: Gang) -> list[bool]:
    """Of each rank, whether it has done some operations in both groups."""
    pages = {page.job_rank: page for page in gang.pages().read()}
    return [rank in pages and sum(entry.issued > 5 for entry in pages[rank].entries) == 2 for rank in range(gang.size)]


def test_communicators_are_awaited_aborted_and_made_anew(tmp_path: Path, warm: Warm) -> None:
    """Every group at each cut. Messages are left out: gloo's, unlike NCCL's, must not be waited for twice."""
    gang = Gang(tmp_path / "cut", 2, ["queued.py", str(STEPS)], warm=warm)
    try:
        gang.start(free_port())
        until = time.monotonic() + 60
        while not all(trained(gang)) and time.monotonic() < until:
            time.sleep(0.02)
        harass(gang, seed=4, cuts=4, pause_s=0.05)
        found = gang.wait()
    finally:
        gang.end()
    value, sums = 0.5, []
    for step in range(STEPS):  # both have the mean, and then what the one whose turn it is made of it
        value += step % 2
        sums.append(64 * value)
    for rank in found.values():
        assert rank["sums"] == sums
        check(rank["log"])


def check(log: list[str]) -> None:
    """What was done to the communicators of both groups that this rank is in."""
    assert log[:1] == ["made"] and "waited" in log
    alive = list(itertools.accumulate({"made": 1, "aborted": -1}.get(event, 0) for event in log))
    assert all(0 <= count <= 2 for count in alive)
    assert sum(event == "aborted" and not count for event, count in zip(log, alive, strict=True)) >= 2, "cuts"
    for before, event in itertools.pairwise(log):
        if event == "aborted" and before != "aborted":
            assert before in ("waited", "made"), "works under way are waited for before"
