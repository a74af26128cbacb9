"""The id of an agent's state directory, by which its control groups and processes differ from those of any other.

It is drawn once and kept in a file. A path would not do: a directory of the same path that is made later begins with job 1 again,
while ranks of the earlier one, which was renamed or removed, run on in groups of those names. A copied directory draws another.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from pathlib import Path

import msgspec

from ..base.atomic import write_atomically
from ..base.paths import matching
from ..launch.environment import MARK

log = logging.getLogger(__name__)
NAME = "agent.id"
EPOCH = "agent.epoch"
"""Written when a controller first speaks to the agent: a directory that has it has been in use."""


class DirectoryId(msgspec.Struct, frozen=True):
    """``tag`` is in the names of what is made from now on, ``earlier`` are in names of what was made here before."""

    tag: str
    earlier: tuple[str, ...] = ()
    device: int = 0
    inode: int = 0

    @property
    def tags(self) -> tuple[str, ...]:
        return self.tag, *self.earlier


class _Spec(msgspec.Struct, frozen=True):
    env: dict[str, str]


def read_id(root: Path) -> DirectoryId:
    """That of a directory, for one who only looks. Where none was drawn, an agent of an earlier version may run there."""
    return _kept(root) or DirectoryId(_of_path(root))


def draw_id(root: Path) -> DirectoryId:
    """That of a directory, drawn if it has none yet, or if it was copied from another. The caller alone uses the directory."""
    found, kept = os.stat(root), _kept(root)
    if kept is not None and (kept.device, kept.inode) == (found.st_dev, found.st_ino):
        return kept
    used = kept is None and (root / EPOCH).exists()
    earlier = _borne(root / "ranks") | ({_of_path(root)} if used else set())
    drawn = DirectoryId(secrets.token_hex(5), tuple(sorted(earlier)), found.st_dev, found.st_ino)
    try:
        write_atomically(root / NAME, msgspec.json.encode(drawn), durable=True)
    except OSError as error:  # on a full disk: the next agent finds it in the records of the ranks that bear it
        log.warning("%s is not kept: %s", root / NAME, error.strerror)
    return drawn


def _kept(root: Path) -> DirectoryId | None:
    try:
        return msgspec.json.decode((root / NAME).read_bytes(), type=DirectoryId)
    except (OSError, msgspec.MsgspecError):
        return None


def _of_path(root: Path) -> str:
    """What earlier versions had in the names."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:10]


def _borne(ranks: Path) -> set[str]:
    """The tags of ranks whose records are here."""
    found = set()
    for path in matching(ranks, "[0-9]*.*/*/spec.json"):
        try:
            mark = msgspec.json.decode(path.read_bytes(), type=_Spec).env.get(MARK, "")
        except (OSError, msgspec.MsgspecError):
            continue
        if len(parts := mark.split("-")) == 3:
            found.add(parts[1])
    return found
