"""Snapshots and journals written before there were images open and replay: fields added since have defaults."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from tests.engine.records import each
from tidewright.drive.replay import replay
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings

OLD = Path(__file__).parent / "old"
"""Written by the version before: 100 turns of a hostile world under the settings of a live pool, and the book after 61."""


def _old(name: str) -> bytes:
    return zlib.decompress((OLD / f"before_images.{name}").read_bytes())


def test_an_older_snapshot_opens_and_the_rest_of_its_journal_replays() -> None:
    engine = Engine.restore(_old("snapshot"))
    book = engine.book
    assert book.specs and not each(book, "images") and not book.settings.checkpoints
    assert set(book.table.restore_kind[: book.table.n].tolist()) == {-1}
    assert book.world_failures.nodes_up == len(book.nodes) - len(book.node_down)
    replay(_old("journal").split(b"\n")[61:], engine=engine)


def test_an_older_journal_replays_to_the_same_deeds_from_its_beginning() -> None:
    settings = msgspec.json.decode((OLD / "before_images.settings.json").read_bytes(), type=EngineSettings)
    engine = replay(_old("journal").split(b"\n"), settings)
    assert engine.book.steps == 101
    assert Engine.restore(engine.snapshot()).snapshot() == engine.snapshot()
