"""A start that dies between noting changed settings and the snapshot that has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.engine import events as ev
from tidewright.engine.settings import EngineSettings
from tidewright.live.api.event_stream import EventStream
from tidewright.live.journal.recover import recover
from tidewright.live.journal.store import Journal
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec
from tidewright.model.rate import RateSettings

NODES = (
    ev.NodeUp(NodeSpec(name="n", kind="a", devices=8), "1"),
    ev.NodeUp(NodeSpec(name="m", kind="b", devices=8), "1"),
)
CHANGED = EngineSettings(rates=RateSettings(kinds={"a": 1.0, "b": 3.0}))


def test_changed_settings_are_in_force_after_a_start_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    recover(journal, EngineSettings(), EventStream()).step(0, [*NODES, ev.Submit(JobSpec(command=("x",)))])
    journal.commit()
    journal.close()
    journal = Journal(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="died here"):
        patch.setattr(Journal, "snapshot", lambda *_: (_ for _ in ()).throw(OSError("died here")))
        recover(journal, CHANGED, EventStream())
    journal.close()
    for _ in range(2):
        journal = Journal(tmp_path)
        driver = recover(journal, CHANGED, EventStream())
        assert driver.engine.settings == CHANGED and not journal.notices
        assert {record.reference for record in driver.engine.book.jobs.values()} == {"b"}
        driver.step(driver.engine.book.now + 1, [ev.Submit(JobSpec(command=("x",)))])
        journal.commit()
        journal.close()
