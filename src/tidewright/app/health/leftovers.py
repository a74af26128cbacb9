"""What jobs that have ended left behind on this machine: control groups, rank directories, images.

A running agent removes its own. What is left when none runs is judged by the journal: only jobs in its archive have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ...agent.layout import AgentLayout
from ...base.control_groups import hierarchies
from ...base.errors import UsageError
from ...base.units import counted
from ...checkpoint.cgroup import remove
from ...checkpoint.store import ImageStore
from ...live.journal.store import DATABASE
from ...wire.holder import CONTROLLER_LOCK, held
from ...wire.state_files import open_own
from ..images import STORE
from .finding import BAD, NOTE, OK, Finding, Step
from .modes import roots

WORK = Path("images") / "work"
STEP = 500
"""Entries between two signs of progress."""
REPAIR = "tide doctor --repair removes them"
NAMED = 5
"""Jobs named in a text."""
_CHUNK = 500
"""Values in one SQL statement: SQLite takes 999 at least."""
_MARK = re.compile(rb"tidewright-([0-9a-f]{10})-(\d+)\.(\d+)\.")
_GROUP = re.compile(r"tidewright-(?P<tag>[0-9a-f]{10})-(?P<job>\d+)\.(?P<attempt>\d+)\.")
_RUN = re.compile(r"(?P<job>\d+)\.(?P<serial>\d+)")

Key = tuple[str, int, int]
"""Tag of an agent, job, attempt."""


@dataclass
class Leftovers:
    """Of one agent's directory, or of the hosts together. ``alive``: ranks that have a process."""

    layout: AgentLayout
    groups: list[Path] = field(default_factory=list)
    alive: dict[Key, list[int]] = field(default_factory=dict)


def check_leftovers(state: Path, running: bool, step: Step) -> list[Finding]:
    """What is left of each kind, agent by agent. ``running``: there is a controller."""
    try:
        ended(state, [0])
    except sqlite3.Error as error:
        text = f"not looked at: the journal, which knows the jobs that have ended, cannot be read: {error}"
        return [
            Finding(
                "leftovers", NOTE, text, "free some space where its disk is full; else see what is said of the journal"
            )
        ]
    folders = [AgentLayout(root) for root in roots(state)]
    groups = list(_groups({tag for layout in folders for tag in layout.tags}, step))
    alive = _alive(groups, step)
    found = []
    for layout in folders:
        node = "" if layout.root == state.absolute() else f"{layout.root.name}: "
        part = Leftovers(layout, [one for one in groups if _key(one)[0] in layout.tags], alive)
        used = running or held(layout.lock)
        found += [_of_groups(part, state, node, used), _of_ranks(part, state, node, used)]
        found += [_of_images(part, state, node, used, step)]
    return [one for one in found if one is not None] or [Finding("leftovers", OK, "nothing of jobs that have ended")]


def on_this_machine(state: Path) -> list[int] | None:
    """Jobs that have been started here and have not ended; None where the journal cannot be read."""
    started = {job for root in roots(state) for job, _ in _numbered(AgentLayout(root).ranks)}
    try:
        return sorted(started - ended(state, started))
    except sqlite3.Error:
        return None


def ended(state: Path, jobs: Iterable[int]) -> set[int]:
    """Those of these jobs that have ended, by the journal; none where there is none. Raises sqlite3.Error."""
    path, wanted = state / DATABASE, sorted(set(jobs))
    if not wanted or not path.exists():
        return set()
    try:
        return _ended(path, "mode=ro", wanted)
    except sqlite3.OperationalError:
        # On a full disk there is no room for the index of the write-ahead log; with an empty log none is needed.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise
        return _ended(path, "mode=ro&immutable=1", wanted)


def _ended(path: Path, how: str, wanted: list[int]) -> set[int]:
    found: set[int] = set()
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=2)) as db:
        for at in range(0, len(wanted), _CHUNK):
            part = wanted[at : at + _CHUNK]
            marks = ",".join("?" * len(part))
            found |= {row[0] for row in db.execute(f"SELECT job FROM ended WHERE job IN ({marks})", part)}
    return found


def _of_groups(part: Leftovers, state: Path, node: str, used: bool) -> Finding | None:
    keys = {group: _key(group) for group in part.groups}
    over = ended(state, [key[1] for key in keys.values()])
    gone = [group for group, key in keys.items() if key[1] in over or not part.layout.attempt(*key[1:]).exists()]
    busy = sorted({pid for group in gone for pid in part.alive.get(keys[group], ())})
    empty = [group for group in gone if keys[group] not in part.alive]
    if used or not gone:
        return None
    jobs = named(keys[group][1] for group in gone)
    if busy:
        pids = ", ".join(map(str, busy[:NAMED])) + (", …" if len(busy) > NAMED else "")
        text = f"{node}processes of {jobs} still run, though it ended or has no attempt here: pids {pids}"
        return Finding(
            "cgroups of jobs", BAD, text, "tide up has its agent look at them; else see what they are, and end them"
        )
    text = f"{node}{counted(len(empty), 'control group')} of {jobs} without a process"
    return Finding("cgroups of jobs", NOTE, text, REPAIR, partial(_remove_groups, part, empty, state))


def _of_ranks(part: Leftovers, state: Path, node: str, used: bool) -> Finding | None:
    folders = _numbered(part.layout.ranks)
    over = ended(state, [job for job, _ in folders])
    gone, tags = {key: path for key, path in folders.items() if key[0] in over}, part.layout.tags
    gone = {key: path for key, path in gone.items() if not any((tag, *key) in part.alive for tag in tags)}
    if not gone:
        return None
    jobs = named(job for job, _ in gone)
    if used:
        return Finding(
            "rank directories", OK, f"{node}{len(gone):,} of {jobs}, which ended; the agent that runs removes them"
        )
    text = f"{node}{len(gone):,} of {jobs}, which ended"
    mend = partial(_remove_folders, part, gone.values(), state)
    return Finding("rank directories", NOTE, text, REPAIR, mend, frees=True)


def _of_images(part: Leftovers, state: Path, node: str, used: bool, step: Step) -> Finding | None:
    raw = _numbered(part.layout.root / WORK)
    store = part.layout.root / STORE
    names = ImageStore(store).names() if store.is_dir() else []
    step("looking for images of jobs that have ended")
    over = ended(state, [*(job for job, _ in raw), *(name.job for name in names)])
    if not over:
        return None
    stored = [name for name in names if name.job in over]
    folders = [path for (job, _), path in raw.items() if job in over]
    jobs, many = named(over), counted(len(stored) + len(folders), "image")
    if used:
        return Finding("images of jobs", OK, f"{node}{many} of {jobs}, which ended; the agent that runs removes them")

    def drop() -> str:
        with _alone(part.layout, state):
            kept = ImageStore(store)
            for name in stored:
                kept.drop(name)
            for path in folders:
                shutil.rmtree(path)
            freed = kept.gc().bytes if stored else 0
        return f"removed {many} of {jobs} ({freed:,} bytes of the store freed); copies in a remote store stay"

    return Finding("images of jobs", NOTE, f"{node}{many} of {jobs}, which ended", REPAIR, drop, frees=True)


def _numbered(folder: Path) -> dict[tuple[int, int], Path]:
    """Directories that are named ``JOB.NUMBER``."""
    with contextlib.suppress(OSError):
        found = ((_RUN.fullmatch(entry.name), entry) for entry in sorted(folder.iterdir()))
        return {
            (int(match["job"]), int(match["serial"])): path for match, path in found if match and not path.is_symlink()
        }
    return {}


def named(jobs: Iterable[int]) -> str:
    numbers = sorted(set(jobs))
    more = ", …" if len(numbers) > NAMED else ""
    return f"job{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:NAMED]))}{more}"


@contextlib.contextmanager
def _alone(layout: AgentLayout, state: Path) -> Iterator[None]:
    """Hold the locks of the controller and of the agent: neither starts meanwhile. Raises UsageError when one runs."""
    with contextlib.ExitStack() as stack:
        for lock in (state / CONTROLLER_LOCK, layout.lock):
            file = open_own(lock, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{lock} is held: a controller or agent runs", "tide down first") from None
        yield


def _remove_groups(part: Leftovers, groups: list[Path], state: Path) -> str:
    with _alone(part.layout, state):
        left = [group for group in groups if not _removed(group)]
    done = f"removed {counted(len(groups) - len(left), 'control group')}"
    return f"{done}; {len(left)} could not be removed, {left[0]} for one" if left else done


def _removed(group: Path) -> bool:
    """The groups below it go first: a program may have made some."""
    return all(remove((path,)) for path, _, _ in os.walk(group, topdown=False))


def _remove_folders(part: Leftovers, folders: Iterable[Path], state: Path) -> str:
    listed = list(folders)
    with _alone(part.layout, state):
        for path in listed:
            shutil.rmtree(path)
    return f"removed {', '.join(map(str, listed[:NAMED]))}{f' and {len(listed) - NAMED} more' * (len(listed) > NAMED)}"


def _groups(tags: set[str], step: Step) -> Iterator[Path]:
    """Control groups of the agents with these tags, wherever they stand in the kernel's trees."""
    trees = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mounts").read_text())
    number = 0
    for mount in dict.fromkeys(tree.mount for tree in trees):
        for path, names, _ in os.walk(mount):
            number += 1
            if number % STEP == 0:
                step(f"looking through control groups ({number})")
            mine = [name for name in names if (match := _GROUP.match(name)) and match["tag"] in tags]
            names[:] = [name for name in names if name not in mine]
            yield from (Path(path, name) for name in sorted(mine))


def _key(group: Path) -> Key:
    match = _GROUP.match(group.name)
    assert match is not None
    return match["tag"], int(match["job"]), int(match["attempt"])


def _alive(groups: list[Path], step: Step) -> dict[Key, list[int]]:
    """Ranks that have processes: by their groups, and by the mark in the environment or on the command line."""
    found: dict[Key, list[int]] = {}
    for group in groups:
        for path, _, _ in os.walk(group):
            with contextlib.suppress(OSError):
                for pid in (Path(path) / "cgroup.procs").read_text().split():
                    found.setdefault(_key(group), []).append(int(pid))
    for number, process in enumerate(_processes()):
        if number % STEP == 0:
            step(f"looking through processes ({number})")
        for tag, job, attempt in _marks(process):
            found.setdefault((tag, job, attempt), []).append(int(process.name))
    return found


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdecimal())


def _marks(process: Path) -> set[Key]:
    found: set[Key] = set()
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            for tag, job, attempt in _MARK.findall((process / name).read_bytes()):
                found.add((tag.decode(), int(job), int(attempt)))
    return found
