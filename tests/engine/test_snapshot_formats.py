"""Snapshots of format 1 (a dict by job for each fact) and 2 (sentences where now are causes) open, and what follows is decided
as it was then.

``old/format1-N``, ``old/format2-N``: books of hostile worlds in which, taken together, every one of those facts says something,
and their next 40 turns.
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
from tidewright.model.cause import Code
from tidewright.model.job_record import GROUPS, LevelCap
from tidewright.plan.render import remedy, render
from tidewright.testing.swarm import Swarm

OLD = Path(__file__).parent / "old"
BOOKS = [f"format1-{number}" for number in range(5)]
OF_SENTENCES = [f"format2-{number}" for number in range(4)]
ALWAYS = {"spec", "state"}
HOURS = {"rollback_free_us"}
"""Says nothing in worlds of a few seconds."""
LATER = {"runtime_job", "runtime_clients", "reference", "phase_at", "frozen_memory", "start_forecast", "stop_measured",
    "restore_measured", "array_dependencies",
}  # fmt: skip
"""Fields that these formats do not have."""


def old(name: str, what: str) -> bytes:
    return zlib.decompress((OLD / f"{name}.{what}").read_bytes())


@pytest.mark.parametrize("name", [*BOOKS, *OF_SENTENCES])
def test_an_older_snapshot_opens_and_decides_as_it_would_have(name: str) -> None:
    engine = Engine.restore(old(name, "snapshot"))
    replay(old(name, "journal").split(b"\n"), engine=engine)
    again = Engine.restore(engine.snapshot())
    assert again.snapshot() == engine.snapshot()


@pytest.mark.parametrize(("names", "unsaid"), [(BOOKS, set()), (OF_SENTENCES, {"held_in_place"})])
def test_together_they_say_something_of_every_field(names: list[str], unsaid: set[str]) -> None:
    books = [Engine.restore(old(name, "snapshot")).book for name in names]
    for name in {field for fields in GROUPS.values() for field in fields} - ALWAYS - HOURS - LATER - unsaid:
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
    with pytest.raises(UsageError, match="snapshot format 6, expected 5"):
        Engine.restore(msgspec.msgpack.encode({"format": 6}))
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


def test_sentences_of_a_book_are_kept_as_the_text_that_they_were() -> None:
    """Of histories, level caps, answers, cordons and blocked jobs."""
    plain = msgspec.msgpack.decode(Engine.restore(old("format2-0", "snapshot")).snapshot())
    plain["format"] = 2
    plain["array_queue"] = {name: list(array.get("waiting", ())) for name, array in plain.pop("arrays").items()}
    job, record = next((job, record) for job, record in plain["jobs"].items() if record["history"])
    record["history"] = [[5, "QUEUED", "admitted"]]
    record["level_cap"], record["hold_retry"] = {"level": 1, "why": "it forks"}, None
    plain["answers"] = {
        "a": {"op_id": "a", "error": "no job 9", "remedy": "list jobs", "kind": "notfound", "warning": "slow"}
    }
    plain["outages"]["cordoned"] = {0: {"why": "refused 3 launches", "until": 7}}
    plain["blocked"] = {job: {"job": job, "reason": "NoCapacity", "text": "needs 3 devices"}}
    book = Engine.restore(msgspec.msgpack.encode(plain)).book
    assert book.jobs[job].history == [(5, "QUEUED", Code.TEXT("admitted"))]
    assert book.jobs[job].level_cap == LevelCap(1, Code.TEXT("it forks"))
    answer = book.answers["a"]
    assert (answer.error, answer.warning) == (Code.TEXT("no job 9", "list jobs"), Code.TEXT("slow"))
    assert (render(answer.error), remedy(answer.error)) == ("no job 9", "list jobs")
    assert book.outages.cordoned[0].why == Code.TEXT("refused 3 launches")
    assert book.blocked[job].limit(0) == Code.TEXT("needs 3 devices")
