"""A journal written by an older version that decided otherwise: nothing that was done is undone or done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.drive.driver import EngineDriver
from tidewright.drive.record import decode
from tidewright.engine import events as ev
from tidewright.engine import reports, termination
from tidewright.engine.commands import Ended, Launch
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.live.api.event_stream import EventStream
from tidewright.live.journal.archive import row_of
from tidewright.live.journal.doctor import doctor
from tidewright.live.journal.recover import recover
from tidewright.live.journal.store import Journal
from tidewright.model.job import JobSpec, State
from tidewright.model.node import NodeSpec

from .fakes import FirstFit

SECOND = 1_000_000


class Old:
    """The older version at work on a state directory."""

    def __init__(self, state: Path, settings: EngineSettings | None = None) -> None:
        self.journal = Journal(state)
        self.driver = recover(self.journal, settings or live_settings(), EventStream())
        self.now = self.driver.engine.book.now

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    def turn(self, *events: ev.Event, after_s: float = 0.001) -> None:
        self.now += round(after_s * SECOND)
        for command in self.driver.step(self.now, events):
            if isinstance(command, Ended):
                self.journal.end(row_of(self.driver.turns, command))
        self.journal.commit()
        if self.engine.book.planning:
            self.turn(ev.PlanReady(FirstFit().plan(self.engine.view())))

    def begin(self, *specs: JobSpec) -> None:
        self.turn(ev.NodeUp(NodeSpec(name="n0", kind="cpu", devices=2), "boot"))
        for number, spec in enumerate(specs):
            self.turn(ev.Submit(spec, f"s{number}"))

    def crash(self) -> None:
        """Without a snapshot of the end: the tail has to be replayed."""
        self.journal.close()


def up(state: Path, settings: EngineSettings | None = None) -> tuple[Journal, EngineDriver]:
    journal = Journal(state)
    return journal, recover(journal, settings or live_settings(), EventStream())


def test_a_job_that_ended_then_stays_ended_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then, exit code 9 was success; now it is a failure worth a retry."""
    real = reports._outcome

    def outcome(book, job, state, level, event):  # type: ignore[no-untyped-def]
        changed = ev.Exited(event.job, event.attempt, 0) if event.code == 9 else event
        real(book, job, state, level, changed)

    old = Old(tmp_path)
    monkeypatch.setattr(reports, "_outcome", outcome)
    old.begin(JobSpec(command=("x",), retries=3), JobSpec(command=("y",), devices=2, ranks=2))
    old.turn(ev.Started(1, 1))
    old.turn(ev.Exited(1, 1, 9))
    assert old.engine.book.state(2) is State.STARTING
    old.turn(ev.Started(2, 1))
    old.crash()
    monkeypatch.undo()
    journal, driver = up(tmp_path)
    book = driver.engine.book
    assert list(book.specs) == [2] and book.state(2) is State.RUNNING
    assert journal.archive.count() == 1
    assert any("decided otherwise" in notice and "tide doctor" in notice for notice in journal.notices)
    journal.close()
    assert any("was adopted" in line for line in doctor(tmp_path).lines)
    journal, driver = up(tmp_path)
    assert journal.notices == [] and list(driver.engine.book.specs) == [2], "the same turns were replayed again"
    journal.close()


def test_ranks_that_were_launched_then_are_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then, a failed job was tried again at once; now it is after a pause."""
    old = Old(tmp_path)
    monkeypatch.setattr(termination, "pause", lambda book, tries: 0)
    old.begin(JobSpec(command=("x",), retries=3), JobSpec(command=("y",)))
    old.turn(ev.Started(1, 1), ev.Started(2, 1))
    old.turn(ev.Exited(1, 1, 1))
    assert (old.engine.book.state(1), old.engine.book.table.attempt[0]) == (State.STARTING, 2)
    old.turn(ev.Started(1, 2))
    held = old.engine.book.allocations[1]
    old.crash()
    monkeypatch.undo()
    journal, driver = up(tmp_path)
    book = driver.engine.book
    assert book.state(1) is State.RUNNING and book.allocations[1] == held
    assert (book.table.attempt[book.table.row[1]], book.state(2)) == (2, State.RUNNING)
    assert len(journal.notices) == 1
    driver.step(book.now + SECOND, [ev.Exited(1, 2, 0), ev.Exited(2, 1, 0)])
    assert not book.specs
    journal.close()


def test_what_only_this_version_would_have_launched_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then, a failed job rested for an hour; now for a second, and by the record's time it would have run."""
    old = Old(tmp_path)
    monkeypatch.setattr(termination, "pause", lambda book, tries: 3600 * SECOND)
    old.begin(JobSpec(command=("x",), retries=3))
    old.turn(ev.Started(1, 1))
    old.turn(ev.Exited(1, 1, 1))
    old.turn(ev.Tick(), after_s=5)
    old.turn(ev.Submit(JobSpec(command=("z",)), "late"))
    old.crash()
    monkeypatch.undo()
    journal, driver = up(tmp_path)
    book = driver.engine.book
    assert 1 in book.specs and book.state(1) in (State.HELD, State.QUEUED) and 1 not in book.allocations
    assert book.state(2) is State.STARTING
    journal.close()


def test_settings_hold_from_the_start_that_brought_them(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.begin(JobSpec(command=("x",), retries=2))
    old.turn(ev.Started(1, 1))
    old.crash()
    new = live_settings(backoff_us=7 * SECOND)
    journal, driver = up(tmp_path, new)
    assert any("in force after turn" in notice for notice in journal.notices)
    driver.step(driver.engine.book.now + SECOND, [ev.Exited(1, 1, 1)])
    assert driver.engine.due() == driver.engine.book.now + 7 * SECOND
    journal.commit()
    bodies = [decode(body) for _, body in journal.bodies(0)]
    journal.close()
    journal, driver = up(tmp_path, new)
    assert journal.notices == [] and driver.engine.settings == new
    journal._db.execute("DELETE FROM snapshots")
    journal.close()
    journal, driver = up(tmp_path, new)
    assert journal.notices == [], "the whole journal, replayed under the settings of each time, says the same"
    assert driver.turns == len(bodies) and any(isinstance(one, Launch) for one in bodies[-1].commands) is False
    journal.close()
