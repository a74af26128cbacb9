"""No image outlives its job, wherever the job's end falls: while it is saved, stored, sent, copied, or brought back."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_images_damage import FACTS, Node
from tests.checkpoint.store.builders import image
from tidewright.agent.checkpointing import images as images_module
from tidewright.agent.checkpointing.images import Images
from tidewright.base.errors import TideError
from tidewright.checkpoint.manifest import write_manifest
from tidewright.checkpoint.store import FsspecRemote, ImageStore
from tidewright.checkpoint.store.put_worker import PutOrder, put_all
from tidewright.wire.agent import FetchArgs

TENANT = "team"


@pytest.fixture
def dawdling(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    """Images are taken in by a thread in the place of a process, and everything takes its time."""
    dice = random.Random(0)

    def put(order: PutOrder, started: Callable[[Any], None] = lambda stop: None) -> Any:
        stopped = threading.Event()
        started(stopped.set)
        time.sleep(dice.random() * 0.01)
        if stopped.is_set():
            return [], images_module.WorldError("the process that adds images to the store ended with code -9")
        answer = put_all(order)
        time.sleep(dice.random() * 0.01)
        return list(answer.made), images_module.WorldError(answer.error) if answer.error else None

    monkeypatch.setattr(images_module, "put_in_worker", put)
    monkeypatch.setattr("tidewright.agent.checkpointing.image_leases.GRACE_S", 0.0)
    for method in ("write", "read", "has"):
        real = getattr(FsspecRemote, method)

        def slow(self: Any, *args: Any, real: Any = real) -> Any:
            time.sleep(dice.random() * 0.004)
            return real(self, *args)

        monkeypatch.setattr(FsspecRemote, method, slow)
    yield dice


def shoot(found: Images, job: int, serial: int, dice: random.Random) -> None:
    raw = found.begin(job, serial) / "0"
    image(raw, range(1 + 100 * job + serial, 20 + 100 * job + serial))
    time.sleep(dice.random() * 0.005)
    write_manifest(raw)
    found.note(job, serial, 0, FACTS)


def life(found: Images, job: int, other: Node, copies: Images, dice: random.Random) -> None:
    """A job's images, one after the other, until the job's end makes one of the steps fail."""
    for serial in (1, 2, 3):
        with contextlib.suppress(TideError, OSError):
            shoot(found, job, serial, dice)
            found.put(TENANT, job, serial, [0])
            found.push(TENANT, job, serial, [0])
            args = FetchArgs(job=job, attempt=1, serial=serial, ranks=(0,), tenant=TENANT, sources=(other.peer,))
            copies.fetch(args)
            copies.ready(TENANT, job, serial, [0], [other.peer])
            found.keep_newest(TENANT, job, serial)


def left(root: Path) -> list[str]:
    """Everything of any image below an agent's images."""
    work = [str(path) for path in (root / "work").iterdir()]
    return (
        work
        + [str(path) for path in root.rglob("*") if path.is_file() and path.suffix in (".pack", ".idx")]
        + [str(path) for path in root.glob("store/tenants/*/images/*")]
        + [str(path) for path in root.glob("store/tmp/*")]
    )


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 12))])
def test_a_storm_of_ends(tmp_path: Path, dawdling: random.Random, seed: int) -> None:
    dawdling.seed(seed)
    url = f"file://{tmp_path}/remote"
    maker, copies = Node(tmp_path / "maker", url), Images(tmp_path / "copies", "token")
    jobs = range(1, 5)
    try:
        with ThreadPoolExecutor(8) as pool:
            lives = [pool.submit(life, maker.images, job, maker, copies, random.Random(seed + job)) for job in jobs]
            ends = []
            for job in jobs:  # some are ended while their life goes on, as a cancel does, and copies a little later
                time.sleep(dawdling.random() * 0.05)
                ends.append(pool.submit(maker.images.drop_job, job))
                ends.append(pool.submit(copies.drop_job, job))
            for one in (*lives, *ends):
                one.result(30)
    finally:
        maker.close()
    for found in (maker.images, copies):
        for job in jobs:  # an image begun after its job's end is dropped by the agent that learns of the end
            if found.serials(job) or any(entry.name.job == job for entry in found.store.ls()):
                found.drop_job(job)
        found.finish()
    assert not left(tmp_path / "maker") and not left(tmp_path / "copies")
    assert not list((tmp_path / "remote").glob("*/images/*"))
    assert maker.images.pending_deletes is not None and not list((tmp_path / "maker" / "graves").glob("*/*"))


@pytest.mark.parametrize("step", ["put", "push", "fetch", "ready"])
def test_an_end_in_the_middle_of_each_step_leaves_nothing(
    tmp_path: Path, dawdling: random.Random, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The job ends at the very moment when all is done but said."""
    maker, copies = Node(tmp_path / "maker", f"file://{tmp_path}/remote"), Images(tmp_path / "copies", "token")
    busy = copies if step in ("fetch", "ready") else maker.images
    ended = []

    def then_end(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            found = real(*args, **more)
            ended.append(busy.drop_job(7))
            return found

        return call

    shoot(maker.images, 7, 3, dawdling)
    if step != "put":
        maker.images.put(TENANT, 7, 3, [0])
    if step == "put":
        monkeypatch.setattr(images_module, "put_in_worker", then_end(images_module.put_in_worker))
    elif step == "push":
        monkeypatch.setattr(ImageStore, "push", then_end(ImageStore.push))
    elif step == "fetch":
        monkeypatch.setattr(ImageStore, "pull", then_end(ImageStore.pull))
    else:
        monkeypatch.setattr(copies, "_copy_raw", then_end(copies._copy_raw))
    args = FetchArgs(job=7, attempt=1, serial=3, ranks=(0,), tenant=TENANT, sources=(maker.peer,))
    operations: dict[str, Callable[[], object]] = {
        "put": lambda: maker.images.put(TENANT, 7, 3, [0]),
        "push": lambda: maker.images.push(TENANT, 7, 3, [0]),
        "fetch": lambda: copies.fetch(args),
        "ready": lambda: copies.ready(TENANT, 7, 3, [0], [maker.peer]),
    }
    try:
        with pytest.raises(TideError, match="not needed any more"):
            operations[step]()
        assert len(ended) == 1
    finally:
        maker.close()
    busy.finish()
    assert not left(busy.store.root.parent)
    assert not list((tmp_path / "remote").glob("*/images/*"))
    monkeypatch.undo()
    if step in ("put", "push"):  # the next image of a job that starts over is not taken for one of those
        shoot(maker.images, 7, 4, dawdling)
        assert len(maker.images.put(TENANT, 7, 4, [0])) == 1


def test_an_agent_killed_while_it_sends_takes_back_what_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = FsspecRemote(f"file://{tmp_path}/remote")
    found = Images(tmp_path / "node", "token", remote=remote)
    shoot(found, 7, 3, random.Random(0))
    found.put(TENANT, 7, 3, [0])
    real = ImageStore.push

    def killed(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt  # whatever was to come does not

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ImageStore, "push", killed)
        found.push(TENANT, 7, 3, [0])
    assert list((tmp_path / "remote").glob("*/images/*"))
    shutil.rmtree(tmp_path / "node" / "store" / "tenants" / TENANT / "images")  # it was dropped, before that was noted
    again = Images(tmp_path / "node", "token", remote=remote)
    again.sweep()
    again.finish()
    assert not list((tmp_path / "remote").glob("*/images/*"))
    assert not list((tmp_path / "node" / "graves").glob("*/*"))


def test_images_that_a_job_made_after_it_started_over_outlive_the_drop_of_those_before(
    tmp_path: Path, dawdling: random.Random
) -> None:
    """The drop waits its turn behind slow stores; a job may be suspended into a new image by then."""
    found = Images(tmp_path / "node", "token")
    for serial in (1, 2):
        shoot(found, 1, serial, dawdling)
    found.put(TENANT, 1, 1, [0])
    with found._in_flight.image(1, 3):  # one that is fetched: there is nothing of it here yet
        last = found.last_serial(1)
    assert last == 3 and found.last_serial(2) == 0
    shoot(found, 1, 4, dawdling)
    with found._in_flight.image(1, 4):
        found.drop_job(1, last)
        assert not found._in_flight.unneeded(1, 4)
    assert found.serials(1) == {4} and found.has_raw(1, 4, 0) and not found.store.names()
