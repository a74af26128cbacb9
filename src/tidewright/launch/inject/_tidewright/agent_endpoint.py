"""What the agent has written into the rank directory: where the rendezvous store is, who shares the devices; and our reports.

Read anew whenever the rank comes back from standing still, because by then all of it may have changed.
"""

from __future__ import annotations

import json
import os

LEVELS = ("freeze", "cooperative", "none")


def rank_dir():
    """The rank directory, "" outside a rank."""
    return os.environ.get("TIDE_BOX", "")


def read():
    """The content of reach.json, empty when there is none to be read."""
    try:
        with open(os.path.join(rank_dir(), "reach.json")) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


_reported = set()


def report_level(level, why):
    """Tell the agent, once, that this program can be suspended at ``level`` at best."""
    if (level, why) in _reported or not rank_dir():
        return
    _reported.add((level, why))
    line = json.dumps({"level": level, "why": why}) + "\n"
    try:
        file = os.open(
            os.path.join(rank_dir(), "said.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
    except OSError:
        return
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
