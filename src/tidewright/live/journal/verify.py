"""Is the journal whole? Walks the hash chain and compares its end with the watermark.

Three verdicts: whole; a torn last transaction, which is dropped with a notice; damage, which nothing may paper over.
"""

from __future__ import annotations

import sqlite3
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from ...drive.record import GENESIS, chain
from .watermark import Watermark

Point = tuple[int, bytes]


class JournalVerdict(Struct, frozen=True, kw_only=True):
    """``turn`` and ``hash``: the last good point. ``damage`` is empty unless the journal must not be used."""

    turn: int
    hash: bytes
    bad: int = 0
    damage: str = ""
    drop: bool = False
    """Whatever lies above ``turn`` is a torn last transaction."""
    notices: tuple[str, ...] = ()
    scrub_from: Point = (0, GENESIS)
    scrub_to: int = 0
    """Turns between these two were not looked at."""


def base_of(db: sqlite3.Connection) -> Point:
    """Where the chain starts: turn 0, or the snapshot that a repair started from."""
    row = db.execute("SELECT value FROM meta WHERE key = 'base_turn'").fetchone()
    if row is None:
        return 0, GENESIS
    return row[0], db.execute("SELECT value FROM meta WHERE key = 'base_hash'").fetchone()[0]


def seal(turn: int, body: bytes, digest: bytes) -> bytes:
    """Checksum of a snapshot, over its place in the chain too."""
    return sha256(b"%d\0" % turn + digest + body).digest()


def walk(db: sqlite3.Connection, start: Point, until: int | None = None) -> tuple[Point, bool]:
    """Follow the chain from ``start``. Returns the last good point and whether everything after it was good."""
    turn, digest = start
    try:
        rows = db.execute("SELECT turn, body, hash FROM turns WHERE turn > ? ORDER BY turn", (turn,))
        for at, body, mine in rows:
            if until is not None and at > until:
                break
            after = chain(digest, body)
            if at != turn + 1 or after != mine:
                return (turn, digest), False
            turn, digest = at, after
    except (sqlite3.DatabaseError, TypeError):
        return (turn, digest), False
    return (turn, digest), True


def good_snapshots(db: sqlite3.Connection) -> list[Point]:
    """Points of the snapshots whose seal holds and, where the turn's row is there, agrees with it; newest first."""
    try:
        rows = db.execute("SELECT turn, body, hash, seal FROM snapshots ORDER BY turn DESC").fetchall()
    except sqlite3.DatabaseError:
        return []
    return [(turn, digest) for turn, body, digest, mine in rows if seal(turn, body, digest) == mine]


def _on_chain(db: sqlite3.Connection, point: Point) -> bool:
    row = db.execute("SELECT hash FROM turns WHERE turn = ?", (point[0],)).fetchone()
    return row is not None and row[0] == point[1]


def inspect(db: sqlite3.Connection, watermark: Watermark | None, whole_chain_below: int) -> JournalVerdict:
    """Judge the journal. Raises sqlite3.DatabaseError when not even its ends can be read."""
    base = base_of(db)
    last = db.execute("SELECT max(turn) FROM turns").fetchone()[0] or base[0]
    start = base
    if last - base[0] > whole_chain_below:
        start = next((point for point in good_snapshots(db) if _on_chain(db, point)), base)
    (turn, digest), whole = walk(db, start)
    found = JournalVerdict(turn=turn, hash=digest, scrub_from=base, scrub_to=start[0])
    if watermark is None:
        if last == base[0] and whole:
            return found
        return _damaged(found, 1, "the watermark beside it is missing or unreadable, so missing turns would go unseen")
    disagreement = _disagreement(db, watermark, found, start[0])
    if disagreement:
        return _damaged(found, disagreement, f"turn {disagreement} is not the one that was written")
    return _compare(found, watermark, whole)


def _disagreement(db: sqlite3.Connection, watermark: Watermark, found: JournalVerdict, start: int) -> int:
    """The turn of a marked point whose hash differs from the chain's, 0 when all that are held agree."""
    for turn, digest in ((watermark.previous_turn, watermark.previous_hash), (watermark.turn, watermark.hash)):
        if start < turn <= found.turn:
            row = db.execute("SELECT hash FROM turns WHERE turn = ?", (turn,)).fetchone()
            if row is None or row[0] != digest:
                return turn
    return 0


def _compare(found: JournalVerdict, watermark: Watermark, whole: bool) -> JournalVerdict:
    bad = found.turn + 1
    if found.turn >= watermark.turn:
        if whole:
            return found
        text = f"turn {bad} was being written when the machine stopped; it was never acknowledged and is dropped"
        return _with(found, drop=True, bad=bad, notices=(text,))
    if found.turn >= watermark.previous_turn:
        text = f"the journal's last transaction was torn: turns {bad} to {watermark.turn} are dropped"
        return _with(found, drop=True, bad=bad, notices=(text,))
    what = "is missing" if whole else "is missing or altered"
    return _damaged(found, bad, f"turn {bad} {what} (turns up to {watermark.turn} had been written)")


def _damaged(found: JournalVerdict, bad: int, text: str) -> JournalVerdict:
    return _with(found, bad=bad, damage=text)


def _with(found: JournalVerdict, **changes: object) -> JournalVerdict:
    return replace(found, **changes)


def settle(db: sqlite3.Connection, verdict: JournalVerdict) -> None:
    """Remove what a torn last transaction left behind."""
    if not verdict.drop or verdict.damage:
        return
    db.execute("BEGIN IMMEDIATE")
    for table in ("turns", "ended", "snapshots"):
        db.execute(f"DELETE FROM {table} WHERE turn > ?", (verdict.turn,))
    db.execute("COMMIT")
