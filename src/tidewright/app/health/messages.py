"""Notifications that cannot be sent, by the host of their address."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from ...base.units import SECOND, counted, format_duration
from ...notify.main import LOCK
from ...notify.outbox import FILE
from ...notify.sender import GIVEN_UP_US
from ...wire.holder import held
from .finding import BAD, NOTE, OK, Finding

_FAILING = """select channel, target, tries, error, done, created from message
  where error != '' and done != 'sent' order by created desc limit 20000"""
OVERDUE_US = 600 * SECOND
"""A message that is due for longer, with nothing that sends it, is stuck."""
ERROR_SHOWN = 200


def check_notifications(state: Path, running: bool) -> list[Finding]:
    """Nothing where none were ever wanted. ``running``: there is a controller, which keeps a process that sends them."""
    path = state / FILE
    if not path.exists():
        return []
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)
        try:
            failing = db.execute(_FAILING).fetchall()
            waiting, due = db.execute("select count(*), min(due) from message where done = ''").fetchone()
        finally:
            db.close()
    except sqlite3.Error as error:
        return [Finding("notifications", NOTE, f"{path} is not looked at: {error}", "see whether its disk is full")]
    found = [_of_host(host, rows) for host, rows in _by_host(failing).items()]
    late = time.time_ns() // 1000 - (due or 0)
    if running and waiting and late > OVERDUE_US and not held(state / LOCK):
        text = f"{counted(waiting, 'message')} to be sent, due {format_duration(late)} ago, and no process sends them"
        found.insert(0, Finding("notifications", BAD, text, f"see {state / 'notify.log'}; tide down, then tide up"))
    return found or [Finding("notifications", OK, f"{counted(waiting, 'message')} to be sent, none failing")]


def _by_host(rows: list[tuple[str, str, int, str, str, int]]) -> dict[str, list[tuple[str, str, int, str, str, int]]]:
    found: dict[str, list[tuple[str, str, int, str, str, int]]] = {}
    for row in rows:
        found.setdefault(f"{row[0]} to {host_of(row[0], row[1])}", []).append(row)
    return dict(sorted(found.items()))


def host_of(channel: str, target: str) -> str:
    """The host of an address or URL; the rest of a URL may be a secret."""
    if channel == "mail":
        return target.rpartition("@")[2]
    return target.partition("://")[2].split("/", 1)[0].rpartition("@")[2]


def _of_host(host: str, rows: list[tuple[str, str, int, str, str, int]]) -> Finding:
    """Newest first."""
    pending = sum(row[4] == "" for row in rows)
    _, target, tries, error, *_ = rows[0]
    counts = [f"{pending} tried again" * bool(pending), f"{len(rows) - pending} given up" * (len(rows) > pending)]
    shown = error.replace(target, host_of(rows[0][0], target))[:ERROR_SHOWN].replace("\n", " ")
    text = f"{host}: {', '.join(filter(None, counts))}; last error after {_tries(tries)}: {shown}"
    advice = f"correct the address or the server; messages are tried again for {format_duration(GIVEN_UP_US)}"
    return Finding("notifications", NOTE, text, advice)


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number:,} tries"
