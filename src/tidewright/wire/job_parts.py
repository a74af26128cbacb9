"""Parts of the API's view of one job: why, its history, devices, logs, images, and how it failed."""

from __future__ import annotations

from msgspec import Struct


class ImageView(Struct, frozen=True, kw_only=True):
    """One full image of a job that can be restored. ``where``: nodes that hold parts of it or all, "*" the remote store."""

    serial: int
    taken: int
    """When the job was quiesced for it."""
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


class CauseView(Struct, frozen=True):
    """Why: a stable code (docs/codes.md), its arguments by name (durations in microseconds, sizes in bytes), and words."""

    code: str
    args: dict[str, str | int | CauseView | tuple[str | int | CauseView, ...]]
    text: str


class DeviceHeld(Struct, frozen=True):
    """Devices of one node that a job holds; ``milli`` below 1000 is a share of each. Best-effort ones hold next to none of the
    compute, whatever they may use of it."""

    node: str
    devices: tuple[int, ...]
    milli: int = 1000
    best_effort: bool = False


class StoryLine(Struct, frozen=True):
    """One entry of a job's history: when, what (state or move) and why."""

    at: int
    what: str
    why: str
    cause: CauseView | None = None
    """``why`` as data."""


class AttemptLog(Struct, frozen=True):
    """Where one rank of one attempt wrote, on ``node``."""

    attempt: int
    rank: int
    node: str
    path: str


class Holder(Struct, frozen=True):
    """A job that holds devices the asked-for job could use."""

    job: int
    name: str
    tier: str
    devices: int


class ChangeView(Struct, frozen=True):
    """A change that would start a waiting job now. ``kind``: request, tier, move, scale, undrain, wait, cancel-waiting, cancel
    or nodes; ``type``: the commands to type for it; empty where there are none, as for a request that cannot be changed."""

    kind: str
    text: str
    cause: CauseView
    type: str = ""
    jobs: tuple[int, ...] = ()


class TimeInterval(Struct, frozen=True):
    """Absolute microseconds: as likely before as after ``middle``, and between ``low`` and ``high`` in eight of ten cases;
    -1: not within the time looked at."""

    low: int
    middle: int
    high: int
