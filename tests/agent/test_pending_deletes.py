"""Remote copies of dropped images: removed in the end, through outages and deaths, and never those of later images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.agent.checkpointing.images import KEPT, Images
from tidewright.agent.checkpointing.in_flight import ImageNotNeeded
from tidewright.agent.checkpointing.remote_gc import SWEEP_S
from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import FsspecRemote
from tidewright.checkpoint.store.remote_gc import FORGET_S, GRACE_S

JOB, TENANT = 7, "team"


def images(tmp_path: Path) -> Images:
    """The same agent's images, as it finds them at each start."""
    return Images(tmp_path / "images", "token", remote=FsspecRemote(f"file://{tmp_path}/remote"))


def make(found: Images, serial: int, push: bool = True) -> None:
    raw = found.begin(JOB, serial) / "0"
    raw.mkdir()
    (raw / "pages-1.img").write_bytes(serial.to_bytes(4, "little") * 40_000)
    found.note(JOB, serial, 0, {})
    found.put(TENANT, JOB, serial, [0])
    if push:
        found.push(TENANT, JOB, serial, [0])


def there(tmp_path: Path, kind: str = "images") -> list[str]:
    return sorted(path.name for path in (tmp_path / "remote" / TENANT / kind).glob("*"))


def test_the_end_of_a_job_and_newer_images_empty_the_remote_store(tmp_path: Path) -> None:
    found = images(tmp_path)
    for serial in range(1, KEPT + 2):
        make(found, serial)
    found.keep_newest(TENANT, JOB, KEPT + 1)
    assert found.pending_deletes is not None
    now = 0.0
    found.pending_deletes._clock = lambda: now
    found.pending_deletes.run()
    assert there(tmp_path) == [f"{JOB}.{serial}.0" for serial in range(2, KEPT + 2)]
    found.drop_job(JOB)
    for now in (1000.0 + SWEEP_S, 1000.0 + SWEEP_S + GRACE_S, 9000.0 + GRACE_S + FORGET_S):  # noqa: B007
        found.pending_deletes._swept_at = 0.0
        found.pending_deletes.run()
    assert there(tmp_path) == there(tmp_path, "packs") == [] and not found.pending_deletes.waiting()


def test_parts_of_gang_images_that_failed_elsewhere_displace_no_whole_one(tmp_path: Path) -> None:
    found = images(tmp_path)
    for serial in (1, 2, 3, 4):
        make(found, serial, push=False)
    found.keep_newest(TENANT, JOB, 3, previous=1)
    assert [serial for _, serial, _ in found.listed()] == [1, 3, 4]
    found.keep_newest(TENANT, JOB, 4, previous=4)  # ordered for a later one, which is not here yet
    assert [serial for _, serial, _ in found.listed()] == [3, 4]


def test_where_the_last_image_that_counts_is_not_here_the_one_before_it_stays(tmp_path: Path) -> None:
    """The copy of that one failed; should its node die, the job goes back to this one."""
    found = images(tmp_path)
    for serial in (1, 3):
        make(found, serial, push=False)
    found.keep_newest(TENANT, JOB, 3, previous=2)
    assert [serial for _, serial, _ in found.listed()] == [1, 3]


def test_an_outage_and_a_death_forget_no_removal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = images(tmp_path)
    make(found, 1)
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").touch()  # whatever is asked for below it fails
    found.drop_job(JOB)
    assert found.pending_deletes is not None
    for _ in range(3):
        found.pending_deletes.run()
    assert caplog.text.count("tried again") == 1 and (TENANT, f"{JOB}.1") in found.pending_deletes.waiting()
    (tmp_path / "remote").unlink()
    (tmp_path / "away").rename(tmp_path / "remote")
    again = images(tmp_path)
    assert again.pending_deletes is not None and there(tmp_path)
    again.pending_deletes.run()
    assert not there(tmp_path) and not again.pending_deletes.waiting()


def test_images_made_after_a_job_started_over_are_spared(tmp_path: Path) -> None:
    found = images(tmp_path)
    make(found, 1)
    found.drop_job(JOB)
    make(found, 2)
    assert found.pending_deletes is not None
    found.pending_deletes.run()
    assert there(tmp_path) == [f"{JOB}.2.0"]


def test_an_image_that_is_dropped_while_it_is_pushed_goes_as_well(tmp_path: Path) -> None:
    found = images(tmp_path)
    make(found, 1, push=False)
    push, deletes = found.store.push, found.pending_deletes
    assert deletes is not None

    def slow(*args: object) -> object:
        moved = push(*args)  # type: ignore[arg-type]
        found.drop_job(JOB)
        deletes.run()
        assert there(tmp_path) == []
        (tmp_path / "remote" / TENANT / "images" / f"{JOB}.1.0").write_bytes(late)
        return moved

    found.store.push(next(iter(found._names())), found.remote)  # type: ignore[arg-type]
    late = (tmp_path / "remote" / TENANT / "images" / f"{JOB}.1.0").read_bytes()
    found.store.push = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(ImageNotNeeded):
        found.push(TENANT, JOB, 1, [0])
    deletes.run()
    assert there(tmp_path) == []


@pytest.mark.parametrize("dropped", [False, True])
def test_a_transfer_that_failed_leaves_no_note(tmp_path: Path, dropped: bool) -> None:
    found = images(tmp_path)
    make(found, 1, push=False)
    push, deletes = found.store.push, found.pending_deletes
    assert deletes is not None

    def failing(*args: object) -> object:
        push(*args)  # type: ignore[arg-type]
        if dropped:
            found.drop_job(JOB)
            deletes.run()
        raise WorldError("the remote store does not answer")

    found.store.push = failing  # type: ignore[method-assign, assignment]
    with pytest.raises((WorldError, ImageNotNeeded)):
        found.push(TENANT, JOB, 1, [0])
    assert not list((tmp_path / "images" / "graves").glob("*/.*"))
    assert [name for _, name in deletes.waiting()] == ([f"{JOB}.1.0"] if dropped else [])
