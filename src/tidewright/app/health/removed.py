"""Ranks whose state directory was removed or replaced while they ran: no controller knows of them, and they keep their devices.

A shim is judged by where the lock that it holds open lies now, not by the path that it was started with: that may be another
directory's by now, or one of another mount namespace. One whose directory has an agent or a controller is no finding.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...base.paths import inode
from ...base.units import agreeing, counted
from ...launch import shim
from ...wire.holder import AGENT_LOCK, CONTROLLER_LOCK, PARENT, START, held, stat_fields
from .finding import NOTE, Finding
from .modes import roots

LOOK_AGAIN_S = 0.5
"""Until what one look has found is looked at again: ranks begin and end, and their directories go with them."""
_SHIM = os.fsencode(Path("launch") / Path(shim.__file__).name)
_PLACE = re.compile(rb"/(?:hosts/[^/]+/)?ranks/\d+\.\d+/\d+(?:\.\d+)?")
_DELETED = " (deleted)"


class Left(NamedTuple):
    """A shim that no agent has. ``state``: the state directory that its records are in now; None: they are removed."""

    pid: int
    start: int
    state: Path | None


def check_removed(state: Path) -> list[Finding]:
    """What still runs of earlier directories of this path, and what to do about each."""
    found = left_running(state)
    gone = _gone(state, [one.pid for one in found if one.state is None])
    places = Counter(one.state for one in found if one.state is not None)
    return [*filter(None, [gone]), *(_moved(state, place, places[place]) for place in sorted(places))]


def _gone(state: Path, pids: list[int]) -> Finding | None:
    if not pids:
        return None
    runs, them, its = (agreeing(len(pids), *words) for words in (("runs", "run"), ("it", "them"), ("its", "their")))
    text = f"{counted(len(pids), 'rank')} of an earlier {state}, which was removed, {runs} on: no controller knows "
    text += f"of {them}, and other jobs are given {its} devices"
    return Finding("removed", NOTE, text, f"kill -9 {' '.join(map(str, pids))} ends {them}")


def _moved(state: Path, place: Path, many: int) -> Finding:
    runs, them, its = (agreeing(many, *words) for words in (("runs", "run"), ("it", "them"), ("its", "their")))
    text = f"{counted(many, 'rank')} of {place}, which was at {state} before, {runs} on without a controller, and other jobs are "
    text += f"given {its} devices"
    return Finding("removed", NOTE, text, f"tide --state {place} up takes {them} over")


def left_running(state: Path) -> list[Left]:
    """The shims that were started below this path and have neither their records there nor a daemon elsewhere. Takes
    LOOK_AGAIN_S where there seem to be some."""
    if not (first := set(_look(state))):
        return []
    time.sleep(LOOK_AGAIN_S)
    return sorted(first & set(_look(state)), key=lambda one: one.pid)


def _look(state: Path) -> Iterator[Left]:
    prefixes, own = _prefixes(state), {inode(root) for root in roots(state)}
    shims: dict[int, tuple[int, int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            at = next((at for at, word in enumerate(words[:-1]) if word.endswith(_SHIM)), None)
            if at is not None and _below(words[at + 1], prefixes):
                shims[pid] = _parent_and_start(pid)
    for pid, (parent, start) in shims.items():
        # What a shim has forked has its command line until it runs the rank.
        if parent not in shims and (lock := _lock(pid)) is not None:
            base = _unmanaged(lock, own)
            if base is not None:
                yield Left(pid, start, base if lock != _REMOVED else None)


_REMOVED = Path()
"""In place of the path of a lock that has none any more."""


def _lock(pid: int) -> Path | None:
    """Where the lock that a shim holds lies now. None: it has none yet, or that cannot be seen from here."""
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return None
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{name}"
            path = os.readlink(link)
            if path.removesuffix(_DELETED).endswith("/lock"):
                found = os.stat(link)
                if found.st_nlink == 0:
                    return _REMOVED
                there = os.stat(path)  # not what was mounted over it
                return Path(path) if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino) else None
    return None


def _unmanaged(lock: Path, own: set[tuple[int, int]]) -> Path | None:
    """The state directory of a shim's lock where no daemon has it, nor the one at the path that was asked for."""
    if lock == _REMOVED:
        return lock
    *_, root = lock.parents[:4]  # ROOT/ranks/JOB.ATTEMPT/RANK/lock
    state = root.parent.parent if root.parent.name == "hosts" else root
    if inode(root) in own or held(root / AGENT_LOCK) or held(state / CONTROLLER_LOCK):
        return None
    return state


def _prefixes(state: Path) -> set[bytes]:
    """The paths that a directory's shims may have been started with."""
    found = {os.fsencode(state.absolute())}
    with contextlib.suppress(OSError, RuntimeError):  # a loop of links leads nowhere (Python 3.11 raises RuntimeError)
        found.add(os.fsencode(state.resolve()))
    return found


def _below(place: bytes, prefixes: set[bytes]) -> bool:
    return any(place.startswith(prefix) and _PLACE.fullmatch(place[len(prefix) :]) for prefix in prefixes)


def _parent_and_start(pid: int) -> tuple[int, int]:
    fields = stat_fields(pid)
    return int(fields[PARENT]), int(fields[START])
