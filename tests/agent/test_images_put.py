"""Raw images on their way into a node's store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tidewright.agent.checkpointing.images import Images
from tidewright.base.errors import WorldError
from tidewright.checkpoint.store import StoreFull

JOB, TENANT = 7, "team"


def shoot(found: Images, serial: int, size: int = 400_000) -> None:
    raw = found.begin(JOB, serial) / "0"
    raw.mkdir()
    (raw / "pages-1.img").write_bytes(random.Random(serial).randbytes(size))
    found.note(JOB, serial, 0, {"serial": serial})


def test_what_is_there_is_not_taken_in_twice(tmp_path: Path) -> None:
    found = Images(tmp_path, "token")
    shoot(found, 1)
    assert len(found.put(TENANT, JOB, 1, [0])) == 1 and found.put(TENANT, JOB, 1, [0]) == []
    assert [entry.name.serial for entry in found.store.ls()] == [1]


def test_a_full_store_is_cleared_up_once(tmp_path: Path) -> None:
    size = Images(tmp_path / "like", "token")
    shoot(size, 2)
    size.put(TENANT, JOB, 2, [0])
    found = Images(tmp_path / "node", "token", quota_bytes=int(1.2 * size.store.stored_bytes()))
    shoot(found, 1)
    found.put(TENANT, JOB, 1, [0])
    found.store.drop(found.store.ls()[0].name)
    shoot(found, 2)
    assert len(found.put(TENANT, JOB, 2, [0])) == 1, "there was room once the dropped image's pages were gone"
    shoot(found, 9)
    with pytest.raises(StoreFull, match="image 9 of job 7, rank 0 does not fit"):
        found.put(TENANT, JOB, 9, [0])


def test_the_store_is_made_with_the_first_image(tmp_path: Path) -> None:
    found = Images(tmp_path, "token")
    found.sweep()
    found.finish()
    assert found.listed() == () and found.last_serial(JOB) == 0 and not (tmp_path / "store").exists()
    shoot(found, 1)
    assert found.listed() == ((JOB, 1, 0),)
    found.put(TENANT, JOB, 1, [0])
    assert Images(tmp_path, "token").listed() == ((JOB, 1, 0),)


def test_a_store_that_cannot_be_made_costs_no_raw_image(tmp_path: Path) -> None:
    found = Images(tmp_path, "token")
    shoot(found, 1)
    (tmp_path / "store").touch()
    with pytest.raises(WorldError, match="cannot be opened"):
        found.put(TENANT, JOB, 1, [0])
    (tmp_path / "store").unlink()
    assert found.listed() == ((JOB, 1, 0),) and len(found.put(TENANT, JOB, 1, [0])) == 1


def test_an_agent_that_cannot_read_its_store_does_not_say_that_it_has_no_images(tmp_path: Path) -> None:
    found = Images(tmp_path, "token")
    shoot(found, 1)
    found.put(TENANT, JOB, 1, [0])
    (tmp_path / "store" / "keys").rename(tmp_path / "keys")
    (tmp_path / "store" / "keys").symlink_to("keys")  # a loop
    with pytest.raises(WorldError, match="cannot be opened"):
        Images(tmp_path, "token")


def test_a_store_on_a_disk_that_is_not_there_is_no_empty_store(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "not mounted")
    with pytest.raises(WorldError, match="cannot be opened"):
        Images(tmp_path, "token")
