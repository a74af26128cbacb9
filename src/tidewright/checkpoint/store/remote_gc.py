"""Garbage collection of a remote store, into which several nodes push at once and where nothing can be locked.

Manifests are removed first; packs that no manifest needs are *marked*, and removed when they have been marked for long. A
pack's name is never used again while its mark is there, and a push checks, once its manifest is written, whether a pack that
it relied on was marked meanwhile. So no manifest is left without its pages, in whatever order the two happen. Objects made
with another key belong to another cluster and are left alone.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

from ...base.errors import WorldError
from .gc import Freed
from .index import NO_HASHES, Runs
from .keys import Hashes
from .manifest import BadManifest, decode, key_of
from .names import IMAGES, INDEX, PACK, PACKS, ImageName, folder, parse_image
from .pack import BadIndex, PackIndex
from .remote import Erasable, Remote
from .tenant_store import TenantStore

MARK = ".gone"
"""Beside a pack: the time it was marked, whole seconds since 1970."""
GRACE_S = 3600
"""Least time between mark and removal: a push that relied on the pack is over by then, or finds the mark."""
FORGET_S = 24 * 3600
"""Marks of removed packs are kept for so long, so that another collection that is still at it hits no new pack."""


def marked(remote: Remote, prefix: str) -> set[str]:
    """Ids of packs that are marked, of those that begin with ``prefix``."""
    return {name.removesuffix(MARK) for name in _names(remote, prefix) if name.endswith(MARK)}


def drop(tenant_store: TenantStore, remote: Erasable, job: int, serial: int, rank: int | None = None) -> int:
    """Remove one manifest of this tenant and key or, without a rank, all of a job's up to ``serial``; how many.

    Raises WorldError.
    """
    gone = 0
    for key in remote.list(f"{folder(tenant_store.tenant)}/{IMAGES}/{job}."):
        name = parse_image(tenant_store.tenant, key.rpartition("/")[2])
        if name is None or not (name.serial <= serial if rank is None else (name.serial, name.rank) == (serial, rank)):
            continue
        with contextlib.suppress(BadManifest):  # one that cannot be read may have been made with another key
            if key_of(remote.read(key)) == tenant_store.key.id:
                remote.remove(key)
                gone += 1
    return gone


class RemoteGc:
    """One tenant's part of a remote store, as it is collected at ``now_s`` (seconds since 1970)."""

    def __init__(self, tenant_store: TenantStore, remote: Erasable, now_s: float, grace_s: float = GRACE_S) -> None:
        self._tenant_store, self._remote, self._now_s, self._grace_s = tenant_store, remote, now_s, grace_s
        self._folder = f"{folder(tenant_store.tenant)}/{PACKS}"

    def collect(self) -> Freed:
        """Mark what is no longer needed, remove what was marked long ago. Raises WorldError; may be repeated."""
        found: dict[str, set[str]] = defaultdict(set)
        for name in _names(self._remote, f"{self._folder}/{self._tenant_store.key.id}-"):
            id_, dot, suffix = name.partition(".")
            found[id_].add(dot + suffix)
        old = {id_: self._age_s(id_) for id_, suffixes in found.items() if MARK in suffixes}
        needed = self._needed()  # after the marks were seen: what was written before them is counted
        if needed is None:
            note = (
                f"tenant {self._tenant_store.tenant!r}: a remote manifest cannot be read, so no remote pack is removed"
            )
            return Freed(notes=(note,))
        freed = Freed()
        for id_, suffixes in sorted(found.items()):
            freed += self._judge(id_, suffixes, old.get(id_), needed)
        return freed

    def _judge(self, id_: str, suffixes: set[str], age_s: float | None, needed: Runs) -> Freed:
        mark = f"{self._folder}/{id_}{MARK}"
        if not suffixes & {INDEX, PACK}:
            if age_s is not None and age_s >= max(FORGET_S, self._grace_s):
                self._remote.remove(mark)
        elif INDEX in suffixes and self._is_needed(id_, needed):
            if age_s is not None:
                self._remote.remove(mark)
        elif age_s is None:
            self._remote.write(mark, str(int(self._now_s)).encode())
        elif age_s >= self._grace_s:
            for suffix in (INDEX, PACK):  # without its index a pack is garbage
                self._remote.remove(f"{self._folder}/{id_}{suffix}")
            return Freed(packs=1)
        return Freed()

    def _needed(self) -> Runs | None:
        """Pages that any image of the remote store needs; None when a manifest cannot be read."""
        runs = Runs()
        for key in self._remote.list(f"{folder(self._tenant_store.tenant)}/{IMAGES}/"):
            name = parse_image(self._tenant_store.tenant, key.rpartition("/")[2])
            if name is None:
                continue
            try:
                hashes = self._hashes(name)
            except BadManifest:
                return None
            runs = runs.plus(hashes)
        return runs

    def _hashes(self, name: ImageName) -> Hashes:
        if not self._remote.has([name.key]):
            return NO_HASHES  # dropped just now
        data = self._remote.read(name.key)
        return decode(data, self._tenant_store.key).hashes if key_of(data) == self._tenant_store.key.id else NO_HASHES

    def _is_needed(self, id_: str, needed: Runs) -> bool:
        pack = self._index(id_)
        return pack is not None and bool(needed.knows(pack.hashes).any())

    def _index(self, id_: str) -> PackIndex | None:
        try:
            key = f"{self._folder}/{id_}{INDEX}"
            return self._tenant_store.foreign.get(id_, lambda: self._remote.read(key), self._tenant_store.key)
        except BadIndex:
            return None  # without a readable index the pack is unusable

    def _age_s(self, id_: str) -> float:
        mark = f"{self._folder}/{id_}{MARK}"
        try:
            return self._now_s - int(self._remote.read(mark))
        except ValueError:
            return 0.0  # not written by a collection: the pack stays
        except WorldError:
            if self._remote.has([mark]):
                raise
            return 0.0  # removed by another just now


def _names(remote: Remote, prefix: str) -> list[str]:
    return [key.rpartition("/")[2] for key in remote.list(prefix)]
