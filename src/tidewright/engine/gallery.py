"""What the book knows of full images: which there are, which are being made, and what rests on them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..model.node import Allocation
from .failures import Failures
from .settings import EngineSettings

EVERYWHERE = "*"
"""Stands for a store that outlives every node."""


class Image(Struct, frozen=True, omit_defaults=True):
    """One full image of a job. Times in microseconds; ``ideal_us`` is the full-speed run time that is in it."""

    serial: int
    attempt: int
    taken: int
    """When it was ordered, absolute."""
    ideal_us: int
    nodes: tuple[str, ...]
    """Nodes it was taken on, in rank order; each holds its own ranks' part. A dead one is no longer named."""
    kind: str = ""
    """Device kind that it can be restored on, on nodes that take full images; empty: anywhere."""
    save_us: int = 0
    size_bytes: int = 0
    copies: tuple[str, ...] = ()
    """Other nodes that hold all of it, or "*"."""
    torn: bool = False
    """A node it was taken on is dead: only a copy is whole."""
    run_time_us: int = -1
    """Run time that the job's limit had been charged by then; -1: not noted (by an earlier version)."""

    @property
    def whole(self) -> bool:
        return bool(self.copies) or not self.torn

    @property
    def places(self) -> tuple[str, ...]:
        """Everywhere something of it lies."""
        return tuple(dict.fromkeys((*self.nodes, *self.copies)))


class Saving(Struct, frozen=True):
    """An image in the making: its number, when it was ordered, and the work done and run time charged until then."""

    serial: int
    at: int
    ideal_us: int
    run_time_us: int = -1


class HoldRetry(Struct, frozen=True):
    """A hold whose suspension failed ``tries`` times, last by ``error``; tried again ``at`` (absolute)."""

    tries: int
    at: int
    error: str


class Gallery:
    """The part of the book that is about images; by job."""

    allocations: dict[int, Allocation]
    nodes: dict[str, int]
    settings: EngineSettings

    def __init__(self) -> None:
        self.imaged: dict[int, bool] = {}
        """Jobs whose suspended attempt can be resumed: with its processes (true) or from a full image alone (false)."""
        self.images: dict[int, tuple[Image, ...]] = {}
        """Full images that can be restored, oldest first; written by ``keep_images`` alone."""
        self.homes: dict[int, tuple[int, ...]] = {}
        """The nodes where the latest of them lies, in rank order, for planners."""
        self.lowered: dict[int, tuple[int, str]] = {}
        """Jobs whose program rules out more than this level, and why."""
        self.dead: dict[int, bool] = {}
        """Nodes with which everything on them died (others in ``node_down`` are silent)."""
        self.world_failures = Failures()
        self.serials: dict[int, int] = {}
        """The last number given to an image of a job."""
        self.saving: dict[int, Saving] = {}
        """Images in the making."""
        self.from_image: dict[int, int] = {}
        """Jobs whose next (or present, until it runs) launch starts from an image: its number."""
        self.measured: dict[int, bool] = {}
        """Jobs whose cost of an image is known."""
        self.checkpoint_at: dict[int, int] = {}
        """When the next periodic image of a running job is due."""
        self.checkpoint_failures: dict[int, int] = {}
        self.falls: dict[int, int] = {}
        """How often in a row a job failed by the world's fault, and no new image between; halved by each hour of run."""
        self.rollback_free_us: dict[int, int] = {}
        """Run time of the jobs in ``falls`` since the last of these, or since they were last halved."""
        self.lost: dict[int, int] = {}
        """Full-speed run time delivered and lost again, microseconds."""

    def keep_images(self, job: int, kept: tuple[Image, ...]) -> None:
        """These are the job's images now."""
        self.images[job] = kept
        home = self._home_of(kept[-1]) if kept else ()
        if home:
            self.homes[job] = home
        else:
            self.homes.pop(job, None)

    def _home_of(self, image: Image) -> tuple[int, ...]:
        """Node indices: where it was taken, as long as each part is there, else where copies are. None where images lie in
        one place that every node has equally far.
        """
        names = image.copies if image.torn else image.nodes
        return () if self.settings.shared_images else tuple(self.nodes[name] for name in names if name != EVERYWHERE)

    def image(self, job: int) -> Image | None:
        """The job's latest image that can be restored."""
        images = self.images.get(job)
        return images[-1] if images else None

    def source(self, job: int) -> int:
        """Number of the image that the job comes back from (suspended, resuming, or to be launched from one); 0: none."""
        if job in self.from_image:
            return self.from_image[job]
        image = self.image(job) if self.imaged.get(job) is False else None
        return image.serial if image else 0

    def image_nodes(self, job: int) -> tuple[str, ...]:
        """Names of the nodes that hold something of the job's latest image, copies included; "*" is a store beyond them."""
        image = self.image(job)
        return image.places if image else ()

    def image_only(self, job: int) -> bool:
        """Whether the job is suspended and lives in its image alone: no process of it is left anywhere."""
        return self.imaged.get(job) is False and job not in self.allocations

    def forget_images(self, job: int) -> None:
        """Drop every trace of an ended job's images."""
        stores: tuple[dict[int, Any], ...] = (
            self.imaged, self.images, self.homes, self.serials, self.saving, self.from_image, self.measured, self.checkpoint_at,
            self.checkpoint_failures, self.falls, self.rollback_free_us, self.lost, self.lowered,
        )  # fmt: skip
        for store in stores:
            store.pop(job, None)
