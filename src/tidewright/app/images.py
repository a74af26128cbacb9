"""The image stores of a state directory, for the command line. They are safe beside the agents that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ..base.errors import NotFound
from ..wire.api import SCHEMA

if TYPE_CHECKING:
    from ..checkpoint.store import ImageStore, IntegrityFinding

STORE = Path("images") / "store"
HOSTS = "hosts"


class ImageRow(Struct, frozen=True, kw_only=True):
    """One rank's image. ``node`` is empty for the state directory's own agent; times in microseconds, sizes in bytes."""

    node: str
    tenant: str
    job: int
    serial: int
    rank: int
    made: int
    size: int
    new: int
    stored: int
    damage: str = ""


class ImageList(Struct, frozen=True, kw_only=True):
    """``stored`` is what all stores take on disk, garbage included."""

    images: tuple[ImageRow, ...]
    stored: int
    schema: str = SCHEMA


class Collected(Struct, frozen=True, kw_only=True):
    """What a collection freed on each node, and why it kept what might have gone."""

    freed: int
    packs: int
    leftovers: int
    notes: tuple[str, ...]
    schema: str = SCHEMA


class FoundRow(Struct, frozen=True, kw_only=True):
    """Something wrong. ``images`` (job.serial.rank) cannot be restored from here because of it."""

    node: str
    what: str
    path: str
    problem: str
    images: tuple[str, ...]


class Verified(Struct, frozen=True, kw_only=True):
    """``images`` counts those that were looked at."""

    images: int
    findings: tuple[FoundRow, ...]
    schema: str = SCHEMA


def listed(state: Path, job: int | None = None) -> ImageList:
    """Every image in the stores of a state directory (of one job). Raises NotFound when the job has none."""
    rows, stored = [], 0
    for node, store in _stores(state):
        stored += store.stored_bytes()
        for entry in store.ls():
            one = entry.name
            if job in (None, one.job):
                rows.append(
                    ImageRow(
                        node=node, tenant=one.tenant, job=one.job, serial=one.serial, rank=one.rank, damage=entry.damage,
                        made=entry.made_us, size=entry.raw_bytes, new=entry.new_bytes, stored=entry.stored_bytes,
                    )
                )  # fmt: skip
    _known(rows, job)
    return ImageList(images=tuple(rows), stored=stored)


def collect(state: Path) -> Collected:
    """Remove what no image needs. Raises WorldError when a store does not come to rest."""
    freed = [store.gc() for _, store in _stores(state)]
    return Collected(
        freed=sum(one.bytes for one in freed), packs=sum(one.packs for one in freed),
        leftovers=sum(one.leftovers for one in freed), notes=tuple(note for one in freed for note in one.notes),
    )  # fmt: skip


def verify(state: Path, job: int | None = None) -> Verified:
    """Read and check everything (that a job's images need). Raises NotFound when the job has none."""
    findings, seen = [], []
    for node, store in _stores(state):
        names = [entry.name for entry in store.ls() if job in (None, entry.name.job)]
        seen += names
        found = store.verify() if job is None else [one for name in names for one in store.verify(name)]
        findings += [_row(node, one) for one in found]
    _known(seen, job)
    return Verified(images=len(seen), findings=tuple(dict.fromkeys(findings)))


def _row(node: str, found: IntegrityFinding) -> FoundRow:
    lost = tuple(f"{one.job}.{one.serial}.{one.rank}" for one in found.images)
    return FoundRow(node=node, what=found.what, path=found.path, problem=found.problem, images=lost)


def _known(rows: Sequence[object], job: int | None) -> None:
    if job is not None and not rows:
        raise NotFound(f"no image of job {job} is in a store here", "list all with tide images ls")


def _stores(state: Path) -> Iterator[tuple[str, ImageStore]]:
    """The stores there are, by node; none is made."""
    from ..checkpoint.store import ImageStore

    for root in (state, *sorted((state / HOSTS).glob("*"))):
        if (root / STORE).is_dir():
            yield ("" if root == state else root.name), ImageStore(root / STORE)
