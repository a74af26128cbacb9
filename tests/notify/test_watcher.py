"""What is looked at, how often, and what is filed: against a controller that answers as it is set."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.notify.test_news import T0, reply
from tidewright.base.errors import NotFound, Unreachable, UsageError
from tidewright.base.units import HOUR, MINUTE
from tidewright.model.notify import Notify
from tidewright.notify import watcher as module
from tidewright.notify.outbox import Outbox
from tidewright.notify.watcher import EventReader, Watcher
from tidewright.wire.answers import EtaView
from tidewright.wire.api import FINAL_STATES, JobEvent
from tidewright.wire.calls.notify import NotifyingReply, NotifyReply
from tidewright.wire.job_parts import TimeInterval


class Answers:
    """A client whose controller holds ``replies``."""

    def __init__(self) -> None:
        self.replies: dict[int, NotifyReply] = {}
        self.asked: list[tuple[str, int]] = []
        self.stream: list[JobEvent] = []

    def notifying(self, after: int | None) -> NotifyingReply:
        self.asked.append(("notifying", -1 if after is None else after))
        live = tuple(job for job, one in self.replies.items() if one.job.state not in FINAL_STATES)
        ended = tuple(job for job, one in self.replies.items() if one.job.state in FINAL_STATES and job > (after or 0))
        return NotifyingReply(live=live, ended=ended, newest=max(self.replies, default=0))

    def notify(self, job: int) -> NotifyReply:
        self.asked.append(("notify", job))
        if job not in self.replies:
            raise NotFound(f"no job {job}", "")
        return self.replies[job]

    def eta(self, job: int) -> EtaView:
        self.asked.append(("eta", job))
        late = TimeInterval(T0 + HOUR, T0 + HOUR, T0 + HOUR)
        return EtaView(
            job=job, name="train", state="queued", now=T0, starts=late, ends=TimeInterval(*(T0 + 2 * HOUR,) * 3)
        )

    def events(self, last: str, over: Any = None) -> Any:
        yield from self.stream
        raise Unreachable("gone", "")


def watching(tmp_path: Path, *jobs: NotifyReply) -> tuple[Watcher, Answers, Outbox, list[int]]:
    answers, box, now = Answers(), Outbox(tmp_path), [T0]
    answers.replies = {one.job.id: one for one in jobs}
    client: Any = answers
    return Watcher(box, lambda: client, lambda: now[0]), answers, box, now


def filed(box: Outbox) -> list[tuple[int, str]]:
    return list(box._db.execute("select job, kind from message order by created, rowid"))


def test_jobs_are_looked_at_in_turn_and_no_more_than_so_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROMISES", 3)
    monkeypatch.setattr(module, "FORECASTS", 2)
    jobs = [reply(("breach", "forecast"), id=job, state="queued") for job in range(1, 6)]
    watcher, answers, _, _ = watching(tmp_path, *jobs)
    watcher.catch_up()
    for looked, forecast in (([1, 2, 3], [1, 2]), ([4, 5, 1], [3, 4]), ([2, 3, 4], [5, 1])):
        answers.asked.clear()
        watcher.look_at_promises()
        assert [job for what, job in answers.asked if what == "eta"] == forecast
        assert [job for what, job in answers.asked if what == "notify"][:3] == looked


def test_a_forecast_breach_is_said_once_and_a_breach_without_any_event(tmp_path: Path) -> None:
    waits = reply(("breach", "forecast"), state="queued", target=0.95)
    watcher, answers, box, now = watching(tmp_path, waits)
    watcher.catch_up()
    watcher.look_at_promises()
    watcher.look_at_promises()
    assert filed(box) == [(7, "forecast")]
    now[0] += 2 * MINUTE
    watcher.look_at_promises()
    assert filed(box) == [(7, "forecast"), (7, "breach")]
    answers.replies.clear()
    watcher.look_at_promises()
    answers.asked.clear()
    watcher.look_at_promises()
    assert not answers.asked, "a job that is gone is not asked for again"


def test_an_array_is_one_to_its_user(tmp_path: Path) -> None:
    notify = Notify(("begin", "end", "fail"), webhooks=("https://x.org/hook",))
    members = [
        replace(reply(id=job, name=f"a[{job}]", start=T0 + 1), notify=notify, array="1", size=3) for job in (1, 2, 3)
    ]
    watcher, answers, box, _ = watching(tmp_path, *members)
    watcher.catch_up()
    for job, state in ((1, "completed"), (3, "failed"), (2, "completed")):
        answers.replies[job] = replace(members[job - 1], job=replace(members[job - 1].job, state=state, end=T0 + 2))
        watcher.look(job)
    assert [kind for _, kind in filed(box)] == ["begin", "fail"]
    (body,) = box._db.execute("select body from message where kind = 'fail'").fetchone()
    assert json.loads(body)["text"] == "array 1 (a, 3 members) has ended, with failures"


def test_events_that_came_before_the_end_are_dealt_with_first(tmp_path: Path) -> None:
    answers = Answers()
    answers.stream = [
        JobEvent(seq=f"1.{at}", at=T0, job=at, name="j", state="queued", what="queued") for at in range(2500)
    ]
    client: Any = answers
    reader = EventReader(client, "0.0", threading.Event())
    found: list[JobEvent] = []
    while len(found) < 2500:
        reader.check()
        found += reader.some(1.0)
    with pytest.raises(Unreachable):
        while True:
            reader.check()
            reader.some(0.01)
    assert [event.job for event in found] == list(range(2500))


def test_jobs_that_came_and_ended_unseen_are_found_by_their_ids(tmp_path: Path) -> None:
    watcher, answers, box, _ = watching(tmp_path, reply(("end",), id=1))
    watcher.catch_up()
    assert box.newest == 1
    answers.replies |= {job: reply(("end",), id=job, state="completed", end=T0 + 1) for job in (2, 3)}
    watcher.catch_up()
    watcher.catch_up()
    assert filed(box) == [(2, "end"), (3, "end")] and box.newest == 3
    assert [after for what, after in answers.asked if what == "notifying"] == [-1, 1, 3]
    del answers.replies[1]
    watcher.catch_up()
    assert box.unfinished() == [], "a job that is gone for good is not asked for without end"


def test_one_whose_forecast_fails_keeps_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORECASTS", 1)
    jobs = [reply(("forecast",), id=job, state="queued") for job in (1, 2, 3)]
    watcher, answers, _, _ = watching(tmp_path, *jobs)
    watcher.catch_up()

    def fails(job: int) -> EtaView:
        answers.asked.append(("eta", job))
        raise UsageError("no answer within 30 s", "")

    monkeypatch.setattr(answers, "eta", fails)
    for _ in range(3):
        watcher.look_at_promises()
    assert [job for what, job in answers.asked if what == "eta"] == [1, 2, 3]
