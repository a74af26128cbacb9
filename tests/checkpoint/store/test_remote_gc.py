"""Garbage collection of a remote store: what is unneeded is removed, and nothing else, with failures and pushes in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

import pytest

from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import Erasable, FsspecRemote, ImageStore
from tidewright.checkpoint.store.remote_gc import FORGET_S, GRACE_S

from ...sizes import examples
from .builders import image, name, read
from .test_remote import SECRET, elsewhere, s3  # noqa: F401  (fixtures; s3 has mark.processes)

MakeRemote = Callable[[], Erasable]
pytestmark = pytest.mark.usefixtures("small_packs")


class Line:
    """A remote behind a line on which ``at`` calls get through, or something else is done before each of them."""

    def __init__(self, remote: Erasable, at: int = 10**9, before: Callable[[int], None] = lambda call: None) -> None:
        self._remote, self._at, self._before, self.calls = remote, at, before, 0

    def _pass(self) -> None:
        self.calls += 1
        self._before(self.calls)
        if self.calls > self._at:
            raise WorldError("the line is dead")

    def has(self, keys: Iterable[str]) -> set[str]:
        self._pass()
        return self._remote.has(keys)

    def list(self, prefix: str) -> list[str]:
        self._pass()
        return self._remote.list(prefix)

    def read(self, key: str) -> bytes:
        self._pass()
        return self._remote.read(key)

    def write(self, key: str, data: bytes) -> None:
        self._pass()
        self._remote.write(key, data)

    def remove(self, key: str) -> None:
        self._pass()
        self._remote.remove(key)


def objects(remote: Erasable) -> list[str]:
    return [key for kind in ("images", "packs") for key in remote.list(f"team/{kind}/")]


def comes_back(remote: Erasable, tmp_path: Path, job: int, source: Path) -> bool:
    """Whether a job's image can be had from there, whole."""
    there = ImageStore(tmp_path / uuid4().hex, secret=SECRET)
    there.pull(name(job=job), remote)
    there.get(name(job=job), tmp_path / (out := uuid4().hex))
    return read(tmp_path / out) == read(source)


def test_a_job_that_is_over_leaves_nothing(elsewhere: MakeRemote, tmp_path: Path) -> None:  # noqa: F811
    here, remote = ImageStore(tmp_path / "here", secret=SECRET), elsewhere()
    for job, pages in ((1, range(1, 300)), (11, range(200, 500))):
        here.put(name(job=job), image(tmp_path / str(job), pages))
        here.push(name(job=job), remote)
    assert here.drop_remote(remote, "team", 1, 1) == 1
    assert here.collect_remote(remote, 1000).packs == 0, "removed at once"
    assert here.collect_remote(remote, 1000 + GRACE_S).packs > 0
    assert comes_back(elsewhere(), tmp_path, 11, tmp_path / "11")
    assert here.drop_remote(remote, "team", 11, 1, rank=1) == 0 and here.drop_remote(remote, "team", 11, 1, rank=0) == 1
    for now in (10_000, 10_000 + GRACE_S, 10_000 + GRACE_S + FORGET_S):
        here.collect_remote(remote, now)
    assert objects(elsewhere()) == []


def test_what_another_cluster_has_there_stays(tmp_path: Path) -> None:
    remote = FsspecRemote(f"file://{tmp_path}/remote")
    ours, theirs = ImageStore(tmp_path / "a", secret=b"a"), ImageStore(tmp_path / "b", secret=b"b")
    theirs.put(name(), image(tmp_path / "in", range(1, 300)))
    theirs.push(name(), remote)
    ours.put(name(serial=2), image(tmp_path / "other", range(1, 300)))
    before = objects(remote)
    assert ours.drop_remote(remote, "team", 7, 9) == 0
    ours.collect_remote(remote, 0)
    ours.collect_remote(remote, 10 * GRACE_S)
    assert objects(remote) == before


def test_a_line_that_dies_anywhere_loses_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    here = ImageStore(tmp_path / "here", secret=SECRET)
    for job, pages in ((1, range(1, 120)), (2, range(60, 180))):
        here.put(name(job=job), image(tmp_path / str(job), pages))

    def whole(remote: Erasable) -> None:
        here.drop_remote(remote, "team", 1, 1)
        for now in (0, GRACE_S):
            here.collect_remote(remote, now)

    def fresh(at: int) -> FsspecRemote:
        remote = FsspecRemote(f"memory://{uuid4().hex}{at}")
        here.push(name(job=1), remote)
        here.push(name(job=2), remote)
        return remote

    whole(fresh(0))  # indexes are read once only
    whole(counted := Line(done := fresh(0)))
    for at in range(0, counted.calls, 3):
        remote = fresh(at)
        with pytest.raises(WorldError, match="the line is dead"):
            whole(Line(remote, at))
        whole(remote)
        here.collect_remote(remote, 2 * GRACE_S)
        assert objects(remote) == objects(done)
    assert comes_back(done, tmp_path, 2, tmp_path / "2")


def test_an_image_pushed_meanwhile_has_all_its_pages(tmp_path: Path) -> None:
    """Before each step of a push, a collection (and before one step, another one an hour later) that would remove the
    very packs that the push counts on."""
    here = ImageStore(tmp_path / "here", secret=SECRET)
    for job, pages in ((1, range(1, 100)), (2, range(1, 120))):
        here.put(name(job=job), image(tmp_path / str(job), pages))
    counted = Line(FsspecRemote(f"memory://{uuid4().hex}"))
    here.push(name(job=1), counted)
    for first in range(1, 14):
        for second in sorted(random.Random(first).sample(range(first, 14), min(examples(8), 14 - first))):
            remote = FsspecRemote(f"memory://{uuid4().hex}")
            here.push(name(job=1), remote)
            here.drop_remote(remote, "team", 1, 1)

            def meddle(call: int, remote: Erasable = remote, first: int = first, second: int = second) -> None:
                if call == first:
                    here.collect_remote(remote, 0)
                if call == second:
                    here.collect_remote(remote, GRACE_S)

            here.push(name(job=2), Line(remote, before=meddle))
            here.collect_remote(remote, 2 * GRACE_S)
            assert comes_back(remote, tmp_path, 2, tmp_path / "2"), (first, second)
