"""Whatever is damaged of an image where a job comes back: an intact copy anywhere else is used in its place."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.store.builders import image, name, read
from tests.sizes import matrix, seeds
from tidewright.agent.checkpointing.images import Images
from tidewright.agent.peer_rpc import PeerServer
from tidewright.base.errors import WorldError
from tidewright.checkpoint.manifest import DamagedImage, write_manifest
from tidewright.checkpoint.store import FsspecRemote
from tidewright.wire.agent import FetchArgs, Peer

JOB, SERIAL, TENANT = 7, 2, "team"
FACTS = {"box": {}, "need": 5}


class Node:
    """A node's images, and a peer server that answers other nodes while the test blocks."""

    def __init__(self, root: Path, remote: str = "") -> None:
        self.root = root
        self.images = Images(root, "token", remote=FsspecRemote(remote) if remote else None)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.peer_server = PeerServer(
            "token", {verb: self._threaded(it) for verb, it in self.images.handlers().items()}
        )
        self._do(self.peer_server.open("127.0.0.1"))
        self.peer = Peer(root.name, "127.0.0.1", self.peer_server.port)

    @staticmethod
    def _threaded(handle: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        async def answer(args: dict[str, Any]) -> Any:
            return await asyncio.to_thread(handle, args)

        return answer

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def close(self) -> None:
        self._do(self.peer_server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


def shoot(found: Images, seeds: range, serial: int = SERIAL) -> Path:
    """A raw image, as a dump leaves it."""
    raw = found.begin(JOB, serial) / "0"
    image(raw, seeds)
    write_manifest(raw)
    found.note(JOB, serial, 0, FACTS)
    return raw


def fill(found: Images) -> None:
    """Two images in the store that share pages, as those of one job do; the second in two packs."""
    for serial, pages in ((SERIAL - 1, range(1, 60)), (SERIAL, range(30, 90))):
        raw = shoot(found, pages, serial)
        found.store.put(name(serial, job=JOB), raw, meta=FACTS)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The same image wherever it can be: a node's store, another's raw one, a remote store, and a store to damage."""
    root = tmp_path_factory.mktemp("intact")
    store, raw, kept = Node(root / "store"), Node(root / "raw"), Images(root / "kept", "token")
    fill(kept)
    shutil.rmtree(root / "kept" / "work")
    shoot(raw.images, range(30, 90))
    remote = FsspecRemote(f"file://{root}/remote")
    for serial in (SERIAL - 1, SERIAL):
        kept.store.push(name(serial, job=JOB), remote)
        store.images.store.pull(name(serial, job=JOB), remote)  # so its packs have the same names
    expected = read(raw.images.raw(JOB, SERIAL) / "0")
    yield {"store": store, "raw": raw, "remote": f"file://{root}/remote", "kept": root / "kept", "read": expected}
    store.close()
    raw.close()


def first(root: Path, pattern: str) -> Path:
    """The last one of that pattern, which only the image in question needs."""
    return max(root.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


KINDS = {
    "manifest": f"store/tenants/{TENANT}/images/{JOB}.{SERIAL}.0",
    "index": f"store/tenants/{TENANT}/packs/*.idx",
    "pack": f"store/tenants/{TENANT}/packs/*.pack",
    "key": f"store/keys/{TENANT}",
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 3, len(data), max(1, len(data) // 7)):
        data[at] ^= 16
    path.write_bytes(data)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "lost").write_text("and found")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
    "directory": directory,
    "unreadable": lambda path: path.chmod(0),
    "bad-sector": lambda path: None,
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Reading this file fails, as a bad sector or a wrong owner make it (root may read what others may not)."""

    def make(path: Path, number: int) -> None:
        before, victim, real = os.open, os.fspath(path), open

        def there() -> tuple[int, int]:
            facts = path.stat()
            return facts.st_ino, facts.st_ctime_ns

        damaged = there()

        def refuse(target: Any, flags: int, *args: Any, **more: Any) -> int:
            same = not flags & os.O_CREAT and isinstance(target, str | Path) and os.fspath(target) == victim
            if same and there() == damaged:
                raise OSError(number, os.strerror(number), victim)
            return before(target, flags, *args, **more)

        monkeypatch.setattr(os, "open", refuse)

        def opened(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
            same = "r" in mode and not isinstance(file, int) and os.fspath(file) == victim
            if same and there() == damaged:
                raise OSError(number, os.strerror(number), victim)
            return real(file, mode, *args, **more)

        monkeypatch.setattr("io.open", opened)
        monkeypatch.setattr("builtins.open", opened)

    return make


NUMBERS = {"unreadable": errno.EACCES, "bad-sector": errno.EIO}


WHERE = ("store", "raw", "remote")
NUMBERED = product(enumerate(WHERE), enumerate(KINDS), enumerate(DAMAGES), (False, True))
"""In ``make test`` each kind with each damage, the source and whether the node runs by turns."""


@pytest.mark.parametrize(
    ("where", "kind", "damage", "warm"),
    matrix(
        ((where, kind, damage, warm), (at + row + column) % 3 == 0 and warm == bool((row + column) % 2))
        for (at, where), (row, kind), (column, damage), warm in NUMBERED
    ),
)
def test_an_intact_copy_is_used_whatever_is_damaged_here(
    intact: dict[str, Any], tmp_path: Path, failing: Callable[[Path, int], None],
    where: str, kind: str, damage: str, warm: bool,
) -> None:  # fmt: skip
    shutil.copytree(intact["kept"], tmp_path / "node")
    remote = intact["remote"] if where == "remote" else ""
    found = Images(tmp_path / "node", "token", remote=FsspecRemote(remote) if remote else None)
    if warm:
        assert not found.store.verify()
    victim = first(tmp_path / "node", KINDS[kind])
    DAMAGES[damage](victim)
    if damage in NUMBERS:
        failing(victim, NUMBERS[damage])
    sources = [] if where == "remote" else [intact[where].peer]
    place = found.ready(TENANT, JOB, SERIAL, [0], sources)
    assert read(place / "0") == intact["read"] and found.facts(JOB, SERIAL, 0) == FACTS
    assert not list(place.glob(".*")), "nothing half made stays"
    found.listed()
    found.sweep()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["0.facts", "0"])
def test_an_incomplete_raw_image_gives_way_to_another_copy(
    intact: dict[str, Any], tmp_path: Path, kind: str, damage: str
) -> None:
    found = Images(tmp_path / "node", "token")
    raw = shoot(found, range(30, 90)).parent
    if kind == "0":
        shutil.rmtree(raw / "0")
        (raw / "0").write_text("no directory")
    if not (kind == "0" and damage in ("unreadable", "directory", "bad-sector")):
        DAMAGES[damage](raw / kind)
    elif damage == "directory":
        (raw / "0").unlink()
    if kind == "0.facts" and damage in ("unreadable", "bad-sector"):
        (raw / kind).write_text("[]")
    place = found.ready(TENANT, JOB, SERIAL, [0], [intact["store"].peer])
    assert read(place / "0") == intact["read"] and found.facts(JOB, SERIAL, 0) == FACTS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "directory"])
def test_a_copy_that_is_damaged_is_fetched_again(
    intact: dict[str, Any], tmp_path: Path, kind: str, damage: str
) -> None:
    shutil.copytree(intact["kept"], tmp_path / "node")
    found = Images(tmp_path / "node", "token")
    DAMAGES[damage](first(tmp_path / "node", KINDS[kind]))
    args = FetchArgs(job=JOB, attempt=1, serial=SERIAL, ranks=(0,), tenant=TENANT, sources=(intact["store"].peer,))
    found.fetch(args)
    if (kind, damage) not in (("pack", "flipped"), ("pack", "cut"), ("pack", "empty")):  # seen when it is read
        found.store.get(name(SERIAL, job=JOB), tmp_path / "out")
        assert read(tmp_path / "out") == intact["read"]


@pytest.mark.parametrize("seed", seeds(40))
def test_any_damage_here_and_at_the_first_source(intact: dict[str, Any], tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    places = [tmp_path / "node", tmp_path / "other"]
    for place in places:
        shutil.copytree(intact["kept"], place)
        for _ in range(dice.randint(1, 3)):
            files = sorted(path for path in place.rglob("*") if path.is_file() and path.name not in ("lock", "turn"))
            damage = dice.choice(["missing", "empty", "cut", "flipped", "directory"])
            DAMAGES[damage](dice.choice(files))
    found, other = Images(places[0], "token"), Node(places[1])
    try:
        place = found.ready(TENANT, JOB, SERIAL, [0], [other.peer, intact["store"].peer])
    finally:
        other.close()
    assert read(place / "0") == intact["read"] and found.facts(JOB, SERIAL, 0) == FACTS


@pytest.mark.parametrize("kind", ["manifest", "index", "pack"])
def test_a_file_that_may_not_be_read_is_not_given_up(
    intact: dict[str, Any], tmp_path: Path, kind: str, failing: Callable[[Path, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shutil.copytree(intact["kept"], tmp_path / "node")
    victim = first(tmp_path / "node", KINDS[kind])
    with monkeypatch.context() as barred:
        failing(victim, errno.EACCES)
        barred.setattr(os, "access", lambda path, mode: path != victim)
        with pytest.raises(WorldError, match="is not available") as caught:
            Images(tmp_path / "node", "token").ready(TENANT, JOB, SERIAL, [0], [])
        assert not isinstance(caught.value, DamagedImage), "the remote store may have it again later"
    monkeypatch.undo()
    place = Images(tmp_path / "node", "token").ready(TENANT, JOB, SERIAL, [0], [])
    assert read(place / "0") == intact["read"], "and once that is done, it is used"
