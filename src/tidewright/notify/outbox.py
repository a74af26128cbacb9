"""What has been seen of jobs and what is still to be sent, in STATE/notify.db.

One transaction takes note of the news and files the messages about them: a kill neither loses nor doubles any.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ..base.units import DAY
from ..wire.state_files import open_own
from .news import MembersSeen, SeenJob

FILE = "notify.db"
MOST_PENDING = 20_000
"""Messages that wait; beyond it the oldest are dropped, and that is logged."""
KEPT_US = 7 * DAY
"""How long sent messages and ended jobs stay known."""


class Notification(Struct, frozen=True, kw_only=True):
    """One message to one address or URL. ``id`` stays the same over all tries; ``tries``: so far."""

    id: str
    job: int
    kind: str
    channel: str
    """``mail`` or ``webhook``."""
    target: str
    site: str
    """What gets one message at a time: the address of a mail, the host and port of a URL."""
    subject: str
    body: str
    created: int
    due: int
    tries: int = 0
    error: str = ""
    done: str = ""
    """``sent`` or ``given up``; empty: it is still to be sent."""


_COLUMNS = tuple(Notification.__struct_fields__)


class Outbox:
    """Not safe to share between threads. Times in microseconds since 1970."""

    def __init__(self, state: Path) -> None:
        os.close(open_own(state / FILE, os.O_RDWR | os.O_CREAT))
        self._db = sqlite3.connect(state / FILE, isolation_level=None, timeout=30)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=full")
        with self._whole():
            self._db.execute(
                "create table if not exists message (id text primary key, job int, kind text, channel text, target text,"
                " site text, subject text, body text, created int, due int, tries int, error text, done text)"
            )
            self._db.execute("create index if not exists message_site on message (done, site, created)")
            self._db.execute(
                "create table if not exists seen (job int primary key, array text, began int, final int, failed int,"
                " broken int, forecast int,"
                " interrupted int, at int,"
                " what blob)"
            )
            self._db.execute(
                "create index if not exists seen_array on seen (array, began, final, failed, broken, forecast, interrupted)"
            )
            self._db.execute("create table if not exists cursor (one int primary key, seq text)")
            self._db.execute("create table if not exists newest (one int primary key, job int)")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    # -- what was seen ----------------------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> str:
        """The last event that was dealt with; empty: none yet."""
        row = self._db.execute("select seq from cursor").fetchone()
        return row[0] if row else ""

    def passed(self, seq: str) -> None:
        """Every event up to this one has been dealt with."""
        self._db.execute("insert or replace into cursor values (0, ?)", (seq,))

    @property
    def newest(self) -> int | None:
        """The job up to which all are known that want notifications; None: nothing is known yet."""
        row = self._db.execute("select job from newest").fetchone()
        return row[0] if row else None

    def known_to(self, job: int) -> None:
        """All jobs up to this one are known."""
        self._db.execute("insert or replace into newest values (0, ?)", (job,))

    def seen(self, job: int) -> SeenJob | None:
        """What was seen of a job; None: nothing."""
        row = self._db.execute("select what from seen where job = ?", (job,)).fetchone()
        return msgspec.msgpack.decode(row[0], type=SeenJob) if row else None

    def unfinished(self) -> list[int]:
        """Jobs whose end has not been seen."""
        return [row[0] for row in self._db.execute("select job from seen where final = 0 order by job")]

    def members(self, group: str, without: int) -> MembersSeen:
        """What was seen of the members of an array, but for one."""
        row = self._db.execute(
            "select coalesce(sum(began), 0), coalesce(sum(final), 0), coalesce(sum(failed), 0),"
            " coalesce(sum(broken), 0), coalesce(sum(forecast), 0), coalesce(max(interrupted), 0) from seen"
            " where array = ? and job != ?", (group, without),
        ).fetchone()  # fmt: skip
        return MembersSeen(*row)

    def note(self, seen: SeenJob, messages: Iterable[Notification], now: int) -> int:
        """Take note of a job, and file the messages about it. Returns how many older ones were dropped for want of room."""
        with self._whole():
            flags = [int(one) for one in (seen.began, seen.final, seen.failed, seen.broken, seen.forecast)]
            what = (seen.job, seen.group, *flags, seen.interrupted_at, now, msgspec.msgpack.encode(seen))
            self._db.execute("insert or replace into seen values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", what)
            for one in messages:
                values = [getattr(one, name) for name in _COLUMNS]
                self._db.execute(f"insert into message values ({','.join('?' * len(_COLUMNS))})", values)
            return self._drop_beyond(MOST_PENDING)

    def _drop_beyond(self, most: int) -> int:
        (waiting,) = self._db.execute("select count(*) from message where done = ''").fetchone()
        if waiting <= most:
            return 0
        self._db.execute(
            "update message set done = 'given up', error = 'too many messages wait' where id in"
            " (select id from message where done = '' order by created limit ?)", (waiting - most,),
        )  # fmt: skip
        return int(waiting - most)

    # -- what is to be sent -----------------------------------------------------------------------------------------------------

    def due(self, now: int, most: int) -> list[Notification]:
        """Messages to be sent now: the oldest to each site, so that many to one do not keep others waiting."""
        # With min() SQLite takes the other columns from the row that has the least (sqlite.org/lang_select.html, bare columns).
        rows = self._db.execute(
            f"select {', '.join(_COLUMNS)}, min(created) from message where done = '' and due <= ?"
            " group by site order by due limit ?",
            (now, most),
        )
        return [Notification(**dict(zip(_COLUMNS, row, strict=False))) for row in rows]

    def next_to(self, site: str, now: int) -> Notification | None:
        """The oldest message to a site that is to be sent now."""
        row = self._db.execute(
            f"select {', '.join(_COLUMNS)} from message where done = '' and site = ? and due <= ? order by created limit 1",
            (site, now),
        ).fetchone()
        return None if row is None else Notification(**dict(zip(_COLUMNS, row, strict=True)))

    def tried(self, message: Notification, done: str, error: str, due: int) -> None:
        """What came of a try; with ``done`` empty it is tried again at ``due``."""
        self._db.execute(
            "update message set tries = tries + 1, done = ?, error = ?, due = ? where id = ?",
            (done, error[:500], due, message.id),
        )

    def forget(self, now: int) -> None:
        """What was sent, and jobs that ended, long ago: of an array once all that is known of it has, for its end is that of its
        last member."""
        self._db.execute("delete from message where done != '' and created < ?", (now - KEPT_US,))
        self._db.execute(
            "delete from seen where final = 1 and at < ? and (array = '' or array not in"
            " (select array from seen where array != '' and (final = 0 or at >= ?)))", (now - KEPT_US, now - KEPT_US),
        )  # fmt: skip


def new_id() -> str:
    """Of a message: receivers recognise a repeated one by it."""
    return f"msg_{uuid.uuid4().hex}"
