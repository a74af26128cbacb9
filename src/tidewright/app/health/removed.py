"""Ranks whose state directory was removed while they ran: no controller knows of them, and they keep their devices."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ...base.units import agreeing, counted
from ...launch import shim
from .finding import NOTE, Finding

_SHIM = os.fsencode(Path("launch") / Path(shim.__file__).name)


class _Record(msgspec.Struct):
    pid: int


def check_removed(state: Path) -> Finding | None:
    """The shims of earlier directories of this path that still run; None when there are none."""
    pids = left_running(state)
    if not pids:
        return None
    listed = " ".join(map(str, pids))
    runs, them, its = (agreeing(len(pids), *words) for words in (("runs", "run"), ("it", "them"), ("its", "their")))
    text = f"{counted(len(pids), 'rank')} of an earlier {state}, which was removed or replaced, {runs} on: no controller knows "
    text += f"of {them}, and other jobs are given {its} devices"
    return Finding("removed", NOTE, text, f"kill -9 {listed} ends {them}")


def left_running(state: Path) -> list[int]:
    """Pids of shims that were started below this path and have no record there."""
    roots = {os.fsencode(path) + b"/" for path in (state.absolute(), state.resolve())}
    found: dict[int, tuple[int, Path]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            at = next((at for at, word in enumerate(words[:-1]) if word.endswith(_SHIM)), None)
            if at is not None and any(words[at + 1].startswith(root) for root in roots):
                found[pid] = _parent(pid), Path(os.fsdecode(words[at + 1]))
        except OSError:  # it has ended
            continue
    # What a shim has forked has its command line until it runs the rank.
    return sorted(pid for pid, (parent, place) in found.items() if parent not in found and not _recorded(place, pid))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def _recorded(place: Path, pid: int) -> bool:
    """Whether a rank directory is this shim's; one without a record may be of a shim that is starting."""
    try:
        return msgspec.json.decode((place / "shim").read_bytes(), type=_Record).pid == pid
    except (OSError, msgspec.MsgspecError):
        return place.is_dir()
