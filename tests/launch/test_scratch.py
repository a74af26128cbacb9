"""DDP's buckets are given back between two steps, and nothing else ever is."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from .gang import Gang
from .test_inject_cut import free_port, run

pytestmark = pytest.mark.processes


def seen(place: Path, *flags: str) -> dict[str, Any]:
    gang = Gang(place, 1, ["buckets.py", *flags])
    try:
        gang.start(free_port())
        return gang.wait()[0]
    finally:
        gang.end()


MORE = [pytest.param((flag,), marks=pytest.mark.full) for flag in ("static_graph", "find_unused_parameters")]


@pytest.mark.parametrize("flags", [(), *MORE])
def test_buckets_are_given_back_once_they_are_known(flags: tuple[str, ...], tmp_path: Path) -> None:
    """After two passes at the soonest, as buckets are made anew after the first; 256 x 256 floats are 64 pages, of which those
    that lie wholly within are given. What the program had reduced itself stays, as do gradients."""
    found = seen(tmp_path / "gang", *flags)
    assert found["given"][:2] == [0, 0]
    assert found["last"] >= 60 * mmap.PAGESIZE
    assert mmap.PAGESIZE in found["pages"]
    assert found["others"] and found["grads"] and not found["zero"]
    assert not found["strange"], "those of another thread"


def test_buckets_in_which_gradients_lie_are_never_given_back(tmp_path: Path) -> None:
    found = seen(tmp_path / "gang", "gradient_as_bucket_view")
    assert found["given"] == [0] * 4 and not found["last"]
    assert found["grads"] and not found["zero"]


FURTHER = [pytest.param(some, marks=pytest.mark.full) for some in (("views", "zeros"), ("zeros", "accumulate"))]


@pytest.mark.parametrize("flavours", [("late", "unused"), *FURTHER])
def test_cuts_change_nothing_wherever_gradients_are_cleared(flavours: tuple[str, ...], tmp_path: Path) -> None:
    argv = ["ddp.py", "150", *flavours]
    plain, _ = run(tmp_path / "plain", 2, argv, False, 0, 0)
    cut, reports = run(tmp_path / "cut", 2, argv, True, 8, 2, 0.05)
    assert cut == plain and reports
