"""Threads and processes on one store, and processes that are killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import ImageStore, StoreFull
from tidewright.checkpoint.store.disk import Chunk, Disk

from .builders import image, name, read

SHARED = [range(start, start + 60) for start in range(1, 200, 20)]


@pytest.mark.usefixtures("small_packs")
def test_threads_put_get_drop_and_collect(store: ImageStore, tmp_path: Path) -> None:
    for at, pages in enumerate(SHARED):
        image(tmp_path / f"in{at}", pages)

    def work(rank: int) -> None:
        rng = random.Random(rank)
        mine = ImageStore(store.root) if rank % 2 else store
        for serial in range(1, 9):
            at = rng.randrange(len(SHARED))
            mine.put(name(serial, rank), tmp_path / f"in{at}")
            out = tmp_path / f"out{rank}.{serial}"
            mine.get(name(serial, rank), out)
            assert read(out) == read(tmp_path / f"in{at}")
            if rng.random() < 0.6:
                mine.drop(name(serial, rank))
            if rng.random() < 0.5:
                mine.gc()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.verify() == []
    for entry in store.ls():
        store.drop(entry.name)
    store.gc()
    assert not list((store.root / "tenants").rglob("*.*"))


VICTIM = """
import random, sys
from pathlib import Path
from tidewright.checkpoint.store import ImageName, ImageStore, pack
pack.PACK_BYTES, pack.FRAME_PAGES = 160 * 1024, 8
root, rank, began = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng, store = random.Random(began), ImageStore(root / "store")
for serial in range(began, began + 10**6):
    at = rng.randrange(10)
    print("begin", serial, at, flush=True)
    store.put(ImageName("team", 7, serial, rank), root / f"in{at}")
    print("done", serial, at, flush=True)
    if rng.random() < 0.7:
        print("drop", serial, at, flush=True)
        store.drop(ImageName("team", 7, serial, rank))
    if rng.random() < 0.5:
        store.gc()
"""


@pytest.mark.processes
@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.full)])
def test_kill_nine_at_any_moment(store: ImageStore, tmp_path: Path, rounds: int) -> None:
    for at, pages in enumerate(SHARED):
        image(tmp_path / f"in{at}", pages)
    rng, promised, begun = random.Random(rounds), {}, {}
    for number in range(rounds):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", VICTIM, str(tmp_path), str(rank), str(1 + 10**7 * number)],
                stdout=subprocess.PIPE, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        for child in pair:
            assert child.stdout is not None
            child.stdout.readline()
        time.sleep(rng.uniform(0, 0.6))
        for rank, child in enumerate(pair):
            os.kill(child.pid, signal.SIGKILL)
            whole, _, _ = child.communicate()[0].rpartition("\n")  # what was killed in a line has not said it
            for line in whole.splitlines():
                word, serial, at = line.split()
                begun[name(int(serial), rank)] = promised_to = int(at)
                if word == "done":
                    promised[name(int(serial), rank)] = promised_to
                elif word == "drop":
                    promised.pop(name(int(serial), rank), None)
        assert store.verify() == []
        present = {entry.name for entry in store.ls()}
        assert set(promised) <= present
        for one in rng.sample(sorted(set(promised)), min(5, len(promised))):
            store.get(one, tmp_path / "out")
            assert read(tmp_path / "out") == read(tmp_path / f"in{promised[one]}")
            shutil.rmtree(tmp_path / "out")
    for entry in store.ls():
        store.drop(entry.name)
    store.gc()
    assert not list((store.root / "tenants").rglob("*.*")) and not list((store.root / "tmp").iterdir())


@pytest.mark.usefixtures("small_packs")
def test_the_quota_refuses_and_drops_nothing(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", quota_bytes=700_000)
    store.put(name(1), image(tmp_path / "1", range(1, 200)))
    before = store.stored_bytes()
    with pytest.raises(StoreFull) as caught:
        store.put(name(2), image(tmp_path / "2", range(1000, 1300)))
    text = str(caught.value)
    assert "image 2 of job 7, rank 0 does not fit" in text and "image 1 of job 7, rank 0 (" in text
    assert "tide images gc" in text
    assert store.stored_bytes() == before and [entry.name for entry in store.ls()] == [name(1)]
    assert store.put(name(3), image(tmp_path / "3", range(1, 190))).new_bytes == 0, "what is there already fits"
    store.drop(name(1))
    store.drop(name(3))
    store.gc()
    store.put(name(2), tmp_path / "2")


class FullDisk(Disk):
    """Has room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, data: Chunk) -> None:
        self.room -= len(data)
        if self.room < 0:
            os.write(os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC), b"x")
        super().write(file, data)


@pytest.mark.usefixtures("small_packs")
@pytest.mark.parametrize("room", [10_000, 100_000, 400_000, 470_000])
def test_a_full_disk_refuses_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    ImageStore(tmp_path / "store").put(name(1), image(tmp_path / "1", range(1, 20)))
    store = ImageStore(tmp_path / "store", disk=FullDisk(room))
    before = store.stored_bytes()
    with pytest.raises(WorldError, match="No space left"):
        store.put(name(2), image(tmp_path / "2", range(1, 300)))
    store.gc()
    assert store.stored_bytes() == before and store.verify() == []
