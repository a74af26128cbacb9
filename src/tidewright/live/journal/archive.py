"""The archive of ended jobs: an index over the journal's ``Ended`` records, asked by the API.

Derived from the turns and rebuilt from them by ``tide doctor --repair``; each row carries a checksum of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ...base.errors import DamagedJournal
from ...base.units import SECOND
from ...engine.commands import Ended
from ...engine.snapshots import upcast

GPU_SECOND = 1000 * SECOND
"""Milli-device-microseconds in one GPU-second."""
GROUPS = ("team", "user", "tier")
COLUMNS = "job, turn, name, team, user, tier, state, ended, held, delivered, fraction, preemptions, record, seal"
_MEMBERS = """CREATE TABLE IF NOT EXISTS array_members
  (array INTEGER, member INTEGER, job INTEGER, PRIMARY KEY (array, job)) WITHOUT ROWID"""
"""Which ended jobs were members of which arrays. Made with the first of them: archives of earlier versions go without."""
_decode = msgspec.json.Decoder(Ended)


class ArchiveRow(NamedTuple):
    """One ended job; ``held`` and ``delivered`` are GPU-seconds, ``fraction`` the delivered share of ideal speed."""

    job: int
    turn: int
    name: str
    team: str
    user: str
    tier: str
    state: int
    ended: int
    held: float
    delivered: float
    fraction: float
    preemptions: int
    record: bytes
    seal: bytes
    array: int = 0
    """The array that it was a member of, 0 for none, and its index in that; kept beside, for earlier versions have no column."""
    index_in_array: int = -1

    def stored(self) -> tuple[Any, ...]:
        """The values of ``COLUMNS``."""
        return self[:-2]


class Sums(NamedTuple):
    """Totals of one group of ended jobs."""

    key: str
    jobs: int
    held: float
    delivered: float
    fraction_sum: float
    preemptions: int


class EndedMember(Struct, frozen=True):
    """An ended member of an array; ``code`` as of ``Ended``."""

    job: int
    index: int
    state: int
    code: int


def _of_array(name: str) -> tuple[str, str]:
    """Between these are the names of an array's members."""
    return f"{name}[", f"{name}\\"


def row_of(turn: int, ended: Ended, record: bytes | None = None) -> ArchiveRow:
    """The archive's row of a job that ended in ``turn``; ``record``: as it was written, maybe by an earlier version."""
    spec = ended.spec
    record = msgspec.json.encode(ended) if record is None else record
    return ArchiveRow(
        ended.job, turn, spec.name, spec.team, spec.user, spec.tier, ended.state, ended.end,
        ended.held_milli_us / GPU_SECOND, ended.attained_milli_us / GPU_SECOND, fraction_of(ended), ended.preemptions,
        record, seal_of(record), *((spec.array.job, spec.array.index) if spec.array is not None else ()),
    )  # fmt: skip


def seal_of(record: bytes) -> bytes:
    """Checksum of an archived record."""
    return sha256(record).digest()[:8]


def fraction_of(ended: Ended) -> float:
    """Delivered GPU fraction over the job's whole life."""
    return min(1.0, ended.ideal_us / max(1, ended.end - ended.submit))


class Archive:
    """Read access to the ended jobs."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._count = -1

    @staticmethod
    def insert(db: sqlite3.Connection, rows: Iterable[ArchiveRow]) -> None:
        """Add rows inside the caller's transaction."""
        rows = list(rows)
        db.executemany(
            f"INSERT OR REPLACE INTO ended ({COLUMNS}) VALUES ({', '.join('?' * 14)})", (row.stored() for row in rows)
        )
        members = [(row.array, row.index_in_array, row.job) for row in rows if row.array]
        if members:
            db.execute(_MEMBERS)
            db.executemany("INSERT OR REPLACE INTO array_members VALUES (?, ?, ?)", members)

    def get(self, job: int) -> Ended | None:
        """One ended job."""
        found = self._select("job = ?", (job,), 1)
        return found[0] if found else None

    def named(self, name: str, limit: int = 2) -> list[Ended]:
        """Ended jobs of that name, newest first."""
        return self._select("name = ?", (name,), limit)

    def array_named(self, name: str) -> Ended | None:
        """The newest ended member of an array or sweep of that name."""
        found = self._select("name > ? AND name < ?", _of_array(name), 8)
        return next((one for one in found if one.spec.array is not None and one.spec.array.parent == name), None)

    def members(self, array: int, index: int | None = None) -> list[EndedMember]:
        """The ended members of an array, or the one with that index, in the order of their ids; without their records, for there
        may be thousands."""
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'array_members'").fetchone():
            return []  # no member of an array with an id has ended yet
        only = "" if index is None else " AND member = ?"
        text = (
            "SELECT job, member, state, json_extract(CAST(record AS TEXT), '$.code') FROM array_members JOIN ended USING (job)"
            f" WHERE array = ?{only} ORDER BY job"
        )
        return [EndedMember(*row) for row in self._db.execute(text, (array,) if index is None else (array, index))]

    def find(
        self, limit: int, states: Sequence[int] = (), equal: Mapping[str, str] | None = None, below: int | None = None
    ) -> list[Ended]:
        """Newest first, those with ids under ``below``; ``equal`` filters by name (of a job or an array), team
        or user."""
        equal = equal or {}
        assert equal.keys() <= {"name", "team", "user"}
        where = ["(name = ? OR name > ? AND name < ?)" if key == "name" else f"{key} = ?" for key in equal]
        values: list[Any] = [
            each for key, value in equal.items() for each in ((value, *_of_array(value)) if key == "name" else (value,))
        ]
        if states:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values.extend(states)
        if below is not None:
            where.append("job < ?")
            values.append(below)
        return self._select(" AND ".join(where) or "1", tuple(values), limit)

    def count(self) -> int:
        """How many jobs have ended. Counted once: counting millions takes a while, and every ``info`` asks."""
        if self._count < 0:
            self._count = self._db.execute("SELECT count(*) FROM ended").fetchone()[0]
        return self._count

    def added(self, rows: int) -> None:
        """So many more are in it."""
        if self._count >= 0:
            self._count += rows

    def sums(self, by: str) -> list[Sums]:
        """Totals by team, user or tier."""
        assert by in GROUPS
        totals = "count(*), total(held), total(delivered), total(fraction), sum(preemptions)"
        return [Sums(*row) for row in self._db.execute(f"SELECT {by}, {totals} FROM ended GROUP BY {by}")]

    def _select(self, where: str, values: tuple[Any, ...], limit: int) -> list[Ended]:
        text = f"SELECT record, seal, job, turn FROM ended WHERE {where} ORDER BY job DESC LIMIT ?"
        return [_opened(*row) for row in self._db.execute(text, (*values, limit)).fetchall()]

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def _opened(record: bytes, seal: bytes, job: int, turn: int) -> Ended:
    if not isinstance(record, bytes) or seal_of(record) != seal:
        remedy = "tide doctor --repair rebuilds it from the journal"
        raise DamagedJournal(f"the archived record of job {job} is altered; {remedy}", turn)
    return ended_of(record)


def ended_of(record: bytes) -> Ended:
    """The job of an archived record. Raises msgspec.DecodeError or ValidationError when it is none."""
    try:
        return _decode.decode(record)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(record)
        if isinstance(plain, dict):
            upcast.ended(plain)
        return msgspec.convert(plain, Ended)
