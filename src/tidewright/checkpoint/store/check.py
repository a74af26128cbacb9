"""Verification: everything on disk against its seals and digests, without restoring anything."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...base.units import agreeing, counted
from .disk import spoiled
from .index import NO_HASHES, Runs
from .keys import PAGE, Hashes
from .manifest import ImageManifest
from .names import INDEX, ImageName
from .pack import PackIndex
from .tenant_store import PackView, TenantStore
from .transfer import broken_frames


class IntegrityFinding(Struct, frozen=True, kw_only=True):
    """Something wrong. ``images`` are those that cannot be restored because of it; empty: nothing is lost."""

    tenant: str
    what: str
    """``pack``, ``index``, ``manifest``, ``page`` or ``key``."""
    path: str
    problem: str
    images: tuple[ImageName, ...] = ()


def packs(tenant_store: TenantStore, view: PackView, wanted: Hashes | None) -> Iterator[IntegrityFinding]:
    """Read every pack (that holds one of ``wanted``), and remember which frames are damaged."""
    for id_, problem in view.broken.items():
        yield IntegrityFinding(
            tenant=tenant_store.tenant, what="index", path=str(tenant_store.packs / f"{id_}{INDEX}"), problem=problem
        )
    asked = None if wanted is None else Runs().plus(wanted)
    for pack in view.packs:
        if asked is None or asked.knows(pack.hashes).any():
            yield from _pack(tenant_store, pack)


def _pack(tenant_store: TenantStore, pack: PackIndex) -> Iterator[IntegrityFinding]:
    path = tenant_store.pack_path(pack.id)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not (tenant_store.packs / f"{pack.id}{INDEX}").exists():
            return  # collected meanwhile
        problem, broken = "is missing", frozenset(range(len(pack.frames)))
    except OSError as error:
        if not spoiled(error):
            raise
        problem, broken = f"cannot be read: {error.strerror}", frozenset(range(len(pack.frames)))
    else:
        broken = broken_frames(tenant_store.key, pack, data)
        problem = _what(pack, data, broken)
    if broken:
        tenant_store.mark_bad(pack.id, broken)
    elif tenant_store.bad_frames(pack.id):
        tenant_store.forgive(pack.id)
    if problem:
        yield IntegrityFinding(tenant=tenant_store.tenant, what="pack", path=str(path), problem=problem)


def _what(pack: PackIndex, data: bytes, broken: frozenset[int]) -> str:
    if len(data) < pack.pack_bytes:
        return f"cut off: {len(data)} of {pack.pack_bytes} bytes"
    if broken:
        first = int(pack.frames[min(broken)]["offset"])
        pages = len(pack.pages_of(sorted(broken)))
        frames, have = counted(len(broken), "frame"), agreeing(len(broken), "has", "have")
        return f"{frames} with {counted(pages, 'page')} {have} changed bytes, the first at byte {first}"
    return "" if len(data) == pack.pack_bytes else f"{len(data) - pack.pack_bytes} bytes too long"


def images(tenant_store: TenantStore, view: PackView, name: ImageName | None) -> Iterator[IntegrityFinding]:
    """Check every manifest (or one), and that all pages of it are there and sound."""
    for found_name, found in tenant_store.manifests():
        if name is not None and found_name != name:
            continue
        path = str(tenant_store.manifest_path(found_name))
        if not isinstance(found, ImageManifest):
            problem = str(found)
            yield IntegrityFinding(
                tenant=tenant_store.tenant, what="manifest", path=path, problem=problem, images=(found_name,)
            )
            continue
        for text in _lost(view, found):
            yield IntegrityFinding(
                tenant=tenant_store.tenant, what="page", path=path, problem=text, images=(found_name,)
            )


def _lost(view: PackView, manifest: ImageManifest) -> Iterator[str]:
    for entry, recipe in zip(manifest.header.files, manifest.recipes, strict=True):
        lost = ~view.runs.knows(recipe.hashes)
        if lost.any():
            at = ", ".join(map(str, recipe.offsets[lost][:8] // PAGE)) + (", …" if lost.sum() > 8 else "")
            yield f"{entry.path}: {int(lost.sum())} of {counted(len(lost), 'page')} lost ({at})"


def affected(tenant_store: TenantStore, view: PackView, pack_id: str) -> tuple[ImageName, ...]:
    """Images that need pages which only a pack's bad frames held."""
    lost = next((view.lost_in(pack) for pack in view.packs if pack.id == pack_id), NO_HASHES)
    return tuple(tenant_store.users(lost[~view.runs.knows(lost)]))
