"""Whom a job's user wants notified of what happens to it, after sbatch(1) --mail-type and --mail-user."""

from __future__ import annotations

import re

from msgspec import Struct

KINDS = ("begin", "end", "fail", "requeue", "preempt", "breach", "forecast")
"""What can be notified of: the first start; the end; an end that is a failure; another attempt; devices taken away by the
scheduler; a promise (GPU fraction of the tier, deadline) that is broken; one that is forecast to be broken."""
ARRAY_TASKS = "array_tasks"
"""With it every member of an array is notified of by itself; without it the array as a whole, as in sbatch(1)."""
MOST_TARGETS = 10
MAX_TARGET = 500
"""Characters of an address or URL."""
_ATOM, _LABEL = r"[A-Za-z0-9_%+=-]+", r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*(?:@{_LABEL}(?:\.{_LABEL})*)?")
"""The usual of RFC 5321, section 4.1.2: dots between words, no quoted names."""
MAX_ADDRESS = 254


_URL = re.compile(r"(?P<site>https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?)(?:[/?].*)?")
_WITH_USER = re.compile(r"https?://[^/?#]*@")


class Notify(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``events``: of KINDS, and ARRAY_TASKS; ``mail``: addresses, or names that the controller completes; ``webhooks``: URLs that
    are sent a signed POST."""

    events: tuple[str, ...]
    mail: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()


def wrong_notify(notify: Notify) -> list[str]:
    """What is wrong with a request for notifications, in words."""
    found = [f"notify: {kind!r} is not one of {', '.join((*KINDS, ARRAY_TASKS))}" for kind in notify.events
             if kind not in KINDS and kind != ARRAY_TASKS]  # fmt: skip
    found += [f"mail_user: {address[:80]!r} is not a mail address" for address in notify.mail
              if len(address) > MAX_ADDRESS or not _ADDRESS.fullmatch(address)]  # fmt: skip
    found += [f"webhook: {reason}" for url in notify.webhooks if (reason := _wrong_url(url))]
    if len(notify.mail) + len(notify.webhooks) > MOST_TARGETS:
        found.append(f"notify: more than {MOST_TARGETS} addresses and URLs")
    return found


def _wrong_url(url: str) -> str:
    shown = repr(url[:80])
    if len(url) > MAX_TARGET or not url.isascii() or not url.isprintable() or " " in url:
        return f"{shown} is not a URL of up to {MAX_TARGET} printable ASCII characters"
    if _WITH_USER.match(url):
        return f"{shown} holds a user or password; put secrets in its path"
    found = _URL.fullmatch(url)
    usable = found is not None and 0 < int(found["port"] or 1) <= 65535
    return "" if usable else f"{shown} is not an http or https URL"


def hide_targets(notify: Notify | None) -> Notify | None:
    """Without the paths of webhooks, which are often secrets."""
    if notify is None or not notify.webhooks:
        return notify
    found = (_URL.fullmatch(url) for url in notify.webhooks)
    return Notify(notify.events, notify.mail, tuple(f"{one['site']}/..." if one else "..." for one in found))
