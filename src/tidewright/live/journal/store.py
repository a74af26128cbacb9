"""The journal: every turn, hash-chained, in SQLite (WAL, synchronous=FULL), with a watermark beside it.

``append`` buffers, ``commit`` makes everything buffered durable in one transaction and one group of fsyncs; requests
are answered only after that. The archive of ended jobs is written in the same transaction.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from ...base.errors import DamagedJournal, DiskFull, UsageError, WorldError
from ...drive.record import FORMAT, chain
from ...wire.state_files import open_own, refuse_links
from ..controller.disk_space import LOW_BYTES, claim, free_bytes, fullness
from ..controller.job_ids import next_unused
from .archive import Archive, ArchiveRow
from .verify import JournalVerdict, base_of, inspect, seal, settle
from .watermark import Watermark, WatermarkFile, read_watermark

DATABASE = "journal.db"
WAL = f"{DATABASE}-wal"
MARK = "journal.mark"
SNAPSHOTS_KEPT = 2
CLAIMED_BYTES = 8 * 2**20
"""Growth of the write-ahead log that is secured when the reserve is released: some 2,000 pages."""
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE turns (turn INTEGER PRIMARY KEY, body BLOB NOT NULL, hash BLOB NOT NULL);
CREATE TABLE snapshots (turn INTEGER PRIMARY KEY, body BLOB NOT NULL, hash BLOB NOT NULL, seal BLOB NOT NULL);
CREATE TABLE ended (job INTEGER PRIMARY KEY, turn INTEGER NOT NULL, name TEXT NOT NULL, team TEXT NOT NULL,
  user TEXT NOT NULL, tier TEXT NOT NULL, state INTEGER NOT NULL, ended INTEGER NOT NULL, held REAL NOT NULL,
  delivered REAL NOT NULL, fraction REAL NOT NULL, preemptions INTEGER NOT NULL, record BLOB NOT NULL,
  seal BLOB NOT NULL);
CREATE INDEX ended_name ON ended (name);
CREATE INDEX ended_team ON ended (team);
CREATE INDEX ended_turn ON ended (turn);
"""


class JournalFull(WorldError):
    """The disk took no more: what is buffered stays buffered, and is not durable."""

    http_status = 507


class StoredSnapshot(Struct, frozen=True):
    """The book as it was after ``turn``."""

    turn: int
    body: bytes


class Journal:
    """The open journal of one state directory. One writer; not safe to write from two threads at once.

    Opening verifies it (see ``verify``): raises DamagedJournal naming the first bad turn, or drops a torn last
    transaction and says so in ``notices``.
    """

    def __init__(self, state: Path, whole_chain_below: int = 200_000) -> None:
        self.path = state / DATABASE
        state.mkdir(exist_ok=True)
        created = not self.path.exists() or not self.path.stat().st_size
        watermark = read_watermark(state / MARK)
        if created and watermark is not None and watermark.turn:
            raise DamagedJournal(
                f"{self.path} is missing, though turns up to {watermark.turn} were written to it; {REMEDY}", 1
            )
        # Jobs' environments are in it: no other user may read it. SQLite gives -wal and -shm the same mode.
        os.close(open_own(self.path, os.O_RDWR | os.O_CREAT))
        refuse_links(*(self.path.with_name(f"{DATABASE}{end}") for end in ("-wal", "-shm", "-journal")))
        self._db = self._opened()
        if created:
            create(self._db)
        verdict = self._checked(watermark, whole_chain_below)
        self.notices = list(verdict.notices)
        self.turn, self.hash = verdict.turn, verdict.hash
        self.scrub_from = verdict.scrub_from
        self.scrub_to = verdict.scrub_to
        self._rows: list[tuple[int, bytes, bytes]] = []
        self._ended: list[ArchiveRow] = []
        self.durable = self.turn
        self.next_job = watermark.next_job if watermark else 0
        """No id from here on was ever given out; 0: the book knows best."""
        if created or verdict.drop:
            self.next_job = max(self.next_job, next_unused(state))
        start = Watermark(
            watermark.sequence + 1 if watermark else 0, self.turn, self.hash, self.turn, self.hash, self.next_job
        )
        self._watermark = WatermarkFile(state / MARK, watermark or start)
        if verdict.drop:
            self._watermark.reset(start)
        self.archive = Archive(connect(self.path))

    def _opened(self) -> sqlite3.Connection:
        try:
            return connect(self.path)
        except sqlite3.DatabaseError as error:
            refuse_full(self.path, error)
            raise DamagedJournal(f"{self.path} cannot be read: {error}; {REMEDY}", 1) from error

    def _checked(self, watermark: Watermark | None, whole_chain_below: int) -> JournalVerdict:
        try:
            check_format(self._db)
            verdict = inspect(self._db, watermark, whole_chain_below)
            settle(self._db, verdict)
        except sqlite3.DatabaseError as error:
            self._db.close()
            refuse_full(self.path, error)
            raise DamagedJournal(f"{self.path} cannot be read: {error}; {REMEDY}", 1) from error
        if verdict.damage:
            self._db.close()
            raise DamagedJournal(f"{self.path}: {verdict.damage}; {REMEDY}", verdict.bad)
        return verdict

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """Buffer one encoded turn; it is durable after the next ``commit``."""
        self.turn += 1
        self.hash = chain(self.hash, record)
        self._rows.append((self.turn, record, self.hash))

    def end(self, row: ArchiveRow) -> None:
        """Buffer an ended job for the archive; written with the turn that ended it."""
        self._ended.append(row)

    @property
    def buffered(self) -> int:
        """Turns not durable yet."""
        return len(self._rows)

    def commit(self) -> None:
        """Make everything buffered durable. Raises JournalFull or WorldError and keeps it buffered when that fails."""
        if self._rows:
            self._write(self._insert)
            self.durable = self._rows[-1][0]
            self._rows.clear()
            self.archive.added(len({row.job for row in self._ended}))
            self._ended.clear()
        if self._watermark.watermark.turn < self.durable:
            self._watermark.advance(self.durable, self.hash, self.next_job)

    def _insert(self) -> None:
        # A commit may succeed and still report an error; the retry then writes the same rows again.
        self._db.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?, ?)", self._rows)
        if self._ended:
            Archive.insert(self._db, self._ended)

    def snapshot(self, body: bytes) -> None:
        """Keep the book as it is after the last committed turn, so that a start replays only what came later."""
        turn, digest = self.durable, self.hash
        if self._rows:
            raise UsageError("a snapshot belongs to a committed turn", "commit first")

        def insert() -> None:
            row = (turn, body, digest, seal(turn, body, digest))
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)
            old = "DELETE FROM snapshots WHERE turn NOT IN (SELECT turn FROM snapshots ORDER BY turn DESC LIMIT ?)"
            self._db.execute(old, (SNAPSHOTS_KEPT,))

        self._write(insert)

    def claim_room(self) -> None:
        """Allocate room for the journal to grow, out of the reserve that was just released."""
        claim(self.path.with_name(WAL), CLAIMED_BYTES)

    def _write(self, work: Callable[[], object]) -> None:
        """Run ``work`` as one transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            work()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            text = f"{self.path} cannot be written: {error}"
            if primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise JournalFull(text) from error
            raise WorldError(text) from error

    def remember(self, key: str, value: bytes) -> None:
        """Keep a value beside the turns, durably."""
        self._write(lambda: self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value)))

    # -- reading ----------------------------------------------------------------------------------------------------

    def snapshots(self) -> list[StoredSnapshot]:
        """The intact snapshots, newest first."""
        rows = self._db.execute("SELECT turn, body, hash, seal FROM snapshots ORDER BY turn DESC").fetchall()
        return [StoredSnapshot(turn, body) for turn, body, digest, mine in rows if seal(turn, body, digest) == mine]

    def bodies(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Committed turns above ``after``, oldest first, on a connection of their own."""
        reader = connect(self.path)
        try:
            yield from reader.execute("SELECT turn, body FROM turns WHERE turn > ? ORDER BY turn", (after,))
        finally:
            reader.close()

    def reader(self) -> Archive:
        """The archive on a connection of its own, for long searches; its user closes it."""
        return Archive(connect(self.path))

    def recall(self, key: str) -> bytes | None:
        """What ``remember`` kept, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    @property
    def base(self) -> int:
        """The turn before the first one held (0 unless the journal was repaired from a snapshot)."""
        return base_of(self._db)[0]

    def scrub(self, rows: int) -> bool:
        """Verify the next ``rows`` turns that opening did not look at; false when none are left.

        Raises DamagedJournal at the first bad one.
        """
        if self.scrub_from[0] >= self.scrub_to:
            return False
        turn, digest = self.scrub_from
        text = "SELECT turn, body, hash FROM turns WHERE turn > ? ORDER BY turn LIMIT ?"
        found = self._db.execute(text, (turn, rows)).fetchall()
        for at, body, mine in found:
            turn, digest = turn + 1, chain(digest, body) if isinstance(body, bytes) else b""
            if at != turn or digest != mine:
                self.scrub_to = 0
                raise DamagedJournal(f"{self.path}: turn {turn}, long past, is missing or altered; {REMEDY}", turn)
        self.scrub_from = (turn, digest)
        return bool(found)

    def close(self) -> None:
        """Close without committing."""
        self.archive.close()
        self._db.close()
        self._watermark.close()


FREE_SOME = "free some space (remove or move large files), then try again; jobs run on meanwhile"
REMEDY = "run tide doctor to see what can be recovered"


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the journal's settings; the run loop hands it from thread to thread, one at a time."""
    # Opened, never made: where the directory was replaced under a controller it would leave a journal in another's.
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=10
    )
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def create(db: sqlite3.Connection) -> None:
    """Make the tables, in one transaction."""
    db.executescript(f"BEGIN;{_SCHEMA}INSERT INTO meta VALUES ('format', {FORMAT});COMMIT;")


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension (sqlite.org/rescode.html)."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def refuse_full(path: Path, error: sqlite3.Error) -> None:
    """Raise DiskFull for an error that comes of a full disk: SQLite cannot even read then, and nothing is damaged."""
    full = (
        primary_code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and free_bytes(path.parent) < LOW_BYTES
    )
    if full or primary_code(error) == sqlite3.SQLITE_FULL:
        raise DiskFull(f"{path} cannot be opened: {error}; {fullness(path.parent)}", FREE_SOME) from error


def check_format(db: sqlite3.Connection) -> None:
    """Refuse a journal of another format. A half-made one (a crash while creating it) is made again."""
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        create(db)
    found = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    if found is None or found[0] != FORMAT:
        raise UsageError(
            f"the journal has format {found and found[0]}; this version reads {FORMAT}",
            "use the version of tidewright that wrote it, or another state directory",
        )
