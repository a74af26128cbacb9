"""The files of a stopped rank: which it has open or mapped, and copies of those it writes, so that they can be put back.

A copy is taken of every file that the rank writes to, up to a limit in all; larger ones are recorded only, and then the
rank can be restored only where they are. Small files of the rank directory are copied also when they are only read. What
processes of others write to as well is recorded only, too.
Reads /proc of processes that stand still.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..host_features import fingerprint
from ..processes import PROC
from .file_rollback import GONE, OURS
from .shared import Identity, Known, Others, fdinfo, refuse_locked, writes

COPY_LIMIT = 2**30
"""Bytes of files that are copied into one rank's image."""
INSIDE = "/run/tidewright/"
RANK = f"{INSIDE}rank"
BOX_LIMIT = 2**20
"""Largest file of the rank directory that is not open and travels all the same (progress, complaints)."""
LEFT = (f"{RANK}/reach.json",)
"""Files of the rank directory that the agent writes anew on each node: one that the rank has open is left as it is there, like
any file of others."""
CHUNK = 1 << 20

Entry = dict[str, Any]


class Seen(NamedTuple):
    """A file seen through a process: how it is reached now (``via``), and what the rank does with it."""

    path: str
    via: Path
    writes: bool
    mapped: bool


def _is_there(pid: int, path: str, inode: int) -> bool:
    try:
        return os.stat(f"{PROC / str(pid) / 'root'}{path}").st_ino == inode
    except OSError:
        return False


def seen(pid: int) -> Iterator[Seen]:
    """What a process has open or mapped. Deleted files are no concern of ours: CRIU keeps those itself."""
    for entry in (PROC / str(pid) / "fd").iterdir():
        path = os.readlink(entry)
        if path.startswith("/") and not path.endswith(GONE):
            yield Seen(path, entry, writes(fdinfo(pid, entry.name)), mapped=False)
    for line in (PROC / str(pid) / "maps").read_text().splitlines():
        addresses, modes, _, _, inode, *rest = line.split(maxsplit=5)
        path = rest[0] if rest else ""
        gone = path.endswith(GONE) and not (path.startswith(SHM) and _is_there(pid, path, int(inode)))
        if inode != "0" and path.startswith("/") and not gone:
            low, high = (int(part, 16) for part in addresses.split("-"))  # map_files has no leading zeros
            via = PROC / str(pid) / "map_files" / f"{low:x}-{high:x}"
            yield Seen(path, via, writes=modes[1] == "w" and modes[3] == "s", mapped=True)


SHM = "/dev/shm/"


def named_again(pids: Iterable[int], init: int) -> list[Path]:
    """Give mapped files in shared memory names by which CRIU finds them; those made, as seen from here.

    A named semaphore is created under a name that is taken away at once (sem_open(3)), and lives on by another. CRIU
    looks for it under the first, as the kernel shows it: with the remark that it is gone.
    """
    made: list[Path] = []
    folder = Path(f"{PROC / str(init) / 'root'}{SHM}")
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "maps").read_text().splitlines():
                if SHM in line and line.endswith(GONE):
                    fields = line.split(maxsplit=5)
                    name = folder / fields[5].removeprefix(SHM)
                    others = alike(folder, int(fields[4]))
                    if others and not os.path.lexists(name):
                        os.link(others[0], name)
                        made.append(name)
    return made


def alike(folder: Path, inode: int) -> list[Path]:
    """Names of a file in its directory, sorted."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.inode() == inode)


def standing(pid: int) -> Iterator[str]:
    """Directories that a process stands in."""
    yield os.readlink(PROC / str(pid) / "cwd")


class Capture:
    """Takes down the files of one rank into ``directory`` (its image). Without ``others`` every file is its own."""

    def __init__(self, directory: Path, limit: int = COPY_LIMIT, others: Others | None = None) -> None:
        self._directory, self._left, self._others = directory, limit, others
        self.files: dict[str, Entry] = {}
        self.maps: dict[str, Entry] = {}
        self.dirs: dict[str, Entry] = {}
        self.rank_dir: list[Entry] = []
        self._copies = 0
        self._root = Path("/")
        self._shared: set[Identity] = set()

    def take(self, pids: Sequence[int], init: int) -> dict[str, Any]:
        """Everything about the files of these processes, for ``meta.json``.

        Raises OSError (a full disk), and BeingWritten for a rank that is in the middle of writing to a shared file.
        """
        root = self._root = PROC / str(init) / "root"
        found = [each for pid in pids for each in self._merged(pid)]
        if self._others is not None:
            self._shared = self._others.write_to(_may_be_shared(found))
            refuse_locked(pids, self._shared)
        for pid in pids:
            for path in standing(pid):
                self._directory_entry(path, root)
        for each in found:
            self._entry(each, root)
        self._rest_of_rank_dir(root)
        written = {path for path, entry in self.files.items() if entry["writes"]}
        return {
            "files": list(self.files.values()),
            "maps": [entry for path, entry in self.maps.items() if path not in written],
            "dirs": list(self.dirs.values()),
            "box": self.rank_dir,
        }

    def _merged(self, pid: int) -> list[Seen]:
        """What a process has open or writes to, each file once; what it has mapped to read is taken down here."""
        merged: dict[str, Seen] = {}
        for each in seen(pid):
            if each.mapped and not each.writes:
                self._mapped(each)
                continue
            before = merged.get(each.path)
            if before is None or (each.writes and (not before.writes or each.mapped)):
                merged[each.path] = each
        return list(merged.values())

    def _entry(self, each: Seen, root: Path) -> None:
        if each.path.startswith("/proc/") or (each.path in self.files and not each.writes):
            return
        now = os.stat(each.via)
        if stat.S_ISDIR(now.st_mode):
            self._directory_entry(each.path, root)
        if not stat.S_ISREG(now.st_mode):
            return
        if each.path not in self.files or not self.files[each.path]["writes"]:
            self.files[each.path] = self._record(each, now)

    def _record(self, each: Seen, now: os.stat_result) -> Entry:
        shared = each.path in LEFT or (now.st_dev, now.st_ino) in self._shared
        copied = each.writes or (each.path.startswith(f"{RANK}/") and now.st_size <= BOX_LIMIT)
        return {
            "path": each.path,
            "size": now.st_size,
            "mode": stat.S_IMODE(now.st_mode),
            "uid": now.st_uid,
            "gid": now.st_gid,
            "identity": [now.st_dev, now.st_ino],
            "mtime": now.st_mtime_ns,
            "writes": each.writes,
            "mapped": each.mapped,
            "shared": shared,
            "copy": self._copy(each.via, now.st_size) if copied and not shared else "",
            "links": self._links(each, now),
        }

    def _links(self, each: Seen, now: os.stat_result) -> list[str]:
        """Other names of a file in shared memory, by which other processes may open it later."""
        if now.st_nlink < 2 or not each.path.startswith(SHM):
            return []
        names = [path.name for path in alike(Path(f"{self._root}{SHM}"), now.st_ino)]
        return [f"{SHM}{name}" for name in names if f"{SHM}{name}" != each.path]

    def _copy(self, via: Path, size: int) -> str:
        """Copy the first ``size`` bytes; where to. Empty when that would be more than the limit."""
        if size > self._left:
            return ""
        self._left -= size
        name = f"files/{self._copies}"
        self._copies += 1
        (self._directory / "files").mkdir(exist_ok=True)
        with open(via, "rb") as source, open(self._directory / name, "wb") as target:
            left = size
            while left and (piece := source.read(min(CHUNK, left))):
                if piece.strip(b"\0"):
                    target.write(piece)
                else:  # a log whose middle was removed
                    target.seek(len(piece), os.SEEK_CUR)
                left -= len(piece)
            target.truncate()
        return name

    def _mapped(self, each: Seen) -> None:
        if each.path in self.maps:
            return
        handle = os.open(each.via, os.O_RDONLY)
        try:
            now = os.fstat(handle)
            if stat.S_ISREG(now.st_mode):
                self.maps[each.path] = {"path": each.path, "size": now.st_size, "print": fingerprint(handle)}
        finally:
            os.close(handle)

    def _directory_entry(self, path: str, root: Path) -> None:
        if path in self.dirs or path.endswith(" (deleted)"):
            return
        now = os.stat(f"{root}{path}")
        self.dirs[path] = {"path": path, "mode": stat.S_IMODE(now.st_mode), "uid": now.st_uid, "gid": now.st_gid}

    def _rest_of_rank_dir(self, root: Path) -> None:
        for folder, _, names in os.walk(f"{root}{RANK}"):
            for name in names:
                via = Path(folder, name)
                path = str(via)[len(str(root)) :]
                now = via.lstat()
                if path in self.files or path in LEFT or not stat.S_ISREG(now.st_mode) or now.st_size > BOX_LIMIT:
                    continue
                self.rank_dir.append(self._record(Seen(path, via, writes=True, mapped=False), now))


def _may_be_shared(found: Iterable[Seen]) -> set[Known]:
    """Regular files that are written to and not the rank's own memory or directory."""
    mine = [(each.path, os.stat(each.via)) for each in found if each.writes and not each.path.startswith(OURS)]
    return {((now.st_dev, now.st_ino), path) for path, now in mine if stat.S_ISREG(now.st_mode)}


def mapped_differences(maps: Iterable[Entry]) -> list[str]:
    """Mapped files (libraries, data) that are not here or not the same; sentences."""
    return [difference for entry in maps if (difference := _mapped_difference(entry))]


def _mapped_difference(entry: Entry) -> str:
    path = entry["path"]
    if path.startswith(INSIDE):
        return ""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path}: {error.strerror}"
    try:
        if (size := os.fstat(handle).st_size) != entry["size"]:
            return f"{path} has {size} bytes, had {entry['size']}"
        return "" if fingerprint(handle) == entry["print"] else f"{path} is another version"
    finally:
        os.close(handle)
