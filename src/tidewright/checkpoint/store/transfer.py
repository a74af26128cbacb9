"""Copies of images in stores elsewhere: only packs with missing pages travel, and the manifest travels last.

Nothing is locked while the network is waited for. Packs that a collection removed meanwhile are looked for again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np
from msgspec import Struct

from ...base.errors import WorldError
from ..space import require
from .away import marked
from .disk import draft_name, spoiled, write_whole
from .errors import ImageDamaged, ImageMissing
from .index import Runs, Values
from .keys import Hashes, TenantKey, encode_key
from .manifest import BadManifest, Manifest
from .manifest import decode as decode_manifest
from .names import INDEX, KEYS, PACK, PACKS, ImageName, folder
from .pack import BadIndex, PackIndex, new_id, publish_pack
from .remote import Remote
from .shelf import Shelf, View

_ATTEMPTS = 4
_OF_ONE_FILE = frozenset({errno.ENOENT, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM})
Lock = Callable[[], AbstractContextManager[None]]


class Moved(Struct, frozen=True, kw_only=True):
    """What a push or pull sent or fetched."""

    objects: int = 0
    bytes: int = 0
    image_bytes: int = 0
    """Size of the image as its rank had it."""


class _Tally:
    def __init__(self, remote: Remote) -> None:
        self._remote, self.objects, self.bytes = remote, 0, 0

    def write(self, key: str, data: bytes) -> None:
        self._remote.write(key, data)
        self._count(data)

    def read(self, key: str) -> bytes:
        data = self._remote.read(key)
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self.objects += 1
        self.bytes += len(data)


def _prefix(shelf: Shelf) -> str:
    return f"{folder(shelf.tenant)}/{PACKS}/{shelf.key.id}-"


def _ids(remote: Remote, shelf: Shelf) -> list[str]:
    """Packs of this key that are whole over there."""
    names = [key.rpartition("/")[2] for key in remote.list(_prefix(shelf))]
    return sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))


class Push:
    """One image on its way out."""

    def __init__(self, shelf: Shelf, lock: Lock, name: ImageName, remote: Remote) -> None:
        self._shelf, self._lock, self._name, self._remote = shelf, lock, name, remote
        self._there = Runs()
        self._known: set[str] = set()
        self._going: set[str] = set()
        """Packs that are about to be removed over there, or were: their names are used up."""
        self._tally = _Tally(remote)

    def run(self) -> Moved:
        """Send what is missing. Raises ImageMissing, ImageDamaged and WorldError."""
        shelf, tally = self._shelf, self._tally
        manifest = self._manifest()
        if not self._remote.has([self._name.key]):
            self._pages(manifest)
            key = f"{folder(shelf.tenant)}/{KEYS}/{shelf.key.id}"
            if not self._remote.has([key]):
                tally.write(key, encode_key(shelf.key))
            tally.write(self._name.key, b"".join(manifest.encode(shelf.key)))
            for _ in range(_ATTEMPTS):
                if self._stays():
                    break
                self._there, self._known = Runs(), set()
                self._pages(manifest)
            else:
                raise WorldError(f"{self._name}: its pages are removed over there while they are sent")
        return Moved(objects=tally.objects, bytes=tally.bytes, image_bytes=manifest.header.raw_bytes)

    def _pages(self, manifest: Manifest) -> None:
        for _ in range(_ATTEMPTS):
            if self._send(manifest.hashes):
                return
        raise ImageDamaged(str(self._name), "pages of it are not in the store")

    def _stays(self) -> bool:
        """Whether all packs that were counted on are there still, now that everybody can see the image (away.py)."""
        going = marked(self._remote, _prefix(self._shelf))
        return self._known - going <= set(_ids(self._remote, self._shelf)) and not self._known & going

    def _manifest(self) -> Manifest:
        with self._lock():
            try:
                return self._shelf.manifest(self._name)
            except FileNotFoundError:
                raise ImageMissing(f"{self._name} is not in the store") from None
            except BadManifest as error:
                raise ImageDamaged(str(self._name), str(error)) from None

    def _send(self, hashes: Hashes) -> bool:
        """Send packs until every page is there; False when a page could not be found or read here."""
        with self._lock():
            view = self._shelf.view()
        self._learn(view)
        missing = hashes[~self._there.knows(hashes)]
        places = view.runs.find(missing)
        if (places < 0).any():
            return False
        return all(self._send_pack(view.packs[number]) for number in np.unique(view.split(places)[0]).tolist())

    def _learn(self, view: View) -> None:
        """Which pages are there already. Packs that are here too need not be asked for."""
        here = {pack.id: pack for pack in view.packs}
        self._going = marked(self._remote, _prefix(self._shelf))
        for id_ in _ids(self._remote, self._shelf):
            if id_ in self._known or id_ in self._going:
                continue
            pack = here.get(id_) or self._foreign(id_)
            self._known.add(id_)
            if pack is not None:
                self._there = self._there.plus(pack.hashes)

    def _foreign(self, id_: str) -> PackIndex | None:
        key = f"{folder(self._shelf.tenant)}/{PACKS}/{id_}{INDEX}"
        try:
            return self._shelf.foreign.get(id_, lambda: self._remote.read(key), self._shelf.key)
        except BadIndex:
            return None  # nobody can use that pack, so its pages count as missing

    def _send_pack(self, pack: PackIndex) -> bool:
        with self._lock():
            try:
                data = self._shelf.pack_path(pack.id).read_bytes()
            except FileNotFoundError:
                return False
            except OSError as error:
                if not spoiled(error):
                    raise
                data = b""
        if broken := broken_frames(self._shelf.key, pack, data):
            self._shelf.mark_bad(pack.id, broken)
            return False
        id_ = pack.id if pack.id not in self._going else new_id(self._shelf.key)
        path = f"{folder(self._shelf.tenant)}/{PACKS}/{id_}"
        self._tally.write(path + PACK, data)
        self._tally.write(path + INDEX, b"".join(pack.encode(self._shelf.key)))
        self._there = self._there.plus(pack.hashes)
        self._known.add(id_)
        return True


def broken_frames(key: TenantKey, pack: PackIndex, data: bytes) -> frozenset[int]:
    """Frames of a pack's content that are not as they were written."""
    view = memoryview(data)
    broken = set()
    for at, row in enumerate(pack.frames):
        piece = view[int(row["offset"]) : int(row["offset"]) + int(row["size"])]
        if len(piece) < int(row["size"]) or key.frame(piece) != bytes(row["digest"]):
            broken.add(at)
    return frozenset(broken)


class Pull:
    """One image on its way in. ``room(bytes)`` raises when the store may not grow by so many."""

    def __init__(self, shelf: Shelf, lock: Lock, name: ImageName, remote: Remote, room: Callable[[int], None]) -> None:
        self._shelf, self._lock, self._name, self._remote, self._room = shelf, lock, name, remote, room
        self._tally = _Tally(remote)
        self._useless: set[str] = set()
        self._unread: WorldError | None = None
        """Why something over there could not be read; other packs may hold the same pages."""

    def run(self, data: bytes) -> Moved:
        """Fetch what is missing for the manifest in ``data``. Raises ImageDamaged and WorldError."""
        try:
            manifest = decode_manifest(data, self._shelf.key)
        except BadManifest as error:
            raise ImageDamaged(f"the remote copy of {self._name}", str(error)) from None
        if manifest.header.name != self._name:
            raise ImageDamaged(f"the remote copy of {self._name}", f"it is {manifest.header.name}")
        for _ in range(_ATTEMPTS):
            if self._publish(manifest, data):
                tally = self._tally
                return Moved(
                    objects=tally.objects + 1, bytes=tally.bytes + len(data), image_bytes=manifest.header.raw_bytes
                )
            self._fetch(manifest.hashes)
        raise WorldError(f"{self._name} could not be copied: its pages vanish while they are fetched")

    def _publish(self, manifest: Manifest, data: bytes) -> bool:
        """Make the image ours, if all its pages are here."""
        shelf = self._shelf
        with self._lock():
            if not shelf.view().runs.knows(manifest.hashes).all():
                return False
            self._room(len(data))
            write_whole(shelf.disk, shelf.drafts, shelf.manifest_path(self._name), [data])
            return True

    def _fetch(self, hashes: Hashes) -> None:
        with self._lock():
            view = self._shelf.view()
        missing = hashes[~view.runs.knows(hashes)]
        here = {pack.id for pack in view.packs if pack.id not in view.bad}
        there = [id_ for id_ in _ids(self._remote, self._shelf) if id_ not in here | self._useless]
        chosen = self._choose(missing, there)
        require(self._shelf.packs, sum(pack.stored_bytes for pack in chosen), f"a copy of {self._name}")
        for pack in chosen:
            self._take(pack)
            missing = missing[~Runs().plus(pack.hashes).knows(missing)]

    def _choose(self, missing: Hashes, ids: Iterable[str]) -> list[PackIndex]:
        """Packs that together hold the missing pages, those that hold most first."""
        packs = [pack for pack in map(self._index, ids) if pack is not None]
        chosen = []
        open_ = missing[np.unique(missing, axis=0, return_index=True)[1]] if len(missing) else missing
        gains = sorted(packs, key=lambda pack: -_shared(pack, open_))
        for pack in gains:
            if not len(open_):
                break
            held: Values = Runs().plus(pack.hashes).find(open_)
            if (held >= 0).any():
                chosen.append(pack)
                open_ = open_[held < 0]
        if len(open_) and self._unread is not None:
            raise self._unread
        if len(open_):
            problem = f"{len(open_)} pages of it are not in that store, or are damaged there"
            raise ImageDamaged(f"the remote copy of {self._name}", problem)
        return chosen

    def _index(self, id_: str) -> PackIndex | None:
        key = f"{folder(self._shelf.tenant)}/{PACKS}/{id_}{INDEX}"
        try:
            return self._shelf.foreign.get(id_, lambda: self._tally.read(key), self._shelf.key)
        except BadIndex:
            self._useless.add(id_)
        except WorldError as error:
            self._pass_over(id_, error)
        return None

    def _pass_over(self, id_: str, error: WorldError) -> None:
        """An object that cannot be read over there. Raises ``error`` when it is no word on that object alone."""
        cause = error.__cause__
        if cause is not None and not (isinstance(cause, OSError) and cause.errno in _OF_ONE_FILE):
            raise error
        self._useless.add(id_)
        self._unread = error

    def _take(self, pack: PackIndex) -> None:
        """Fetch one pack, check it and make it ours; nobody needs it yet, so it may vanish again."""
        shelf = self._shelf
        try:
            data = self._tally.read(f"{folder(shelf.tenant)}/{PACKS}/{pack.id}{PACK}")
        except WorldError as error:
            self._pass_over(pack.id, error)
            return
        if broken_frames(shelf.key, pack, data):
            self._useless.add(pack.id)
            return
        with self._lock():
            self._room(pack.stored_bytes)
            draft = draft_name(shelf.drafts)
            write_whole(shelf.disk, shelf.drafts, draft, [data])
            publish_pack(shelf.disk, shelf.drafts, shelf.packs, draft, pack.id, pack.encode(shelf.key))
            shelf.forgive(pack.id)


def _shared(pack: PackIndex, hashes: Hashes) -> int:
    return int(Runs().plus(pack.hashes).knows(hashes).sum())
