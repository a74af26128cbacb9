"""The content-addressed store of rank images: equal pages of a tenant are kept once, over ranks and over time.

Threads and processes may use one directory side by side. Whatever was published survives kill -9 at any moment;
whatever was not leaves only garbage, which ``gc`` removes. Layout: names.py; locking: lock.py; why: docs/why/store.md.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from ...base.errors import Conflict, UsageError, WorldError
from . import check, gc, remote_gc
from .check import IntegrityFinding
from .disk import Disk, scratch, size_below, write_whole
from .errors import ImageDamaged, ImageMissing
from .gc import Freed
from .ingest import ImageIngest
from .keys import Keys, TenantKey, decode_key
from .lock import StoreLock
from .manifest import BadManifest, Header, ImageManifest, key_of, read_header
from .names import INDEX, KEYS, PACKS, ImageName, folder, tenant_of
from .pack import PackWriter
from .quota import ImageEntry, PutReport, Room, room
from .remote import Erasable, Remote
from .restore_reader import Damage, materialise
from .served import Objects
from .tenant_store import TenantStore
from .transfer import ImagePull, ImagePush, Moved

P = ParamSpec("P")
T = TypeVar("T")


def _plainly(method: Callable[P, T]) -> Callable[P, T]:
    """Failures of the operating system as WorldError, which callers expect and retry."""

    @functools.wraps(method)
    def call(*args: P.args, **more: P.kwargs) -> T:
        try:
            return method(*args, **more)
        except OSError as error:
            raise WorldError(f"the image store failed: {error}") from error

    return call


class ImageStore:
    """A store in ``root``. ``quota_bytes`` 0: none. ``secret``, shared by the nodes of a cluster, makes tenants' keys
    equal on all of them, so that pulled images share pages with local ones without being packed anew."""

    def __init__(
        self, root: Path, *, quota_bytes: int = 0, secret: bytes = b"", disk: Disk | None = None,
        lock: StoreLock | None = None,
    ) -> None:  # fmt: skip
        self.root, self._quota = root, quota_bytes
        self._disk = disk or Disk()
        self._tenants, self._drafts, keys = root / "tenants", root / "tmp", root / "keys"
        for path in (root, self._tenants, self._drafts, keys):
            self._disk.make_directory(path, below=root if path != root else root.parent)
        self._lock = lock or StoreLock(root)
        self._keys = Keys(keys, self._drafts, self._disk, secret)
        self._tenant_stores: dict[str, TenantStore] = {}
        self._guard = threading.Lock()
        self.objects = Objects(self._tenants, self._keys)
        """What peers may read."""

    # one image

    @_plainly
    def put(self, name: ImageName, source: Path, *, meta: dict[str, Any] | None = None) -> PutReport:
        """Take in the directory ``source``; durable when this returns. ``meta`` (JSON) is kept with it.

        Raises Conflict when there is such an image, and StoreFull, which drops nothing.
        """
        began = time.monotonic_ns()
        if not source.is_dir():
            raise UsageError(f"{source} is not a directory", "give the directory of a rank's image")
        with self._lock.shared():
            tenant_store = self._tenant_store(name.tenant)
            if tenant_store.manifest_path(name).exists():
                raise Conflict(f"{name} is in the store already", "drop it first, or take the next serial")
            room = self._room(name)
            writer = PackWriter(self._disk, self._drafts, tenant_store.packs, tenant_store.key, room)
            try:
                report = self._take(tenant_store, name, source, meta or {}, writer, room)
            except BaseException:
                writer.abort()
                raise
        return msgspec.structs.replace(report, took_us=(time.monotonic_ns() - began) // 1000)

    def _take(
        self, tenant_store: TenantStore, name: ImageName, source: Path, meta: dict[str, Any], writer: PackWriter,
        room: Room,
    ) -> PutReport:  # fmt: skip
        ingest = ImageIngest(
            tenant_store.key, tenant_store.view().runs, writer, tenant_store.latest.get(name.job, name.serial)
        )
        ingest.run(source)
        packs = sum(pack.stored_bytes for pack in writer.publish())
        header = Header(
            name=name, key=tenant_store.key.id, made_us=time.time_ns() // 1000, raw_bytes=ingest.raw_bytes,
            new_bytes=ingest.new_bytes, stored_bytes=packs, files=tuple(ingest.files),
            directories=tuple(ingest.directories), meta=meta,
        )  # fmt: skip
        recipes = tuple(ingest.recipes)
        size = sum(map(len, ImageManifest(header, recipes).encode(tenant_store.key)))
        header = msgspec.structs.replace(header, stored_bytes=packs + size)
        room(size)
        content = ImageManifest(header, recipes).encode(tenant_store.key)
        write_whole(self._disk, self._drafts, tenant_store.manifest_path(name), content)
        tenant_store.latest.add(name.job, name.serial, ingest.anchor_hashes)
        return PutReport(
            raw_bytes=header.raw_bytes, new_bytes=header.new_bytes, stored_bytes=header.stored_bytes, took_us=0
        )

    @_plainly
    def get(self, name: ImageName, into: Path) -> None:
        """Write the image to ``into``, which appears whole or not at all; every byte is checked.

        Raises Conflict when ``into`` exists, ImageMissing, ImageDamaged and StoreFull (of the disk of ``into``).
        """
        if into.exists():
            raise Conflict(f"{into} exists", "move it away first")
        with self._lock.shared():
            tenant_store = self._tenant_store(name.tenant)
            manifest = self._manifest(tenant_store, name)
            first: Damage | None = None
            looked = False
            while True:
                try:
                    materialise(tenant_store, tenant_store.view(), manifest, into)
                    return
                except Damage as damage:
                    first = first or damage
                    if not damage.frames and not looked:
                        list(
                            check.packs(tenant_store, tenant_store.view(), manifest.hashes)
                        )  # all at once: a pull mends all
                        looked = True  # and once more: what could not be read before may have been made readable
                    elif not damage.frames:
                        raise self._damaged(tenant_store, name, first) from tenant_store.unreadable_file()
                    for pack, frame in damage.frames:  # another pack may hold the same pages: look again
                        tenant_store.mark_bad(pack, frozenset((frame,)))

    def _manifest(self, tenant_store: TenantStore, name: ImageName) -> ImageManifest:
        try:
            return tenant_store.manifest(name)
        except FileNotFoundError:
            raise ImageMissing(f"{name} is not in the store") from None
        except BadManifest as error:
            may_not = isinstance(error.__cause__, PermissionError)
            raise ImageDamaged(str(name), str(error)) from (error.__cause__ if may_not else None)

    def _damaged(self, tenant_store: TenantStore, name: ImageName, damage: Damage) -> ImageDamaged:
        lost = damage.lost[~tenant_store.view().runs.knows(damage.lost)]
        others = [f"{one.job}.{one.serial}.{one.rank}" for one in tenant_store.users(lost) if one != name]
        shared = f"; also lost by job.serial.rank {', '.join(others)}" if others else ""
        return ImageDamaged(str(name), damage.problem + shared)

    def has(self, name: ImageName) -> bool:
        """Whether there is such an image; it may be damaged."""
        return (self._tenants / name.key).exists()

    def whole(self, name: ImageName) -> bool:
        """Whether the image is here with all its pages, as far as the indexes show; reads no page."""
        try:
            with self._lock.shared():
                tenant_store = self._tenant_store(name.tenant)
                wanted = tenant_store.manifest(name).hashes
                return bool(tenant_store.view().runs.knows(wanted).all())
        except (WorldError, OSError):
            return False

    def meta(self, name: ImageName) -> dict[str, Any]:
        """What was given to ``put``. Raises ImageMissing and ImageDamaged."""
        with self._lock.shared():
            return self._manifest(self._tenant_store(name.tenant), name).header.meta

    @_plainly
    def drop(self, name: ImageName) -> None:
        """Forget an image; its pages go with the next ``gc``. Harmless when there is none."""
        with self._lock.shared():
            path = self._tenants / name.key
            if path.exists():
                self._disk.remove(path)
                self._disk.sync_directory(path.parent)

    # all images

    def names(self) -> list[ImageName]:
        """Names of all images, in order; nothing of them is read."""
        return [name for tenant_store in self._all() for name in tenant_store.names()]

    def ls(self) -> list[ImageEntry]:
        """All images, by tenant, job, serial and rank."""
        return [self._entry(tenant_store, name) for tenant_store in self._all() for name in tenant_store.names()]

    def _entry(self, tenant_store: TenantStore, name: ImageName) -> ImageEntry:
        try:
            head = read_header(tenant_store.manifest_path(name))
        except BadManifest as error:
            return ImageEntry(name=name, damage=str(error))
        except FileNotFoundError:
            return ImageEntry(name=name, damage="dropped just now")
        return ImageEntry(
            name=name, made_us=head.made_us, raw_bytes=head.raw_bytes, new_bytes=head.new_bytes,
            stored_bytes=head.stored_bytes,
        )  # fmt: skip

    def stored_bytes(self) -> int:
        """Bytes on disk, garbage included."""
        return size_below(self.root)

    @_plainly
    def gc(self) -> Freed:
        """Remove what no image needs. Raises WorldError when the store does not come to rest; nothing is lost then."""
        with self._lock.shared():
            written = sum(gc.compact(tenant_store) for tenant_store in self._all())
        freed = Freed(bytes=-written)
        with self._lock.exclusive():
            for tenant_store in self._all():
                freed += gc.remove(tenant_store)
            freed += gc.drafts(self._disk, self._drafts)
        return freed + Freed(notes=tuple(f"{one.problem}; nothing of it was removed" for one in self._bad_keys()))

    @_plainly
    def verify(self, name: ImageName | None = None) -> list[IntegrityFinding]:
        """Check everything, or what one image needs. What is found damaged is remembered, so that it is stored anew.

        Raises ImageMissing when there is no such image.
        """
        if name is not None and not self.has(name):
            raise ImageMissing(f"{name} is not in the store")
        findings = self._bad_keys()
        for tenant_store in self._all():
            if name is None or tenant_store.tenant == name.tenant:
                with self._lock.shared():
                    findings += self._verify(tenant_store, name)
        return findings

    def _verify(self, tenant_store: TenantStore, name: ImageName | None) -> Iterator[IntegrityFinding]:
        wanted = None
        if name is not None:
            try:
                wanted = tenant_store.manifest(name).hashes
            except (BadManifest, FileNotFoundError):
                wanted = None
        found = list(check.packs(tenant_store, tenant_store.view(), wanted))
        view = tenant_store.view()
        for one in found:
            images = check.affected(tenant_store, view, Path(one.path).stem) if one.what == "pack" else ()
            yield msgspec.structs.replace(one, images=images)
        yield from check.images(tenant_store, view, name)

    def _bad_keys(self) -> list[IntegrityFinding]:
        findings = []
        for folder_ in sorted(self._tenants.iterdir()):
            tenant = tenant_of(folder_.name)
            try:
                self._tenant_store(tenant)
            except WorldError as error:
                path = str(self._keys.path(tenant))
                findings.append(IntegrityFinding(tenant=tenant, what="key", path=path, problem=str(error)))
        return findings

    # remote stores

    @_plainly
    def push(self, name: ImageName, remote: Remote) -> Moved:
        """Copy an image there. It becomes visible once all of it is there. Raises WorldError, and may be repeated."""
        with self._lock.shared():
            tenant_store = self._tenant_store(name.tenant)
        return ImagePush(tenant_store, self._lock.shared, name, remote).run()

    @_plainly
    def pull(self, name: ImageName, remote: Remote) -> Moved:
        """Copy an image here, replacing a damaged one. Raises ImageMissing, ImageDamaged, StoreFull and WorldError."""
        if not remote.has([name.key]):
            raise ImageMissing(f"{name} is not in that store")
        data = remote.read(name.key)
        try:
            theirs = key_of(data)
        except BadManifest as error:
            raise ImageDamaged(f"the remote copy of {name}", str(error)) from None
        key = self._key(name.tenant) or self._keys.get_shared(name.tenant)
        if key is None:
            key = self._keys.adopt(name.tenant, self._their_key(name.tenant, theirs, remote))
        if key.id != theirs:
            return self._pull_foreign(name, remote)
        with self._lock.shared():
            tenant_store = self._tenant_store(name.tenant)
        return ImagePull(tenant_store, self._lock.shared, name, remote, self._room(name)).run(data)

    @_plainly
    def drop_remote(self, remote: Erasable, tenant: str, job: int, serial: int, rank: int | None = None) -> int:
        """Remove an image of a remote store or, without a rank, all of a job up to ``serial``, if made with our key; how many.

        Their pages go with ``collect_remote``. Raises WorldError, and may be repeated.
        """
        with self._lock.shared():
            tenant_store = self._tenant_store(tenant)
        return remote_gc.drop(tenant_store, remote, job, serial, rank)

    @_plainly
    def collect_remote(self, remote: Erasable, now_s: float, grace_s: float = remote_gc.GRACE_S) -> Freed:
        """Mark, and later remove, packs of a remote store that no image needs. ``bytes`` is not known. Raises WorldError."""
        with self._lock.shared():
            tenant_stores = self._all()
        freed = Freed()
        for tenant_store in tenant_stores:
            freed += remote_gc.RemoteGc(tenant_store, remote, now_s, grace_s).collect()
        return freed

    def _their_key(self, tenant: str, id_: str, remote: Remote) -> TenantKey:
        key = decode_key(remote.read(f"{folder(tenant)}/{KEYS}/{id_}"))
        if key.id != id_:
            raise WorldError(
                f"the key of tenant {tenant!r} in the remote store is not the one its images were made with"
            )
        return key

    def _pull_foreign(self, name: ImageName, remote: Remote) -> Moved:
        """Hashes under another key mean nothing here: bring the image back on its own terms, take it in on ours."""
        if self.has(name) and not any(name in finding.images for finding in self.verify(name)):
            return Moved()
        with scratch(self._drafts) as folder_:
            other = ImageStore(folder_ / "store", disk=self._disk)
            moved = other.pull(name, remote)
            other.get(name, folder_ / "image")
            self.drop(name)
            self.put(name, folder_ / "image", meta=other.meta(name))
        return moved

    # inside

    def _tenant_store(self, tenant: str) -> TenantStore:
        with self._guard:
            if tenant not in self._tenant_stores:
                root = self._tenants / folder(tenant)
                key = self._key(tenant) or self._keys.get(tenant)
                self._tenant_stores[tenant] = TenantStore(root, tenant, key, self._drafts, self._disk)
            return self._tenant_stores[tenant]

    def _key(self, tenant: str) -> TenantKey | None:
        root = self._tenants / folder(tenant)
        used = {path.name.partition("-")[0] for path in (root / PACKS).glob(f"*{INDEX}")}
        return self._keys.known(tenant, used) if root.exists() else self._keys.find(tenant)

    def _all(self) -> list[TenantStore]:
        """The store of every tenant whose key is sound."""
        tenant_stores = []
        for path in sorted(self._tenants.iterdir()):
            with contextlib.suppress(WorldError):
                tenant_stores.append(self._tenant_store(tenant_of(path.name)))
        return tenant_stores

    def _room(self, name: ImageName) -> Room:
        return room(self._quota, name, self.stored_bytes, self.ls) if self._quota else lambda size: None
