"""The journal under every kind of damage: either all acknowledged turns are there, or it says which is the first bad."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.base.errors import DamagedJournal, UsageError
from tidewright.drive.record import StepRecord, encode
from tidewright.engine import events as ev
from tidewright.engine.commands import Ended
from tidewright.live.journal.archive import row_of
from tidewright.live.journal.doctor import doctor, repair
from tidewright.live.journal.store import Journal, JournalFull
from tidewright.live.journal.watermark import Watermark, WatermarkFile, read_watermark
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec

from ..sizes import examples

TRANSACTIONS, EACH = 12, 3
LAST = TRANSACTIONS * EACH


def _body(turn: int) -> bytes:
    return encode(StepRecord(turn, turn * 1000, [ev.Cancel(turn, f"op-{turn}")], []))


def _fill(state: Path, transactions: int = TRANSACTIONS, close: bool = True) -> Journal:
    journal = Journal(state)
    for _ in range(transactions):
        for _ in range(EACH):
            journal.append(_body(journal.turn + 1))
        journal.commit()
    if close:
        journal.close()
    return journal


def _crashed(tmp_path: Path) -> Path:
    """A copy taken while the journal is open: what a crash leaves, the write-ahead log not yet folded in."""
    journal = _fill(tmp_path / "live", close=False)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    journal.close()
    return tmp_path / "crashed"


def _bodies(state: Path) -> list[bytes]:
    journal = Journal(state)
    try:
        return [body for _, body in journal.bodies(0)]
    finally:
        journal.close()


def test_what_was_committed_is_there_after_a_crash(tmp_path: Path) -> None:
    assert _bodies(_crashed(tmp_path)) == [_body(turn) for turn in range(1, LAST + 1)]


def test_what_was_not_committed_is_not(tmp_path: Path) -> None:
    journal = _fill(tmp_path, close=False)
    journal.append(_body(LAST + 1))
    assert journal.buffered == 1 and journal.durable == LAST
    journal.close()
    assert len(_bodies(tmp_path)) == LAST


def test_a_truncated_log_never_opens_short(tmp_path: Path) -> None:
    """SQLite itself opens every one of these without a word."""
    crashed = _crashed(tmp_path)
    wal = crashed / "journal.db-wal"
    size = wal.stat().st_size
    refused = torn = 0
    for cut in range(0, size, max(1, size // 60)):
        state = tmp_path / f"cut-{cut}"
        shutil.copytree(crashed, state)
        (state / "journal.db-shm").unlink()
        with (state / "journal.db-wal").open("r+b") as file:
            file.truncate(cut)
        try:
            journal = Journal(state)
        except DamagedJournal as error:
            refused += 1
            assert 1 <= error.turn <= LAST and "tide doctor" in str(error)
        else:
            torn += 1
            assert journal.turn == LAST - EACH and "torn" in journal.notices[0]
            journal.close()
            assert Journal(state).notices == []
    assert refused > 30 and torn >= 1


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), name=st.sampled_from(["journal.db", "journal.db-wal", "journal.mark"]))
def test_a_flipped_byte_never_changes_what_is_read(tmp_path_factory: pytest.TempPathFactory, data, name: str) -> None:  # type: ignore[no-untyped-def]
    tmp_path = tmp_path_factory.mktemp("flip")
    state = _crashed(tmp_path)
    content = bytearray((state / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    (state / name).write_bytes(content)
    (state / "journal.db-shm").unlink()
    try:
        found = _bodies(state)
    except (DamagedJournal, UsageError):
        return
    good = [_body(turn) for turn in range(1, LAST + 1)]
    assert found in (good, good[: LAST - EACH])


@pytest.mark.parametrize("turn", [1, 5, LAST - EACH])
def test_an_altered_body_is_named(tmp_path: Path, turn: int) -> None:
    _fill(tmp_path)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE turns SET body = replace(body, 'op-', 'OP-') WHERE turn = ?", (turn,))
    db.close()
    with pytest.raises(DamagedJournal) as caught:
        Journal(tmp_path)
    assert caught.value.turn == turn


@pytest.mark.parametrize("gone", [(1, 1), (7, 9), (LAST - EACH, LAST), (LAST - 2 * EACH, LAST)])
def test_missing_rows_are_named(tmp_path: Path, gone: tuple[int, int]) -> None:
    _fill(tmp_path)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("DELETE FROM turns WHERE turn BETWEEN ? AND ?", gone)
    db.close()
    with pytest.raises(DamagedJournal) as caught:
        Journal(tmp_path)
    assert caught.value.turn == gone[0]


def test_a_database_that_is_gone_or_a_mark_that_is_gone(tmp_path: Path) -> None:
    for name in ("journal.db", "journal.mark"):
        state = tmp_path / name
        _fill(state)
        (state / name).unlink()
        with pytest.raises(DamagedJournal, match="missing"):
            Journal(state)


def test_a_rewritten_history_with_a_sound_chain_is_seen(tmp_path: Path) -> None:
    """Somebody put another journal, sound in itself, in place of this one."""
    _fill(tmp_path / "a")
    other = Journal(tmp_path / "b")
    for turn in range(LAST):
        other.append(_body(1000 + turn))
    other.commit()
    other.close()
    shutil.copy(tmp_path / "b" / "journal.db", tmp_path / "a" / "journal.db")
    with pytest.raises(DamagedJournal, match="not the one"):
        Journal(tmp_path / "a")


def test_a_mark_that_is_one_transaction_late_is_fine(tmp_path: Path) -> None:
    journal = _fill(tmp_path, close=False)
    before = (tmp_path / "journal.mark").read_bytes()
    journal.append(_body(LAST + 1))
    journal.commit()
    journal.close()
    (tmp_path / "journal.mark").write_bytes(before)
    again = Journal(tmp_path)
    assert (again.turn, again.notices) == (LAST + 1, [])
    again.append(_body(LAST + 2))
    again.commit()
    again.close()
    assert len(_bodies(tmp_path)) == LAST + 2


def test_work_goes_on_after_a_torn_transaction_was_dropped(tmp_path: Path) -> None:
    _fill(tmp_path)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("DELETE FROM turns WHERE turn > ?", (LAST - 1,))
    db.close()
    journal = Journal(tmp_path)
    assert journal.turn == LAST - 1 and journal.notices
    journal.append(_body(LAST))
    journal.commit()
    journal.close()
    assert _bodies(tmp_path) == [_body(turn) for turn in range(1, LAST + 1)]


@given(sequence=st.integers(0, 2**40), torn=st.integers(0, 1023))
def test_a_torn_write_of_the_mark_leaves_the_other_slot(
    tmp_path_factory: pytest.TempPathFactory, sequence: int, torn: int
) -> None:
    path = tmp_path_factory.mktemp("mark") / "journal.mark"
    file = WatermarkFile(path, Watermark(sequence, 0, bytes(32), 1, b"a" * 32))
    file.advance(2, b"b" * 32)
    file.close()
    content = bytearray(path.read_bytes())
    content[torn] ^= 1
    path.write_bytes(content)
    mark = read_watermark(path)
    assert mark is not None and mark.turn in (1, 2)


def _fail(journal: Journal, code: int, text: str) -> object:
    class Full:
        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real

        def execute(self, text_: str, *values: object) -> object:
            if text_ == "COMMIT":
                error = sqlite3.OperationalError(text)
                error.sqlite_errorcode = code
                raise error
            return self.real.execute(text_, *values)

        def executemany(self, *values: object) -> object:
            return self.real.executemany(*values)

    real = journal._db
    journal._db = Full(real)  # type: ignore[assignment]
    return real


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    journal = _fill(tmp_path, close=False)
    journal.append(_body(LAST + 1))
    real = _fail(journal, sqlite3.SQLITE_FULL, "database or disk is full")
    with pytest.raises(JournalFull, match="disk is full"):
        journal.commit()
    assert (journal.buffered, journal.durable) == (1, LAST)
    journal.append(_body(LAST + 2))
    journal._db = real  # type: ignore[assignment]
    journal.commit()
    assert journal.durable == LAST + 2
    journal.close()
    assert len(_bodies(tmp_path)) == LAST + 2


def _spoilt_before_its_snapshot(state: Path, damage: str) -> None:
    """A journal with a snapshot and one turn after it, in which ``damage`` was then done."""
    journal = _fill(state, close=False)
    journal.snapshot(b"the book")
    journal.append(_body(LAST + 1))
    journal.commit()
    journal.close()
    with sqlite3.connect(state / "journal.db") as db:
        db.execute(damage)
    db.close()


def test_a_snapshot_shortens_verification_and_scrubbing_finds_the_rest(tmp_path: Path) -> None:
    _spoilt_before_its_snapshot(tmp_path, "UPDATE turns SET body = x'00' WHERE turn = 5")
    with pytest.raises(DamagedJournal):
        Journal(tmp_path)
    journal = Journal(tmp_path, whole_chain_below=10)
    assert journal.snapshots()[0].body == b"the book" and journal.turn == LAST + 1
    with pytest.raises(DamagedJournal) as caught:
        while journal.scrub(2):
            pass
    assert caught.value.turn == 5
    journal.close()


def test_only_two_snapshots_are_kept_and_a_damaged_one_is_not_offered(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for turn in range(1, 5):
        journal.append(_body(turn))
        journal.commit()
        journal.snapshot(b"book %d" % turn)
    assert [snapshot.turn for snapshot in journal.snapshots()] == [4, 3]
    journal._db.execute("UPDATE snapshots SET body = x'00' WHERE turn = 4")
    assert [snapshot.turn for snapshot in journal.snapshots()] == [3]
    journal.close()


def _ended(job: int, team: str = "t", name: str = "n") -> Ended:
    spec = JobSpec(name=name, command=("x",), team=team)
    return Ended(job, 8, spec, 0, 1, 2_000_000, 1_000_000, 10**9, 2 * 10**9, 1, 1, 0, Code.FINISHED())


def test_ended_jobs_are_found_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for job in range(1, 6):
        journal.append(_body(job))
        journal.end(row_of(job, _ended(job, "a" if job % 2 else "b", f"job-{job}")))
    journal.commit()
    archive = journal.archive
    assert archive.get(3) == _ended(3, "a", "job-3") and archive.get(9) is None
    assert [one.job for one in archive.find(2)] == [5, 4]
    assert [one.job for one in archive.find(9, equal={"team": "b"})] == [4, 2]
    assert archive.find(9, states=(9,)) == []
    assert {one.key: (one.jobs, one.held, one.delivered) for one in archive.sums("team")} == {
        "a": (3, 6.0, 3.0),
        "b": (2, 4.0, 2.0),
    }
    journal._db.execute("UPDATE ended SET record = replace(record, 'job-3', 'job-4') WHERE job = 3")
    with pytest.raises(DamagedJournal, match="job 3"):
        archive.get(3)
    journal.close()


def test_an_archived_record_of_sentences_is_read_and_is_sound(tmp_path: Path) -> None:
    """As jobs were archived before causes were data; its bytes stay as they are."""
    journal = Journal(tmp_path)
    journal.append(_body(1))
    ended = replace(_ended(1), history=((1, "QUEUED", Code.ADMITTED()), (2, "COMPLETED", Code.FINISHED())))
    record = msgspec.json.encode(ended)
    for code, words in (("Admitted", "admitted"), ("Finished", "it is done")):
        record = record.replace(b'{"code":"%s"}' % code.encode(), b'"%s"' % words.encode())
    assert record.count(b'"it is done"') == 2
    journal.end(row_of(1, ended, record))
    journal.commit()
    found = journal.archive.get(1)
    assert found is not None and found.why == Code.TEXT("it is done")
    assert [why for _, _, why in found.history] == [Code.TEXT("admitted"), Code.TEXT("it is done")]
    journal.close()
    assert doctor(tmp_path).sound


def test_doctor_on_a_sound_journal(tmp_path: Path) -> None:
    _fill(tmp_path)
    assert doctor(tmp_path).sound
    with pytest.raises(UsageError, match="sound"):
        repair(tmp_path)
    with pytest.raises(UsageError, match="no journal"):
        doctor(tmp_path / "elsewhere")


def test_doctor_keeps_the_good_beginning(tmp_path: Path) -> None:
    _fill(tmp_path)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE turns SET hash = x'00' WHERE turn = 20")
    db.close()
    report, kept = repair(tmp_path)
    assert (report.first_bad, report.keep_to, report.written) == (20, 19, LAST)
    assert set(report.jobs_affected) == set(range(20, LAST + 1))
    assert _bodies(tmp_path) == [_body(turn) for turn in range(1, 20)]
    assert (kept / "journal.db").exists() and doctor(tmp_path).sound


def test_doctor_prefers_a_sound_snapshot(tmp_path: Path) -> None:
    _spoilt_before_its_snapshot(tmp_path, "DELETE FROM turns WHERE turn = 3")
    report, _ = repair(tmp_path)
    assert (report.keep_from, report.keep_to, report.jobs_affected) == (LAST, LAST + 1, ())
    journal = Journal(tmp_path)
    assert (journal.base, journal.turn, journal.snapshots()[0].body) == (LAST, LAST + 1, b"the book")
    journal.close()


def test_doctor_on_something_that_is_no_database(tmp_path: Path) -> None:
    _fill(tmp_path)
    (tmp_path / "journal.db").write_bytes(b"not a database at all" * 500)
    with pytest.raises(DamagedJournal):
        Journal(tmp_path)
    report = doctor(tmp_path)
    assert not report.sound and report.keep_to == 0
