"""What leaves the journal leaves without the values of jobs' environments, and still replays."""

from __future__ import annotations

import msgspec

from tidewright.drive.driver import EngineDriver
from tidewright.drive.record import StepRecord, decode, encode, redacted
from tidewright.drive.replay import difference, replay
from tidewright.engine.commands import Ended
from tidewright.engine.engine import Engine
from tidewright.engine.events import Cancel, Exited, Submit
from tidewright.model.failure import RankFailure
from tidewright.model.job import JobSpec

SECRET = "hunter2-do-not-print"


class Lines(list[bytes]):
    """The records of a driver."""


def _recorded() -> Lines:
    lines = Lines()
    driver = EngineDriver(Engine(), lines)
    driver.step(1, [Submit(JobSpec(command=("x",), env={"API_TOKEN": SECRET, "LANG": "C"}), "a")])
    driver.step(2, [Cancel(1, "b")])
    return lines


def test_a_redacted_journal_has_the_names_and_replays() -> None:
    lines = _recorded()
    assert sum(SECRET.encode() in line for line in lines) == 2, "in the submission and in the record of the end"
    hidden = [redacted(line) for line in lines]
    assert not any(SECRET.encode() in line for line in hidden) and b"API_TOKEN" in hidden[0]
    assert replay(hidden).book.outcomes == replay(lines).book.outcomes
    assert redacted(hidden[1]) == hidden[1]


def test_a_divergence_is_told_without_the_environment() -> None:
    body = _recorded()[1]
    record = decode(body)
    (ended,) = [one for one in record.commands if isinstance(one, Ended)]
    commands = [
        msgspec.structs.replace(one, state=one.state + 1) if isinstance(one, Ended) else one for one in record.commands
    ]
    assert commands != record.commands and ended.spec.env
    other = StepRecord(record.turn, record.now, record.events, commands)
    text = difference(other, encode(other), record.commands)
    assert "recorded was" in text and SECRET not in text


def test_what_a_failed_rank_wrote_is_left_out_too() -> None:
    failure = RankFailure(1, 5, "exit code 5", "n1", 20.0, ("password is hunter2",))
    body = encode(StepRecord(4, 2, [Exited(1, 1, 5, why="exit code 5", failure=failure)], []))
    shown = redacted(body)
    assert b"hunter2" not in shown and redacted(shown) == shown
    (event,) = decode(shown).events
    assert event == Exited(1, 1, 5, why="exit code 5", failure=RankFailure(1, 5, "exit code 5", "n1", 20.0))
