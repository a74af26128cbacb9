"""Parts of what the API says of one job: its images, and how it failed."""

from __future__ import annotations

from msgspec import Struct


class ImageView(Struct, frozen=True, kw_only=True):
    """One full image of a job that can be restored. ``where``: nodes that hold parts of it or all, "*" the remote store."""

    serial: int
    taken: int
    """When the job stood still for it."""
    attempt: int
    size_bytes: int = 0
    """Before compression, over all ranks."""
    where: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    """Places other than those it was taken on that hold all of it."""
    save_us: int = 0


class FailureView(Struct, frozen=True, kw_only=True):
    """The first rank of a job that failed by itself: the cause of its end. Ranks that were stopped for it are not."""

    rank: int
    exit_code: int
    """128 + signal for a signal."""
    signal: str = ""
    """Its name, for a rank that a signal ended."""
    why: str = ""
    node: str = ""
    lines: tuple[str, ...] = ()
    """The last lines it wrote; the single job only."""
