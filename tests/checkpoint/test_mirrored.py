"""Parent and child with the same layout but other parts of a file there: CRIU would restore the parent's into the child."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.gang import INJECT
from tidewright.checkpoint.criu.blockers import mirrored

pytestmark = pytest.mark.processes

NO_RANDOMIZE = 0x0040000
MAPS = """
import mmap, os, sys
path, page, spawned = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = mmap.mmap(os.open(path, os.O_RDONLY), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, offset=4096 * page)
if spawned != "-":
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", sys.argv[4], path, spawned, "-", ""], os.environ)
    print(child, flush=True)
else:
    print("up", flush=True)
sys.stdin.read()
"""


def fixed_layout() -> None:
    ctypes.CDLL(None).personality(NO_RANDOMIZE)


@pytest.mark.parametrize(("page", "odd"), [("1", 1), ("0", 0)])
def test_another_part_of_a_file_at_the_same_place_is_an_obstacle(tmp_path: Path, page: str, odd: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(8192))
    call = [sys.executable, "-c", MAPS, str(path), "0", page, MAPS]
    parent = subprocess.Popen(
        call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=fixed_layout
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        child = int((lines - {"up"}).pop())
        found = mirrored([parent.pid, child])
        assert len(found) == odd
        assert not odd or (str(path) in found[0] and f"process {child}" in found[0])
        assert mirrored([child]) == [], "without its parent nothing can be mistaken"
    finally:
        parent.communicate("", timeout=20)


SHOWS = "import subprocess, sys; print(open('/proc/self/personality').read().strip()); sys.stdout.flush(); "
SHOWS += "subprocess.run([sys.executable, '-c', \"print(open('/proc/self/personality').read().strip())\"], check=True)"


def test_what_a_rank_starts_has_a_random_layout_again(tmp_path: Path) -> None:
    environment = {**os.environ, "TIDE_BOX": str(tmp_path), "PYTHONPATH": str(INJECT)}
    done = subprocess.run(
        [sys.executable, "-c", SHOWS],
        env=environment,
        preexec_fn=fixed_layout,
        capture_output=True,
        text=True,
        check=True,
    )
    # Read after subprocess was imported, so the process itself shows what its children will get; how it runs is decided.
    assert done.stdout.split() == ["00000000", "00000000"]


def test_without_the_wrapper_it_would_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWS], preexec_fn=fixed_layout, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["00040000", "00040000"]
