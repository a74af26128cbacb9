"""The options of earlier starts, kept in STATE/up.json: a restart without them must not come back as another pool.

Which agents there are is kept apart from these (``hosts``).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..base.errors import UsageError
from ..live.controller.lock import write_whole

FILE = "up.json"
NAMES = (
    "policy", "listen", "tls_cert", "tls_key", "jobs_as", "slots", "backend", "images", "image_quota", "log_limit",
    "node_timeout",
)  # fmt: skip
"""Options of the daemon that later starts inherit, as written on its command line."""
NONE = "none"
"""Value of ``listen``, ``tls_cert``, ``tls_key``, ``jobs_as`` and ``images`` that ends a remembered one."""
ENDED_BY_NONE = ("listen", "images", "tls_cert", "tls_key", "jobs_as")


def recall(state: Path) -> dict[str, str]:
    """What earlier starts were given, by option. Raises UsageError for an unreadable file."""
    path = state / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is unreadable: {error}", "delete it, and give tide up its options again") from None


def remember(state: Path, options: dict[str, str]) -> None:
    """Keep them for the next start."""
    write_whole(state / FILE, msgspec.json.encode(options).decode())


def merged(before: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The options in force: what is given now wins over what was given before."""
    return {name: value for name, value in {**before, **given}.items() if name in NAMES}


def changes(before: dict[str, str], given: dict[str, str]) -> list[str]:
    """The options that are given now and differ from those remembered, one text each."""
    return [
        f"{_label(name)} {value} (was {before[name]})"
        for name, value in given.items()
        if name in before and before[name] != value
    ]


def inherited(before: dict[str, str], given: dict[str, str]) -> list[str]:
    """The remembered options that are in force again because nothing else is given, one text each."""
    return [f"{_label(name)} {before[name]}" for name in NAMES if name in before and name not in given]


def _label(name: str) -> str:
    return name.replace("_", " ")
