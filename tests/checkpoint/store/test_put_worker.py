"""Images taken in by a process of its own: the same results and errors, and nothing left of one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint.store.builders import image, name, read
from tidewright.base.errors import Conflict, WorldError
from tidewright.checkpoint.store import ImageStore, StoreFull, put_worker
from tidewright.checkpoint.store.put_worker import NICE, Load, PutOrder, put_in_worker


def order(root: Path, *loads: Load, quota: int = 0) -> PutOrder:
    return PutOrder(str(root / "store"), quota, b"secret", loads)


def load(root: Path, serial: int, first: int = 1, last: int = 200) -> Load:
    return Load(name(serial), str(image(root / f"in{serial}", range(first, last))), {"serial": serial})


def test_images_come_back_as_they_were_and_share_pages(tmp_path: Path) -> None:
    made, why = put_in_worker(order(tmp_path, load(tmp_path, 1), load(tmp_path, 2)))
    assert why is None and [report.new_bytes > 0 for report in made] == [True, False]
    store = ImageStore(tmp_path / "store", secret=b"secret")
    store.get(name(2), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "in2") and store.meta(name(2)) == {"serial": 2}


def test_it_stops_at_the_first_failure_and_says_what_was_done(tmp_path: Path) -> None:
    first, second, third = load(tmp_path, 1), load(tmp_path, 2, 1000, 1300), load(tmp_path, 3)
    made, why = put_in_worker(order(tmp_path, first, second, third, quota=700_000))
    assert len(made) == 1 and isinstance(why, StoreFull) and "image 2 of job 7, rank 0 does not fit" in str(why)
    made, why = put_in_worker(order(tmp_path, third, first))
    assert len(made) == 1 and isinstance(why, Conflict) and "in the store already" in str(why)
    (tmp_path / "file").write_bytes(b"")
    _, why = put_in_worker(PutOrder(str(tmp_path / "file"), 0, b"", (third,)))
    assert isinstance(why, WorldError), "a store that cannot be opened"


def process(given: PutOrder) -> subprocess.Popen[bytes]:
    """The process itself, with its order; its input stays open."""
    found = subprocess.Popen(
        [sys.executable, "-P", "-m", put_worker.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    assert found.stdin is not None
    found.stdin.write(msgspec.json.encode(given) + b"\n")
    found.stdin.flush()
    return found


def test_it_ends_with_its_parent_and_leaves_only_garbage(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    with (big / "pages-1.img").open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
    with process(order(tmp_path, Load(name(1), str(big), {}))) as found:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "store").glob("tmp/*")) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert os.getpriority(os.PRIO_PROCESS, found.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        assert found.stdin is not None
        found.stdin.close()
        assert found.wait(60) == 1
    store = ImageStore(tmp_path / "store", secret=b"secret")
    assert not store.has(name(1))
    store.gc()
    assert not list((tmp_path / "store" / "tmp").iterdir())


@pytest.mark.parametrize("images", [1, 5000])
def test_one_that_dies_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # with many images it is gone before all is said
    with pytest.raises(WorldError, match="ended with code 1"):
        put_in_worker(order(tmp_path, *[load(tmp_path, 1)] * images))
