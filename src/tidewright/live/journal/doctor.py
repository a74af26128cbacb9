"""What can be recovered from a damaged journal, and the recovery: a sound copy takes its place, the original is kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...base.errors import UsageError
from ...base.units import agreeing, counted
from ...drive.record import decode
from ...engine.commands import Ended, Reply
from ...wire.state_files import open_own
from ..controller.job_ids import next_unused
from ..controller.lock import StateLock
from .archive import COLUMNS, Archive, ended_of, row_of, seal_of
from .recover import DIVERGED, Divergence
from .store import DATABASE, MARK, connect, create, refuse_full
from .verify import JournalVerdict, Point, base_of, good_snapshots, inspect, seal, walk
from .watermark import Watermark, WatermarkFile, read_watermark

SHOWN = 20
"""Affected jobs named in the report's text."""


class Report(Struct, frozen=True, kw_only=True):
    """The state of a journal. ``keep_from`` to ``keep_to`` are the turns that a repair keeps."""

    sound: bool
    written: int
    """Turns that the watermark says were written; 0 when it cannot be read."""
    first_bad: int = 0
    keep_from: int = 0
    keep_to: int = 0
    jobs_affected: tuple[int, ...] = ()
    """Jobs in readable turns beyond ``keep_to``: their latest state would be lost."""
    lines: tuple[str, ...] = ()


def doctor(state: Path) -> Report:
    """Examine the whole journal of a state directory, changing nothing."""
    path = state / DATABASE
    if not path.exists():
        raise UsageError(f"there is no journal in {state}", "give the state directory with --state")
    watermark = read_watermark(state / MARK)
    written = watermark.turn if watermark else 0
    db = _untouched(path)
    try:
        verdict = inspect(db, watermark, whole_chain_below=2**62)
        if verdict.damage:
            return _damage(db, verdict, written)
        spoiled = _spoiled(db)
        if spoiled:
            return _underived(db, verdict, written, spoiled)
        first = base_of(db)[0] + 1
        what = f"turns {first} to {verdict.turn}" if verdict.turn >= first else "it holds no turns yet"
        lines = (f"the journal is sound: {what}", *verdict.notices, *_diverged(db))
        return Report(sound=True, written=written, keep_to=verdict.turn, lines=lines)
    except sqlite3.DatabaseError as error:
        refuse_full(path, error)
        return Report(sound=False, written=written, first_bad=1, lines=(f"{path} is no readable database: {error}",))
    finally:
        db.close()


def _diverged(db: sqlite3.Connection) -> tuple[str, ...]:
    """What a controller noted when it replayed turns that another version had written."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (DIVERGED,)).fetchone()
    if row is None:
        return ()
    found = msgspec.json.decode(row[0], type=Divergence)
    which = f"turn {found.first}" if found.turns == 1 else f"{found.turns} turns from turn {found.first} on"
    return (
        f"When an upgraded controller replayed it, {which} came out otherwise than recorded: {found.why}.",
        "What was recorded was adopted: jobs that had ended stayed ended, ranks that had been placed stayed in place;",
        "everything else was compared with what the agents had. Those turns are behind a snapshot and not replayed again.",
    )


def _spoiled(db: sqlite3.Connection) -> list[str]:
    """What is wrong with all that is not the chain of turns: snapshots, the archive, the database's own structure."""
    found = []
    try:
        held = db.execute("SELECT count(*) FROM snapshots").fetchone()[0]
        if len(good_snapshots(db)) < held:
            found.append("a snapshot is altered")
        altered = [str(row[0]) for row in db.execute(f"SELECT {COLUMNS} FROM ended") if not _as_it_was(row)]
        if altered:
            names = ", ".join(altered[:SHOWN]) + (", …" if len(altered) > SHOWN else "")
            found.append(f"the archived record of job {names} is altered")
        found += [row[0] for row in db.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        found.append(str(error))
    return found


def _as_it_was(row: tuple[Any, ...]) -> bool:
    """Whether an archived row is the one its record makes."""
    turn, record, mine = row[1], row[-2], row[-1]
    if not isinstance(record, bytes) or seal_of(record) != mine:
        return False
    return row_of(turn, ended_of(record), record).stored() == row


def _underived(db: sqlite3.Connection, verdict: JournalVerdict, written: int, spoiled: list[str]) -> Report:
    """Every turn is sound, something made from them is not."""
    base = base_of(db)[0]
    older = f", except for jobs that ended before turn {base + 1}" if base else ""
    lines = (
        f"Turns {base + 1} to {verdict.turn} are sound, but what is made from them is not: {'; '.join(spoiled)}.",
        f"A repair makes it again and loses nothing{older}.",
        "Run tide doctor --repair to put a sound copy in its place; the original is kept beside it.",
    )
    return Report(sound=False, written=written, keep_from=base, keep_to=verdict.turn, lines=lines)


def _untouched(path: Path) -> sqlite3.Connection:
    """A read-only connection: closing it does not fold the write-ahead log in, so the original stays as it was found."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _damage(db: sqlite3.Connection, verdict: JournalVerdict, written: int) -> Report:
    start, end = _best(db, verdict)
    affected = tuple(sorted({job for body in _beyond(db, end[0]) for job in _jobs(body)}))
    lines = [verdict.damage[0].upper() + verdict.damage[1:] + "."]
    if start[0]:
        lines.append(f"The snapshot of turn {start[0]} is sound and so are the turns after it, up to {end[0]}.")
        lines.append(
            "A repair keeps these: live jobs lose nothing if that is the end; older turns can no longer be replayed."
        )
    else:
        lines.append(f"A repair keeps turns 1 to {end[0]}; what happened later is lost.")
    if (lost := written - end[0]) > 0:
        lines.append(
            f"{counted(lost, 'turn')} that {agreeing(lost, 'was', 'were')} written {agreeing(lost, 'is', 'are')} lost."
        )
    if affected:
        names = ", ".join(map(str, affected[:SHOWN])) + (", …" if len(affected) > SHOWN else "")
        lines.append(f"Jobs in lost turns: {names}. Those still running are adopted or stopped at the next start.")
    lines.append("Run tide doctor --repair to put a sound copy in its place; the original is kept beside it.")
    return Report(
        sound=False, written=written, first_bad=verdict.bad, keep_from=start[0], keep_to=end[0],
        jobs_affected=affected, lines=tuple(lines),
    )  # fmt: skip


def _best(db: sqlite3.Connection, verdict: JournalVerdict) -> tuple[Point, Point]:
    """Where a repaired chain would start and end: whatever reaches furthest, the whole chain when it is a draw."""
    base = base_of(db)
    best = (base, walk(db, base)[0])
    for point in good_snapshots(db):
        end, _ = walk(db, point)
        if end[0] > best[1][0]:
            best = (point, end)
    return best


def _beyond(db: sqlite3.Connection, turn: int) -> Iterator[bytes]:
    try:
        for (body,) in db.execute("SELECT body FROM turns WHERE turn > ? ORDER BY turn", (turn,)):
            yield body
    except sqlite3.DatabaseError:
        return


def _jobs(body: bytes) -> Iterator[int]:
    """Jobs in a turn's record; none when it cannot be read."""
    try:
        record = decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return
    for item in [*record.events, *record.commands]:
        job = getattr(item, "job", -1)
        if job >= 0 and not (isinstance(item, Reply) and item.error):
            yield job


def repair(state: Path) -> tuple[Report, Path]:
    """Put a sound copy of the journal in place; returns the report and where the original was moved.

    Raises UsageError when nothing is to be repaired or a controller runs there.
    """
    lock = StateLock(state)
    try:
        report = doctor(state)
        if report.sound:
            raise UsageError("the journal is sound; nothing to repair", "start the controller with tide up")
        copy = state / "journal.repaired"
        for leftover in state.glob("journal.repaired*"):
            leftover.unlink()
        next_job = _next_job(state)
        point = _copy(state / DATABASE, copy, report)
        kept = _set_aside(state)
        for suffix in ("", "-wal", "-shm"):
            part = Path(f"{copy}{suffix}")
            if part.exists():
                part.rename(state / f"{DATABASE}{suffix}")
        WatermarkFile(state / MARK, Watermark(0, *point, *point, next_job)).close()
        return report, kept
    finally:
        lock.release()


def _next_job(state: Path) -> int:
    """The first id that was never given out, by all that is left: watermark, directories, archive, readable turns."""
    watermark = read_watermark(state / MARK)
    known = [watermark.next_job if watermark else 0, next_unused(state)]
    db = _untouched(state / DATABASE)
    try:
        known += [int(row[0] or 0) + 1 for row in _readable(db, "SELECT max(job) FROM ended WHERE turn > ?", -1)]
        known += [job + 1 for body in _beyond(db, 0) for job in _jobs(body)]
    finally:
        db.close()
    return max(known)


def _copy(source: Path, target: Path, report: Report) -> Point:
    """Write the turns worth keeping into a fresh database. Returns its last point."""
    os.close(open_own(target, os.O_RDWR | os.O_CREAT))
    old, new = _untouched(source), connect(target)
    try:
        create(new)
        new.execute("BEGIN IMMEDIATE")
        point = _carry_over(old, new, report)
        new.execute("COMMIT")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return point
    except sqlite3.DatabaseError:
        if report.keep_to:
            raise
        new.execute("COMMIT")
        return base_of(new)
    finally:
        old.close()
        new.close()


def _carry_over(old: sqlite3.Connection, new: sqlite3.Connection, report: Report) -> Point:
    for key, value in old.execute("SELECT key, value FROM meta"):
        new.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    for row in _readable(old, "SELECT turn, body, hash, seal FROM snapshots WHERE turn <= ?", report.keep_to):
        if seal(*row[:3]) == row[3]:
            new.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", row)
    start = base_of(old)
    if report.keep_from > start[0]:
        start = next(point for point in good_snapshots(old) if point[0] == report.keep_from)
        new.execute("INSERT OR REPLACE INTO meta VALUES ('base_turn', ?), ('base_hash', ?)", start)
    last = start
    text = "SELECT turn, body, hash FROM turns WHERE turn > ? AND turn <= ? ORDER BY turn"
    for turn, body, digest in old.execute(text, (start[0], report.keep_to)):
        new.execute("INSERT INTO turns VALUES (?, ?, ?)", (turn, body, digest))
        ended = [command for command in decode(body).commands if isinstance(command, Ended)]
        Archive.insert(new, [row_of(turn, command) for command in ended])
        last = (turn, digest)
    _older_archive(old, new, start[0])
    return last


def _older_archive(old: sqlite3.Connection, new: sqlite3.Connection, before: int) -> None:
    """Ended jobs of turns that are not kept, as far as their records can be read."""
    for record, turn, mine in _readable(old, "SELECT record, turn, seal FROM ended WHERE turn <= ?", before):
        if seal_of(record) != mine:
            continue
        try:
            Archive.insert(new, [row_of(turn, ended_of(record), record)])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue


def _readable(db: sqlite3.Connection, text: str, value: int) -> Iterator[tuple[Any, ...]]:
    try:
        yield from db.execute(text, (value,))
    except sqlite3.DatabaseError:
        return


def _set_aside(state: Path) -> Path:
    """Move the damaged files into a directory of their own."""
    number = 1
    while (state / f"journal.damaged-{number}").exists():
        number += 1
    kept = state / f"journal.damaged-{number}"
    kept.mkdir(mode=0o700)
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
        if (state / name).exists():
            shutil.move(state / name, kept / name)
    return kept
