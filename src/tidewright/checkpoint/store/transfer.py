"""Copies of images in remote stores: only packs with missing pages travel, and the manifest travels last.

Nothing is locked while the network is waited for. Packs that a collection removed meanwhile are looked for again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np
from msgspec import Struct

from ...base.errors import WorldError
from ...base.units import counted
from ..files.space import require
from .disk import draft_name, spoiled, write_whole
from .errors import ImageDamaged, ImageMissing
from .index import Runs, Values
from .keys import Hashes, TenantKey, encode_key
from .manifest import BadManifest, ImageManifest
from .manifest import decode as decode_manifest
from .names import INDEX, KEYS, PACK, PACKS, ImageName, folder
from .pack import BadIndex, PackIndex, new_id, publish_pack
from .remote import Remote
from .remote_gc import marked
from .tenant_store import PackView, TenantStore

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


def _prefix(tenant_store: TenantStore) -> str:
    return f"{folder(tenant_store.tenant)}/{PACKS}/{tenant_store.key.id}-"


def _ids(remote: Remote, tenant_store: TenantStore) -> list[str]:
    """Packs of this key that are complete in the remote store."""
    names = [key.rpartition("/")[2] for key in remote.list(_prefix(tenant_store))]
    return sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))


class ImagePush:
    """One image on its way out."""

    def __init__(self, tenant_store: TenantStore, lock: Lock, name: ImageName, remote: Remote) -> None:
        self._tenant_store, self._lock, self._name, self._remote = tenant_store, lock, name, remote
        self._there = Runs()
        self._known: set[str] = set()
        self._going: set[str] = set()
        """Packs that are about to be removed from the remote store, or were: their names are not used again."""
        self._tally = _Tally(remote)

    def run(self) -> Moved:
        """Send what is missing. Raises ImageMissing, ImageDamaged and WorldError."""
        tenant_store, tally = self._tenant_store, self._tally
        manifest = self._manifest()
        if not self._remote.has([self._name.key]):
            self._pages(manifest)
            key = f"{folder(tenant_store.tenant)}/{KEYS}/{tenant_store.key.id}"
            if not self._remote.has([key]):
                tally.write(key, encode_key(tenant_store.key))
            tally.write(self._name.key, b"".join(manifest.encode(tenant_store.key)))
            for _ in range(_ATTEMPTS):
                if self._stays():
                    break
                self._there, self._known = Runs(), set()
                self._pages(manifest)
            else:
                raise WorldError(f"{self._name}: its pages are removed from the remote store while they are sent")
        return Moved(objects=tally.objects, bytes=tally.bytes, image_bytes=manifest.header.raw_bytes)

    def _pages(self, manifest: ImageManifest) -> None:
        for _ in range(_ATTEMPTS):
            if self._send(manifest.hashes):
                return
        raise ImageDamaged(str(self._name), "pages of it are not in the store")

    def _stays(self) -> bool:
        """Whether all packs that were counted on are there still, now that the image is visible to other nodes (remote_gc.py)."""
        going = marked(self._remote, _prefix(self._tenant_store))
        return self._known - going <= set(_ids(self._remote, self._tenant_store)) and not self._known & going

    def _manifest(self) -> ImageManifest:
        with self._lock():
            try:
                return self._tenant_store.manifest(self._name)
            except FileNotFoundError:
                raise ImageMissing(f"{self._name} is not in the store") from None
            except BadManifest as error:
                raise ImageDamaged(str(self._name), str(error)) from None

    def _send(self, hashes: Hashes) -> bool:
        """Send packs until every page is there; False when a page could not be found or read here."""
        with self._lock():
            view = self._tenant_store.view()
        self._learn(view)
        missing = hashes[~self._there.knows(hashes)]
        places = view.runs.find(missing)
        if (places < 0).any():
            return False
        return all(self._send_pack(view.packs[number]) for number in np.unique(view.split(places)[0]).tolist())

    def _learn(self, view: PackView) -> None:
        """Which pages are there already. Packs that are here too need not be asked for."""
        here = {pack.id: pack for pack in view.packs}
        self._going = marked(self._remote, _prefix(self._tenant_store))
        for id_ in _ids(self._remote, self._tenant_store):
            if id_ in self._known or id_ in self._going:
                continue
            pack = here.get(id_) or self._foreign(id_)
            self._known.add(id_)
            if pack is not None:
                self._there = self._there.plus(pack.hashes)

    def _foreign(self, id_: str) -> PackIndex | None:
        key = f"{folder(self._tenant_store.tenant)}/{PACKS}/{id_}{INDEX}"
        try:
            return self._tenant_store.foreign.get(id_, lambda: self._remote.read(key), self._tenant_store.key)
        except BadIndex:
            return None  # the pack is unusable without its index, so its pages count as missing

    def _send_pack(self, pack: PackIndex) -> bool:
        with self._lock():
            try:
                data = self._tenant_store.pack_path(pack.id).read_bytes()
            except FileNotFoundError:
                return False
            except OSError as error:
                if not spoiled(error):
                    raise
                data = b""
        if broken := broken_frames(self._tenant_store.key, pack, data):
            self._tenant_store.mark_bad(pack.id, broken)
            return False
        id_ = pack.id if pack.id not in self._going else new_id(self._tenant_store.key)
        path = f"{folder(self._tenant_store.tenant)}/{PACKS}/{id_}"
        self._tally.write(path + PACK, data)
        self._tally.write(path + INDEX, b"".join(pack.encode(self._tenant_store.key)))
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


class ImagePull:
    """One image on its way in. ``room(bytes)`` raises when the store may not grow by so many."""

    def __init__(
        self, tenant_store: TenantStore, lock: Lock, name: ImageName, remote: Remote, room: Callable[[int], None]
    ) -> None:
        self._tenant_store, self._lock, self._name, self._remote, self._room = tenant_store, lock, name, remote, room
        self._tally = _Tally(remote)
        self._useless: set[str] = set()
        self._unread: WorldError | None = None
        """Why a remote object could not be read; other packs may hold the same pages."""

    def run(self, data: bytes) -> Moved:
        """Fetch what is missing for the manifest in ``data``. Raises ImageDamaged and WorldError."""
        try:
            manifest = decode_manifest(data, self._tenant_store.key)
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

    def _publish(self, manifest: ImageManifest, data: bytes) -> bool:
        """Make the image ours, if all its pages are here."""
        tenant_store = self._tenant_store
        with self._lock():
            if not tenant_store.view().runs.knows(manifest.hashes).all():
                return False
            self._room(len(data))
            write_whole(tenant_store.disk, tenant_store.drafts, tenant_store.manifest_path(self._name), [data])
            return True

    def _fetch(self, hashes: Hashes) -> None:
        with self._lock():
            view = self._tenant_store.view()
        missing = hashes[~view.runs.knows(hashes)]
        here = {pack.id for pack in view.packs if pack.id not in view.bad}
        there = [id_ for id_ in _ids(self._remote, self._tenant_store) if id_ not in here | self._useless]
        chosen = self._choose(missing, there)
        require(self._tenant_store.packs, sum(pack.stored_bytes for pack in chosen), f"a copy of {self._name}")
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
            problem = f"{counted(len(open_), 'page')} of it not in that store, or damaged there"
            raise ImageDamaged(f"the remote copy of {self._name}", problem)
        return chosen

    def _index(self, id_: str) -> PackIndex | None:
        key = f"{folder(self._tenant_store.tenant)}/{PACKS}/{id_}{INDEX}"
        try:
            return self._tenant_store.foreign.get(id_, lambda: self._tally.read(key), self._tenant_store.key)
        except BadIndex:
            self._useless.add(id_)
        except WorldError as error:
            self._pass_over(id_, error)
        return None

    def _pass_over(self, id_: str, error: WorldError) -> None:
        """A remote object cannot be read. Raises ``error`` when it concerns more than that object."""
        cause = error.__cause__
        if cause is not None and not (isinstance(cause, OSError) and cause.errno in _OF_ONE_FILE):
            raise error
        self._useless.add(id_)
        self._unread = error

    def _take(self, pack: PackIndex) -> None:
        """Fetch one pack, check it and add it here; no manifest needs it yet, so gc may remove it again."""
        tenant_store = self._tenant_store
        try:
            data = self._tally.read(f"{folder(tenant_store.tenant)}/{PACKS}/{pack.id}{PACK}")
        except WorldError as error:
            self._pass_over(pack.id, error)
            return
        if broken_frames(tenant_store.key, pack, data):
            self._useless.add(pack.id)
            return
        with self._lock():
            self._room(pack.stored_bytes)
            draft = draft_name(tenant_store.drafts)
            write_whole(tenant_store.disk, tenant_store.drafts, draft, [data])
            publish_pack(
                tenant_store.disk,
                tenant_store.drafts,
                tenant_store.packs,
                draft,
                pack.id,
                pack.encode(tenant_store.key),
            )
            tenant_store.forgive(pack.id)


def _shared(pack: PackIndex, hashes: Hashes) -> int:
    return int(Runs().plus(pack.hashes).knows(hashes).sum())
