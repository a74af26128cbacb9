"""Full disks: which file system it is, how much is needed and what to do; and nothing half written stays."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_agent_images import FOUND, FULL
from tests.agent.test_images_damage import FACTS, Node
from tests.agent.test_images_ending import left
from tests.small_disk import small_disk_at
from tidewright.agent.checkpointing import images as images_module
from tidewright.agent.checkpointing.images import Images
from tidewright.agent.layout import AgentLayout
from tidewright.base.errors import WorldError
from tidewright.checkpoint.criu.driver import Criu
from tidewright.checkpoint.files import space
from tidewright.checkpoint.manifest import write_manifest
from tidewright.checkpoint.store import FsspecRemote, StoreFull
from tidewright.wire.agent import FetchArgs

JOB, TENANT, BIG = 7, "team", 10 << 20
SAYS = r"no room on the file system {}: .*{}.* needs .* are free; remove files there, end jobs whose images it holds"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    with small_disk_at(tmp_path / "small", 6) as place:
        yield place


def shoot(found: Images, size: int = BIG, serial: int = 1, rank: int = 0) -> None:
    raw = found.raw(JOB, serial) / str(rank)
    raw.mkdir(parents=True)
    (raw / "pages-1.img").write_bytes(random.Random(serial).randbytes(size))
    (raw / "a.img").write_bytes(b"small")
    write_manifest(raw)
    found.note(JOB, serial, rank, FACTS)


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "maker")
    yield made
    made.close()


def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free space is not checked beforehand: other writers take it meanwhile."""
    for place in (
        images_module,
        *(sys.modules[f"tidewright.checkpoint.store.{name}"] for name in ("restore_reader", "transfer")),
    ):
        monkeypatch.setattr(place, "require", lambda *args: None)


@pytest.mark.parametrize("looked", [True, False])
def test_a_copy_that_does_not_fit_leaves_nothing(
    maker: Node, small: Path, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    shoot(maker.images)
    if not looked:
        unlooked(monkeypatch)
    found = Images(small, "token")
    with pytest.raises(WorldError, match=SAYS.format(small, "a copy of image 1 of job 7, rank 0")) as caught:
        found.ready(TENANT, JOB, 1, [0], [maker.peer, maker.peer])
    assert str(caught.value).count("no room") == 1, "a second source changes nothing"
    assert not left(small)


@pytest.mark.parametrize("looked", [True, False])
def test_a_copy_into_a_full_store_leaves_nothing(
    maker: Node, small: Path, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    shoot(maker.images)
    maker.images.put(TENANT, JOB, 1, [0])
    if not looked:
        unlooked(monkeypatch)
    found = Images(small, "token")
    args = FetchArgs(job=JOB, attempt=1, serial=1, ranks=(0,), tenant=TENANT, sources=(maker.peer,))
    with pytest.raises(WorldError, match=SAYS.format(small, "image")):
        found.fetch(args)
    assert not left(small)


def test_an_image_that_does_not_fit_is_not_begun(small: Path) -> None:
    found = Images(small, "token")
    with pytest.raises(space.FileSystemFull, match=SAYS.format(small, "image 3 of job 7")) as caught:
        found.begin(JOB, 3, BIG)
    assert "needs 10.0MiB" in str(caught.value) and "of 6.0MiB are free" in str(caught.value)
    assert not left(small)


def test_a_store_and_a_remote_that_are_full_say_so(small: Path, tmp_path: Path) -> None:
    (small / "other").write_bytes(bytes(3 << 20))
    found = Images(small, "token")
    shoot(found, 2 << 20)
    with pytest.raises(
        StoreFull, match=f"no room on the file system {small}: an image needs more room in {small}/store/tmp"
    ):
        found.put(TENANT, JOB, 1, [0])
    assert found.has_raw(JOB, 1, 0), "what there is of it stays"
    assert not [path for path in left(small) if "work" not in path]
    rich = Images(tmp_path / "rich", "token", remote=FsspecRemote(f"file://{small}/far"))
    shoot(rich, 2 << 20)
    rich.put(TENANT, JOB, 1, [0])
    with pytest.raises(WorldError, match=f"no room on the file system {small}: a remote copy needs"):
        rich.push(TENANT, JOB, 1, [0])
    assert not list((small / "far").rglob("*.pack")) and not list((small / "far").glob("*/images/*"))


def test_the_words_of_a_full_disk_are_put_plainly(tmp_path: Path) -> None:
    found = Images(tmp_path / "node", "token")
    raw = WorldError(
        "rank 0: CRIU cannot save it: Error (criu/page-xfer.c:77): page-xfer: Unable to write: No space left on device"
    )
    plain = found.in_plain(raw, JOB, 3)
    assert ": image 3 of job 7 needs more room in" in str(plain) and "CRIU" not in str(plain)
    other = WorldError("rank 0: CRIU cannot save it: something else")
    assert found.in_plain(other, JOB, 3) is other


def test_what_a_killed_agent_left_of_copies_goes_when_the_next_starts(tmp_path: Path) -> None:
    found = Images(tmp_path / "node", "token")
    shoot(found, 5000, rank=0)
    shoot(found, 5000, serial=2)
    whole = found.listed()
    for name in (".1.new", "1", ".2.part"):  # halves of copies beside a whole one
        (found.raw(JOB, 1) / name).mkdir()
        (found.raw(JOB, 1) / name / "pages-1.img").write_bytes(b"half")
    (found.raw(JOB, 1) / "3.facts").write_text("{}")
    (found.raw(JOB, 4) / ".0.new").mkdir(parents=True)
    Images(tmp_path / "node", "token").sweep()
    assert sorted(path.name for path in found.raw(JOB, 1).iterdir()) == ["0", "0.facts"]
    assert not found.raw(JOB, 4).exists() and found.listed() == whole


@pytest.mark.parametrize("kind", ["raw_file", "store_read"])
def test_a_source_that_is_killed_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = Images(tmp_path / "maker", "token")
    shoot(made, 1 << 20)
    if kind == "store_read":
        made.put(TENANT, JOB, 1, [0])
        made.discard_raw(JOB, 1)
    served = []

    def break_off(self: Images, real: Callable[[Images, Any], Any], args: Any) -> Any:
        body = real(self, args)
        served.append(args)
        if body.size > 100_000:
            body.size += 10  # more is announced than comes: the connection breaks before it is there
        return body

    real = getattr(Images, kind)
    monkeypatch.setattr(Images, kind, lambda self, args: break_off(self, real, args))
    source = Node(tmp_path / "maker")
    found = Images(tmp_path / "node", "token")
    monkeypatch.setattr("tidewright.agent.peer_rpc.SILENCE_S", 0.5)
    try:
        with pytest.raises(WorldError, match="is not available"):
            found.ready(TENANT, JOB, 1, [0], [source.peer])
        assert served
    finally:
        source.close()
    assert not left(tmp_path / "node")


HOLD = "import os, sys, time; held = os.urandom(60 << 20); print('up', flush=True); time.sleep(600)"


@pytest.mark.processes
@pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}")
def test_a_rank_that_does_not_fit_runs_on_and_is_told_why(tmp_path: Path, small: Path) -> None:
    import asyncio

    from tests.agent.agent_bench import Bench

    bench = Bench(tmp_path / "s")
    bench.state.mkdir()
    AgentLayout(bench.state).images.symlink_to(small)
    bench.start("--backend", "cpu", "--slots", "1")

    async def body() -> None:
        bench.fabric.watch(lambda node: None, lambda _, report: bench.heard.append(report))
        await bench.launch(sys.executable, "-c", HOLD)
        await bench.logged("up")
        for verb in ("suspend", "checkpoint"):
            more = {"level": FULL} if verb == "suspend" else {}
            await bench.verb(verb, serial=1, **more)
            while not any(report.error and report.verb == verb for report in bench.heard):
                await asyncio.sleep(0.02)
            (error,) = {report.error for report in bench.heard if report.verb == verb and report.error}
            assert error.startswith(f"no room on the file system {small}: image 1 of job 1 needs 6")
            assert verb != "suspend" or (await bench.state_is("running")).no_room
        assert (await bench.state_is("running")).state == "running"
        assert not left(small)
        await bench.fabric.close()

    try:
        asyncio.run(body())
    finally:
        bench.clean()
