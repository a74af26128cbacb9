"""One tenant's part of the store as it is on disk now: its key, its packs, where each page is, its manifests.

Other processes add and remove packs too, so each user lists the directory again; what has not changed is not read again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from ...base.errors import WorldError
from .disk import Disk, spoiled, write_whole
from .index import NO_HASHES, Runs, Values
from .keys import Hashes, TenantKey
from .manifest import BadManifest, ImageManifest, decode, load
from .names import BAD, IMAGES, INDEX, PACK, PACKS, ImageName, parse_image
from .pack import BadIndex, PackIndex
from .pack import decode as decode_index
from .shifted_dedup import RecentAnchors

_SHIFT = 32
"""A page's place is one number: the pack's number above these bits, the page's within the pack below."""


class PackView:
    """What the tenant's store holds at one moment. Never changes; pages in frames known to be bad are not in it."""

    def __init__(self, packs: tuple[PackIndex, ...], bad: dict[str, frozenset[int]], broken: dict[str, str]) -> None:
        self.packs, self.bad, self.broken = packs, bad, broken
        self.runs = Runs()

    def plus(self, new: list[PackIndex]) -> PackView:
        """This view with more packs."""
        view = PackView((*self.packs, *new), self.bad, self.broken)
        runs = self.runs
        for number, pack in enumerate(new, len(self.packs)):
            places = np.arange(len(pack.hashes), dtype=np.int64) + (number << _SHIFT)
            good = np.ones(len(places), dtype=bool)
            for frame in self.bad_in(pack):
                row = pack.frames[frame]
                good[int(row["first"]) : int(row["first"]) + int(row["count"])] = False
            runs = runs.plus(pack.hashes[good], places[good])
        view.runs = runs
        return view

    def split(self, places: Values) -> tuple[Values, Values]:
        """Pack numbers and page ordinals of places."""
        return places >> _SHIFT, places & ((1 << _SHIFT) - 1)

    def lost_in(self, pack: PackIndex) -> Hashes:
        """Hashes of the pages in a pack's bad frames."""
        return pack.pages_of(self.bad_in(pack))

    def bad_in(self, pack: PackIndex) -> list[int]:
        """Numbers of a pack's bad frames."""
        return sorted(frame for frame in self.bad.get(pack.id, ()) if 0 <= frame < len(pack.frames))


class Foreign:
    """Indexes of packs in other stores, which never change: the last ones read need not travel again."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._kept: dict[str, PackIndex] = {}
        self._guard = threading.Lock()

    def get(self, id_: str, read: Callable[[], bytes], key: TenantKey) -> PackIndex:
        """The index called ``id_``; its content is ``read()``. Raises BadIndex."""
        with self._guard:
            found = self._kept.get(id_)
        if found is None:
            found = decode_index(id_, read(), key)
            with self._guard:
                self._kept[id_] = found
                while len(self._kept) > self._most:
                    del self._kept[next(iter(self._kept))]
        return found


class TenantStore:
    """``key`` is the tenant's. All methods may be called from several threads."""

    def __init__(self, root: Path, tenant: str, key: TenantKey, drafts: Path, disk: Disk) -> None:
        self.tenant, self.key, self.drafts, self.disk = tenant, key, drafts, disk
        self.images, self.packs = root / IMAGES, root / PACKS
        for path in (self.images, self.packs):
            if not path.is_dir():
                disk.make_directory(path, below=root.parent)
        self.foreign = Foreign()
        self.latest = RecentAnchors()
        self._guard = threading.Lock()
        self._view = PackView((), {}, {})
        self._seen: frozenset[tuple[str, int, int]] = frozenset()

    # packs

    def view(self) -> PackView:
        """What is there now; the caller holds the store's lock."""
        with self._guard:
            seen, names = self._look()
            if seen != self._seen:
                self._view = self._reload(names)
                self._seen = seen
            return self._view

    def _look(self) -> tuple[frozenset[tuple[str, int, int]], list[str]]:
        """What identifies the present state: names of packs and indexes, which never change, and which files those of bad
        frames are, and of packs that could not be used: a sound copy takes their place under the same name."""
        names, marks = [], []
        for path in sorted(self.packs.iterdir()):
            if path.suffix == INDEX:
                names.append(path.stem)
            if path.suffix in (INDEX, PACK) and path.stem not in self._view.broken:
                marks.append((path.name, 0, 0))
            elif path.suffix in (INDEX, PACK, BAD):
                with contextlib.suppress(FileNotFoundError):
                    facts = path.stat()
                    marks.append((path.name, facts.st_ino, facts.st_ctime_ns))
        return frozenset(marks), names

    def _reload(self, names: list[str]) -> PackView:
        bad = {name: self.bad_frames(name) for name in names}
        bad = {name: frames for name, frames in bad.items() if frames}
        known = {pack.id: pack for pack in self._view.packs if self.pack_path(pack.id).is_file()}
        grown = (
            len(known) == len(self._view.packs)
            and known.keys() <= set(names)
            and bad == self._view.bad
            and not self._view.broken
        )
        packs, broken = [], {}
        for name in names:
            if name in known and grown:
                continue
            try:
                packs.append(known.get(name) or self.index(name))
            except BadIndex as error:
                broken[name] = str(error)
            except OSError as error:
                if not spoiled(error):
                    raise
                broken[name] = f"it cannot be read: {error.strerror}"
        if grown:
            view = PackView(self._view.packs, bad, broken)
            view.runs = self._view.runs
            return view.plus(packs)
        return PackView((), bad, broken).plus(packs)

    def index(self, id_: str) -> PackIndex:
        """Read an index. Raises BadIndex and OSError."""
        if not self.pack_path(id_).is_file():
            raise BadIndex("its pack is missing")
        return decode_index(id_, (self.packs / f"{id_}{INDEX}").read_bytes(), self.key)

    def bad_frames(self, id_: str) -> frozenset[int]:
        """Frames of a pack that were found damaged."""
        try:
            return msgspec.json.decode((self.packs / f"{id_}{BAD}").read_bytes(), type=frozenset[int])
        except (OSError, msgspec.MsgspecError):
            return frozenset()

    def mark_bad(self, id_: str, frames: frozenset[int]) -> None:
        """Remember damage: the pages are stored anew when next seen, which also heals the images that lost them."""
        with self._guard:
            known = self.bad_frames(id_)
            if frames - known:
                text = msgspec.json.encode(sorted(frames | known))
                write_whole(self.disk, self.drafts, self.packs / f"{id_}{BAD}", [text])

    def forgive(self, id_: str) -> None:
        """A pack is sound after all, or a sound copy has taken its place."""
        with self._guard:
            self.disk.remove(self.packs / f"{id_}{BAD}")

    def unreadable_file(self) -> PermissionError | None:
        """A reason of damage that an operator can undo: a file is there and may not be read."""
        path = next((path for path in self.packs.iterdir() if path.exists() and not os.access(path, os.R_OK)), None)
        return PermissionError(f"{path} may not be read") if path is not None else None

    def pack_path(self, id_: str) -> Path:
        """A pack's file."""
        return self.packs / f"{id_}{PACK}"

    # manifests

    def names(self) -> list[ImageName]:
        """All images, in order."""
        found = (parse_image(self.tenant, path.name) for path in self.images.iterdir())
        return sorted(name for name in found if name is not None)

    def manifest_path(self, name: ImageName) -> Path:
        """An image's manifest."""
        return self.images / name.file

    def manifest(self, name: ImageName) -> ImageManifest:
        """Read and check a manifest. Raises BadManifest and FileNotFoundError."""
        found = decode(load(self.manifest_path(name)), self.key)
        if found.header.name != name:
            raise BadManifest(f"its manifest is that of {found.header.name}")
        return found

    def manifests(self) -> Iterator[tuple[ImageName, ImageManifest | WorldError]]:
        """Every image with its manifest, or what is wrong with it."""
        for name in self.names():
            try:
                yield name, self.manifest(name)
            except BadManifest as error:
                yield name, error
            except FileNotFoundError:
                continue

    def users(self, lost: Hashes) -> list[ImageName]:
        """Images that need any of these pages."""
        if not len(lost):
            return []
        wanted = Runs().plus(lost)
        return [
            name
            for name, found in self.manifests()
            if isinstance(found, ImageManifest) and wanted.knows(found.hashes).any()
        ]

    def marked(self) -> tuple[Runs, list[ImageName]]:
        """Pages that any image needs, and the images whose manifest cannot be read."""
        parts, unreadable = [NO_HASHES], []
        for name, found in self.manifests():
            if isinstance(found, ImageManifest):
                parts.append(found.hashes)
            else:
                unreadable.append(name)
        return Runs().plus(np.unique(np.vstack(parts), axis=0)), unreadable
