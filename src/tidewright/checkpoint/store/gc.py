"""Garbage collection: what no manifest needs is removed, and packs that are mostly garbage are rewritten.

There are no counters that could be wrong. First, concurrently with other users, live pages are copied out of poor packs; a copy
too many does no harm. Then, with the store locked, packs whose needed pages are all elsewhere are removed, index first. A
process that ends anywhere in between leaves only what the next collection removes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .disk import Disk, abandoned, size_below
from .index import Runs
from .names import BAD, INDEX, PACK
from .pack import PackIndex, PackWriter
from .restore_reader import Damage, FrameReader
from .tenant_store import PackView, TenantStore

POOR = 0.6
"""A pack of which less than this is needed is written anew: at most 1/POOR of the needed bytes are kept on disk."""
SMALL_BYTES = 4 * 2**20
MANY_SMALL = 32
"""So many packs below SMALL_BYTES become one: each costs a file, and an object in a remote store."""


class Freed(Struct, frozen=True, kw_only=True):
    """What a collection removed. ``bytes`` is net of what was written anew."""

    bytes: int = 0
    packs: int = 0
    leftovers: int = 0
    """Drafts and incomplete packs that a killed process left."""
    notes: tuple[str, ...] = ()
    """Why something was kept that might have gone."""

    def __add__(self, other: Freed) -> Freed:
        return Freed(
            bytes=self.bytes + other.bytes, packs=self.packs + other.packs,
            leftovers=self.leftovers + other.leftovers, notes=self.notes + other.notes,
        )  # fmt: skip


def compact(tenant_store: TenantStore) -> int:
    """Copy needed pages out of poor packs. Bytes written. The caller holds the store's lock, shared."""
    marked, unreadable = tenant_store.marked()
    if unreadable:
        return 0
    view = _densest_first(tenant_store.view(), marked)
    poor = _poor(view, marked)
    if not poor:
        return 0
    writer = PackWriter(tenant_store.disk, tenant_store.drafts, tenant_store.packs, tenant_store.key)
    try:
        for number in poor:
            _copy(tenant_store, view, number, marked, writer)
        return sum(pack.stored_bytes for pack in writer.publish())
    except BaseException:
        writer.abort()
        raise


def _densest_first(view: PackView, marked: Runs) -> PackView:
    """The same packs, so ordered that a page in several is found in a sound one with the least garbage, then a big one."""
    shares = {pack.id: float(marked.knows(pack.hashes).mean()) for pack in view.packs}
    packs = sorted(view.packs, key=lambda pack: (pack.id in view.bad, -shares[pack.id], -len(pack.hashes), pack.id))
    return PackView((), view.bad, view.broken).plus(packs)


def _poor(view: PackView, marked: Runs) -> list[int]:
    """Numbers of packs worth writing anew: with something needed in them, but little, or with damage beside it."""
    shares = [_needed(view, number, marked).mean() for number in range(len(view.packs))]
    live = [number for number, share in enumerate(shares) if share]
    poor = [number for number in live if shares[number] < POOR or view.packs[number].id in view.bad]
    small = [number for number in live if number not in poor and view.packs[number].pack_bytes < SMALL_BYTES]
    return sorted(poor + (small if len(small) >= MANY_SMALL else []))


def _needed(view: PackView, number: int, marked: Runs) -> NDArray[np.bool_]:
    """Which pages of a pack are needed and are found here, not in another pack."""
    pack = view.packs[number]
    owner, ordinal = view.split(view.runs.find(pack.hashes))
    here = (owner == number) & (ordinal == np.arange(len(pack.hashes)))
    needed: NDArray[np.bool_] = here & marked.knows(pack.hashes)
    return needed


def _copy(tenant_store: TenantStore, view: PackView, number: int, marked: Runs, writer: PackWriter) -> None:
    pack, needed = view.packs[number], np.flatnonzero(_needed(view, number, marked))
    frames = pack.frame_of(needed)
    try:
        with FrameReader(tenant_store, pack) as reader:
            for frame in np.unique(frames).tolist():
                _copy_frame(tenant_store, reader, pack, frame, needed[frames == frame], writer)
    except Damage as damage:  # the pack itself is missing
        tenant_store.mark_bad(pack.id, frozenset(at for _, at in damage.frames))


def _copy_frame(
    tenant_store: TenantStore,
    reader: FrameReader,
    pack: PackIndex,
    frame: int,
    pages: NDArray[np.intp],
    writer: PackWriter,
) -> None:
    try:
        data, starts = reader.pages(frame)
    except Damage:
        tenant_store.mark_bad(pack.id, frozenset((frame,)))
        return
    at = pages - int(pack.frames[frame]["first"])
    view = memoryview(data)
    writer.add((view[int(starts[one]) : int(starts[one + 1])] for one in at), pack.lengths[pages], pack.hashes[pages])


def remove(tenant_store: TenantStore) -> Freed:
    """Remove packs that no image needs, and incomplete ones. The caller holds the store's lock exclusively."""
    freed = _remove_incomplete(tenant_store)
    marked, unreadable = tenant_store.marked()
    if unreadable:
        names = ", ".join(map(str, unreadable))
        note = f"tenant {tenant_store.tenant!r}: nothing removed, for the manifest of {names} cannot be read; drop it first"
        return freed + Freed(notes=(note,))
    freed += _remove_packs(tenant_store, _doomed(_densest_first(tenant_store.view(), marked), marked))
    return freed


def _doomed(view: PackView, marked: Runs) -> list[str]:
    """Packs in which nothing is needed. One whose damaged pages are needed and nowhere else is kept as it is."""
    doomed = []
    for number, pack in enumerate(view.packs):
        damaged = view.lost_in(pack)
        lost = marked.knows(damaged) & ~view.runs.knows(damaged)
        if not lost.any() and not _needed(view, number, marked).any():
            doomed.append(pack.id)
    if view.broken and view.runs.knows(marked.hashes).all():
        doomed += view.broken
    return doomed


def _remove_packs(tenant_store: TenantStore, ids: list[str]) -> Freed:
    """Indexes first, and for good: one that came back after a power cut without its pages would promise what is gone."""
    freed = Freed(packs=len(ids))
    for suffixes in ((INDEX,), (BAD, PACK)):
        for path in (tenant_store.packs / f"{id_}{suffix}" for id_ in ids for suffix in suffixes):
            if path.exists():
                freed += Freed(bytes=path.stat().st_size)
                tenant_store.disk.remove(path)
        if ids:
            tenant_store.disk.sync_directory(tenant_store.packs)
    return freed


def _remove_incomplete(tenant_store: TenantStore) -> Freed:
    """Remove packs and notes without an index: a process was killed between writing the two."""
    freed = Freed()
    for path in sorted(tenant_store.packs.iterdir()):
        if path.suffix != INDEX and not path.with_suffix(INDEX).exists():
            freed += Freed(bytes=path.stat().st_size, leftovers=1)
            tenant_store.disk.remove(path)
    return freed


def drafts(disk: Disk, directory: Path) -> Freed:
    """Remove drafts, and scratch directories of ended processes. The caller holds the lock exclusively, so no draft is in use."""
    freed = Freed()
    for path in sorted(directory.iterdir()):
        if path.is_file():
            freed += Freed(bytes=path.stat().st_size, leftovers=1)
            disk.remove(path)
        elif abandoned(path):
            freed += Freed(bytes=size_below(path), leftovers=1)
            shutil.rmtree(path, ignore_errors=True)
    return freed
