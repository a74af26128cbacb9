"""Disks that end a life at a chosen side effect, as kill -9 does, or as a power cut that forgets what was not flushed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidewright.checkpoint.store.disk import Chunk, Disk


class Crash(BaseException):
    """The life ends here. Not an Exception: nothing that tidies up after mistakes survives this."""


class MortalDisk(Disk):
    """Ends at the ``at``-th effect (0: never), right before it or right ``after`` it, and does nothing from then on."""

    def __init__(self, at: int = 0, after: bool = False) -> None:
        self._at, self._after, self.effects, self.dead = at, after, 0, False

    def _effect(self, work: Callable[..., Any], *args: Any) -> Any:
        if self.dead:
            raise Crash
        self.effects += 1
        mine = self.effects == self._at
        if mine and not self._after:
            self.dead = True
            raise Crash
        result = work(*args)
        if mine:
            self.dead = True
            raise Crash
        return result

    def create(self, path: Path) -> int:
        return int(self._effect(super().create, path))

    def write(self, file: int, data: Chunk) -> None:
        half = len(data) // 2
        self._effect(super().write, file, data[:half])
        self._effect(super().write, file, data[half:])

    def sync(self, file: int) -> None:
        self._effect(lambda: None)  # the machine itself does not die here, so nothing need be flushed

    def rename(self, draft: Path, final: Path) -> None:
        self._effect(super().rename, draft, final)

    def link(self, draft: Path, final: Path) -> None:
        self._effect(super().link, draft, final)

    def sync_directory(self, path: Path) -> None:
        self._effect(lambda: None)

    def remove(self, path: Path) -> None:
        self._effect(super().remove, path)

    def make_directory(self, path: Path, below: Path | None = None) -> None:
        self._effect(super().make_directory, path, below)


class ForgetfulDisk(MortalDisk):
    """``power_cut`` undoes, at random, names that were given or taken and content that was written but not flushed."""

    def __init__(self, at: int = 0, after: bool = False) -> None:
        super().__init__(at, after)
        self._unflushed: set[int] = set()
        self._names: list[tuple[Path, int | None, int | None]] = []
        """(path, what it named before, what it names now), as open descriptors, oldest first."""

    def create(self, path: Path) -> int:
        file = super().create(path)
        self._unflushed.add(os.fstat(file).st_ino)
        return file

    def sync(self, file: int) -> None:
        super().sync(file)
        self._unflushed.discard(os.fstat(file).st_ino)

    def rename(self, draft: Path, final: Path) -> None:
        before, now = _hold(final), _hold(draft)
        super().rename(draft, final)
        self._names.append((final, before, now))

    def link(self, draft: Path, final: Path) -> None:
        before, now = _hold(final), _hold(draft)
        super().link(draft, final)
        if before is None:
            self._names.append((final, before, now))

    def remove(self, path: Path) -> None:
        before = _hold(path)
        super().remove(path)
        if before is not None:
            self._names.append((path, before, None))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._names = [one for one in self._names if one[0].parent != path]

    def power_cut(self, root: Path, rng: random.Random) -> None:
        """What is found after the machine has started again."""
        for path, before, _ in reversed(self._names):
            if rng.random() < 0.5:
                path.unlink(missing_ok=True)
                if before is not None:
                    os.lseek(before, 0, os.SEEK_SET)
                    path.write_bytes(os.read(before, 2**30))
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._unflushed:
                os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _hold(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
