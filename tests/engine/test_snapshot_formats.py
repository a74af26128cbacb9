"""Snapshots of format 1 (a dict by job for each fact) open, and what follows is decided as it was then, to the byte.

``old/format1-N``: books of hostile worlds in which, taken together, every one of those facts says something, and their next
40 turns.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest

from tests.engine.records import each
from tidewright.base.errors import Bug, UsageError
from tidewright.drive.replay import replay
from tidewright.engine.engine import Engine
from tidewright.model.job_record import GROUPS
from tidewright.testing.swarm import Swarm

OLD = Path(__file__).parent / "old"
BOOKS = range(5)
ALWAYS = {"spec", "state"}
HOURS = {"rollback_free_us"}
"""Says nothing in worlds of a few seconds."""


def old(number: int, what: str) -> bytes:
    return zlib.decompress((OLD / f"format1-{number}.{what}").read_bytes())


@pytest.mark.parametrize("number", BOOKS)
def test_a_snapshot_of_format_1_opens_and_decides_as_it_would_have(number: int) -> None:
    engine = Engine.restore(old(number, "snapshot"))
    replay(old(number, "journal").split(b"\n"), engine=engine)
    again = Engine.restore(engine.snapshot())
    assert again.snapshot() == engine.snapshot()


def test_together_they_say_something_of_every_field() -> None:
    books = [Engine.restore(old(number, "snapshot")).book for number in BOOKS]
    for name in {field for fields in GROUPS.values() for field in fields} - ALWAYS - HOURS:
        assert any(each(book, name) for book in books), name


def test_what_a_snapshot_lacks_of_a_record_is_as_in_a_fresh_one() -> None:
    """A field added later."""
    swarm = Swarm(7)
    swarm.run(60)
    data = msgspec.msgpack.decode(swarm.engine.snapshot())
    for record in data["jobs"].values():
        record.pop("save_measured", None)
        record["from_a_later_version"] = 1
    book = Engine.restore(msgspec.msgpack.encode(data)).book
    assert not each(book, "save_measured") and book.jobs.keys() == swarm.engine.book.jobs.keys()


def test_another_format_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="snapshot format 3, expected 2"):
        Engine.restore(msgspec.msgpack.encode({"format": 3}))
    with pytest.raises(UsageError, match="not a snapshot"):
        Engine.restore(b"\xc1")


def test_a_snapshot_that_names_what_it_does_not_have_is_a_bug() -> None:
    swarm = Swarm(7)
    swarm.run(60)
    for name in ("holders", "reserved", "with_images", "ids"):
        data = msgspec.msgpack.decode(swarm.engine.snapshot())
        data[name] = [*data[name], 10**6]
        with pytest.raises(Bug):
            Engine.restore(msgspec.msgpack.encode(data))
