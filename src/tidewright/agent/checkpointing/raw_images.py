"""Rank images as CRIU left them: quick to come back from, and big."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from ...base.paths import make_below
from ...checkpoint.files.space import in_plain, require

FACTS = ".facts"


def image_of(job: int, serial: int) -> str:
    """How an image is called in messages."""
    return f"image {serial} of job {job}"


class RawImages:
    """Those below ``work``: a directory per job and serial, in it one per rank, and what is known of that beside it."""

    def __init__(self, work: Path) -> None:
        self._work = work
        make_below(work.parent.parent, work)

    def raw(self, job: int, serial: int) -> Path:
        """Where the rank images of one serial lie as CRIU left them."""
        return self._work / f"{job}.{serial}"

    def begin(self, job: int, serial: int, need_bytes: int = 0) -> Path:
        """An empty directory to dump into. Raises FileSystemFull when so much does not fit; nothing is there then."""
        directory = self.raw(job, serial)
        shutil.rmtree(directory, ignore_errors=True)
        require(self._work, need_bytes, image_of(job, serial))
        directory.mkdir(mode=0o700)
        return directory

    def in_plain(self, error: Exception, job: int, serial: int) -> Exception:
        """The failure of a dump: of a full disk CRIU speaks in its own words, which say neither which nor what to do."""
        return in_plain(error, self._work, image_of(job, serial))

    def note(self, job: int, serial: int, rank: int, facts: dict[str, Any]) -> None:
        """Keep what the agent knows of a rank's image beside it; from now on it is complete."""
        path = self.raw(job, serial) / f"{rank}{FACTS}"
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(facts))
        draft.rename(path)

    def facts(self, job: int, serial: int, rank: int) -> dict[str, Any] | None:
        """What was noted; None when there is no complete raw image."""
        try:
            found: dict[str, Any] = json.loads((self.raw(job, serial) / f"{rank}{FACTS}").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def has_raw(self, job: int, serial: int, rank: int) -> bool:
        """Whether a rank's raw image is here, whole."""
        return self.facts(job, serial, rank) is not None and (self.raw(job, serial) / str(rank)).is_dir()

    def discard_raw(self, job: int, serial: int) -> None:
        """Remove raw images; what is in the store stays."""
        shutil.rmtree(self.set_aside(job, serial), ignore_errors=True)

    def set_aside(self, job: int, serial: int) -> Path:
        """Raw images are no more, but for the room that they take where they lie now."""
        directory = self.raw(job, serial)
        gone = directory.with_name(f".{directory.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)  # an agent was killed while it removed that
        with contextlib.suppress(FileNotFoundError):
            directory.rename(gone)
        return gone

    def serials(self, job: int) -> set[int]:
        """Serials of which anything is here, whole or not."""
        names = (
            path.name.strip(".").split(".") for pattern in ("", ".") for path in self._work.glob(f"{pattern}{job}.*")
        )
        return {int(name[1]) for name in names if len(name) > 1 and name[1].isdecimal()}

    def forget_ranks(self, job: int, serial: int, ranks: list[int]) -> None:
        """Remove what is here of these ranks, drafts of copies included; and the directory, if nothing is left in it."""
        directory = self.raw(job, serial)
        for rank in ranks:
            for path in (directory / f"{rank}{FACTS}", directory / str(rank), *directory.glob(f".{rank}.*")):
                remove_whatever(path)
        with contextlib.suppress(OSError):
            directory.rmdir()

    def sweep_raw(self) -> None:
        """Remove halves that an agent which was killed left: whole images, and parts of them beside whole ones."""
        for path in self._work.iterdir():
            if path.name.startswith(".") or not any(path.glob(f"*{FACTS}")):
                remove_whatever(path)
                continue
            for part in path.iterdir():
                rank = part.name.removesuffix(FACTS)
                if not (path / rank).is_dir() or not (path / f"{rank}{FACTS}").is_file():
                    remove_whatever(part)


def remove_whatever(path: Path) -> None:
    """Remove a directory or a file; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def inside(root: Path, relative: str) -> Path:
    """``relative`` below ``root``. Raises WorldError for a name that leads elsewhere."""
    path = Path(os.path.normpath(root / relative))
    if root not in path.parents:
        raise WorldError(f"{relative!r} is not a file of an image")
    return path
