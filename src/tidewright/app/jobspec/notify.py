"""Whom a job notifies, as users write it: in options, YAML specs and #SBATCH lines, whose words are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.errors import UsageError
from ...model.notify import ARRAY_TASKS, KINDS, Notify

WITHOUT_SENSE = frozenset(
    {"invalid_depend", "stage_out", "time_limit", "time_limit_90", "time_limit_80", "time_limit_50"}
)
"""Of sbatch(1) --mail-type: nothing here is like it, or another kind says it (fail: the time limit)."""


def kinds(text: str) -> tuple[str, ...]:
    """``end,fail``, ``ALL``, ``NONE``: in any case. Raises UsageError."""
    words = [word.strip().lower().replace("-", "_") for word in text.split(",") if word.strip()]
    for word in words:
        if word not in (*KINDS, ARRAY_TASKS, "all", "none") and word not in WITHOUT_SENSE:
            known = ", ".join((*KINDS, ARRAY_TASKS, "all", "none"))
            raise UsageError(f"{word!r} is nothing to be notified of", f"choose of {known}")
    if "none" in words and len(words) > 1:
        raise UsageError("none goes with no other", "leave one of them out")
    found = [kind for word in words for kind in (KINDS if word == "all" else (word,))]
    return tuple(dict.fromkeys(kind for kind in found if kind not in WITHOUT_SENSE))


def left_out(text: str) -> list[str]:
    """The words that are known to sbatch and mean nothing here."""
    return [word.strip() for word in text.split(",") if word.strip().lower() in WITHOUT_SENSE]


def addresses(text: str) -> tuple[str, ...]:
    """``ann,bob@example.org``."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def notification(
    asked: tuple[str, ...] | None, mail: Sequence[str], webhooks: Sequence[str], user: str
) -> Notify | None:
    """What options add up to. ``asked`` None: not given, which means everything where there is an address or URL; kinds without
    either are mailed to ``user``."""
    if asked == () or (asked is None and not mail and not webhooks):
        return None
    events = asked or KINDS
    if "none" in events:
        return None
    mail = tuple(dict.fromkeys(mail)) or (() if webhooks else (user,))
    return Notify(events, tuple(mail), tuple(dict.fromkeys(webhooks)))


def popped(values: dict[str, Any], user: str) -> Notify | None:
    """What the keys ``mail_type``, ``mail_user`` and ``webhook`` add up to, which are removed from ``values``."""
    asked, mail, webhooks = values.pop("mail_type", None), values.pop("mail_user", ()), values.pop("webhook", ())
    return notification(asked, mail, webhooks, user)
