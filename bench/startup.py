"""Start-up from a long journal: snapshot plus tail. Bar: 10,000,000 turns in under 2 s.

Run: python bench/startup.py [turns]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from facts import keep
from tidewright.drive.driver import EngineDriver
from tidewright.drive.record import StepRecord, chain, encode
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.live.api.event_stream import EventStream
from tidewright.live.controller.loop import SNAPSHOT_EVERY
from tidewright.live.journal.recover import recover
from tidewright.live.journal.store import MARK, Journal
from tidewright.live.journal.watermark import Watermark, WatermarkFile
from tidewright.model.job import JobSpec

BAR_S, JOBS, TAIL = 2.0, 7_000, SNAPSHOT_EVERY


def _filler(journal: Journal, engine: Engine, turns: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Turns in which only time passes, as large as an ordinary turn's record; stepped where they count."""
    digest, turn = journal.hash, journal.turn
    padding = [ev.NodeDrain(name="nobody-" + "x" * 180, on=False)]
    while turn < turns:
        turn += 1
        engine.book.revision += 1
        body = encode(StepRecord(turn, engine.book.now, padding, []))
        digest = chain(digest, body)
        yield turn, body, digest
    journal.turn, journal.hash, journal.durable = turn, digest, turn


def build(state: Path, turns: int) -> None:
    """A journal of ``turns`` turns: a live book of ``JOBS`` jobs, filler, a snapshot, and a tail of real turns."""
    journal = Journal(state)
    driver = EngineDriver(Engine(live_settings()), journal)
    for number in range(JOBS):
        driver.step(number, [ev.Submit(JobSpec(command=("x",), name=f"job-{number}"), f"op-{number}")])
    journal.commit()
    journal._db.execute("PRAGMA synchronous=OFF")
    journal._db.execute("BEGIN")
    journal._db.executemany("INSERT INTO turns VALUES (?, ?, ?)", _filler(journal, driver.engine, turns - TAIL))
    journal._db.execute("COMMIT")
    journal.snapshot(driver.engine.snapshot())
    driver.turns = journal.turn
    for number in range(TAIL):
        driver.step(driver.engine.book.now + 1, [ev.Submit(JobSpec(command=("y",)), f"late-{number}")])
    journal.commit()
    point = (journal.turn, journal.hash)
    journal.close()
    WatermarkFile(state / MARK, Watermark(1, *point, *point)).reset(Watermark(2, *point, *point))


def measure(turns: int) -> dict[str, float]:
    """Seconds from opening the journal to a book that could take the next turn."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        build(state, turns)
        began = time.monotonic()
        journal = Journal(state)
        opened = time.monotonic()
        driver = recover(journal, live_settings(), EventStream())
        took = time.monotonic() - began
        assert driver.turns == turns and len(driver.engine.book.specs) == JOBS + TAIL
        size = (state / "journal.db").stat().st_size
        journal.close()
    return {"startup_s": took, "verify_s": opened - began, "turns": turns, "bytes": size, "bar_s": BAR_S}


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
    print(f"start-up from {found['turns']:,.0f} turns: {found['startup_s']:.2f} s (bar {BAR_S} s)")
    print(f"kept in {keep('startup', found)}")
