"""A life may end before or after any of its side effects: what was published is there, and nothing leaks."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import ImageStore, gc, ingest, pack

from .builders import image, name, read
from .crashing import Crash, ForgetfulDisk, MortalDisk

PAGES = {1: range(1, 40), 2: range(20, 60), 3: range(30, 70), 4: range(35, 39), 5: range(1, 30)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PACK_BYTES", 40 * 1024)
    monkeypatch.setattr(pack, "FRAME_PAGES", 4)
    monkeypatch.setattr(ingest, "SEGMENT", 8 * 4096)
    monkeypatch.setattr(gc, "MANY_SMALL", 6)


class Life:
    """Puts, drops, collections, a push and a pull. ``promised`` are images whose put has returned, minus drops begun."""

    def __init__(self, root: Path, sources: Path, disk: MortalDisk) -> None:
        self._root, self._sources, self._disk = root, sources, disk
        self.promised: set[int] = set()
        self.begun: set[int] = set()

    def run(self) -> None:
        store = ImageStore(self._root, disk=self._disk)
        for serial in (1, 2, 3):
            self._put(store, serial)
        self._drop(store, 1)
        store.gc()
        self._put(store, 4)
        self._drop(store, 3)
        self._drop(store, 2)
        store.gc()
        elsewhere = ImageStore(self._sources / "elsewhere")
        self.begun.add(5)
        store.pull(name(5), elsewhere.objects)
        self.promised.add(5)

    def _put(self, store: ImageStore, serial: int) -> None:
        self.begun.add(serial)
        store.put(name(serial), self._sources / str(serial))
        self.promised.add(serial)

    def _drop(self, store: ImageStore, serial: int) -> None:
        self.promised.discard(serial)
        store.drop(name(serial))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for serial, pages in PAGES.items():
        image(root / str(serial), pages)
    # Tenants have one key here, so that the pull takes packs as they are.
    ImageStore(root / "elsewhere").put(name(5), root / "5")
    return root


def prepare(root: Path, sources: Path) -> None:
    """A store with the key of the one elsewhere."""
    store = ImageStore(root)
    shutil.copy(next((sources / "elsewhere" / "keys").iterdir()), store.root / "keys")


def check(root: Path, sources: Path, out: Path, life: Life) -> None:
    store = ImageStore(root, disk=MortalDisk())
    assert not [finding for finding in store.verify() if finding.images]
    present = {entry.name.serial for entry in store.ls()}
    assert life.promised <= present <= life.begun
    for serial in sorted(present):
        shutil.rmtree(out, ignore_errors=True)
        store.get(name(serial), out)
        assert read(out) == read(sources / str(serial))
    store.gc()
    assert store.verify() == []
    for serial in sorted(present):
        store.drop(name(serial))
    store.gc()
    left = [path for path in store.root.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert {path.name for path in left} <= {"lock", "turn"}


def effects(root: Path, sources: Path) -> int:
    prepare(root, sources)
    disk = MortalDisk()
    life = Life(root, sources, disk)
    life.run()
    assert life.promised == {4, 5}
    return disk.effects


def lives(total: int, count: int) -> list[tuple[int, bool]]:
    """Some points spread over a life's effects, and both sides of each."""
    step = max(1, total // count)
    return [(at, after) for at in range(1, total + 1, step) for after in (False, True)]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (MortalDisk, 10), (ForgetfulDisk, 10),
        pytest.param(MortalDisk, 10**6, marks=pytest.mark.full),
        pytest.param(ForgetfulDisk, 10**6, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_ending_anywhere(kind: type[MortalDisk], count: int, tmp_path: Path, sources: Path) -> None:
    total = effects(tmp_path / "whole", sources)
    assert total > 100
    for at, after in lives(total, count):
        root, disk = tmp_path / f"{at}{after}", kind(at, after)
        prepare(root, sources)
        life = Life(root, sources, disk)
        with contextlib.suppress(Crash):
            life.run()
        assert disk.dead
        if isinstance(disk, ForgetfulDisk):
            disk.power_cut(root, random.Random(at))
        try:
            check(root, sources, tmp_path / "out", life)
        except BaseException as error:
            error.add_note(f"the life ended {'after' if after else 'before'} effect {at}")
            raise
        shutil.rmtree(root)


def test_a_failure_leaves_no_drafts(tmp_path: Path, sources: Path) -> None:
    class Failing(MortalDisk):
        def sync(self, file: int) -> None:
            raise OSError(5, "Input/output error")

    prepare(tmp_path / "store", sources)
    store = ImageStore(tmp_path / "store", disk=Failing())
    with pytest.raises(WorldError, match=r"the image store failed: .*Input/output"):
        store.put(name(1), sources / "1")
    assert list((store.root / "tmp").iterdir()) == [] and store.ls() == []
