"""What the machine has done with full images (``actions``)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from ...checkpoint.protocol import GangImage
from ...wire.agent import FetchArgs
from .actions import ActionStep, Effect


class MeasureRanks(ActionStep, frozen=True):
    """Result: device memory by rank, bytes, as far as it can be measured."""


class Dumped(NamedTuple):
    """A raw image: its size, and the image as the record names it."""

    size_bytes: int
    image: GangImage


class DumpRanks(ActionStep, frozen=True):
    """Dump quiesced ranks into raw images of number ``serial``; ``left`` travels with the first rank's. Result: ``Dumped``.
    Processes stay stopped."""

    serial: int
    leave_running: bool
    left: str


class UndoDump(ActionStep, frozen=True):
    """Whatever a dump has come to: processes run, and have their devices."""


class FinishDump(ActionStep, frozen=True):
    """The image stands for the processes: end them."""


class DiscardRaw(ActionStep, frozen=True):
    """The raw image ``serial`` is of no use. ``job`` here and below: whose image, where it is another job's; 0: the attempt's."""

    serial: int
    job: int = 0


class RemoveRaw(Effect, frozen=True):
    """As ``DiscardRaw``, at leisure."""

    job: int
    serial: int


class StoreImage(ActionStep, frozen=True):
    """Take the raw image into the store. Result: bytes that it added. Fails "unneeded" when the job ends meanwhile."""

    serial: int
    ranks: tuple[int, ...]


class PushImage(ActionStep, frozen=True):
    """Copy an image in the store to the remote one. Result: False when none is configured."""

    serial: int
    ranks: tuple[int, ...]


class PruneImages(ActionStep, frozen=True):
    """Keep the newest images up to ``newest``, or it and ``previous``."""

    newest: int
    previous: int


class DropImage(ActionStep, frozen=True):
    """An image that was made too late for any controller to know of it."""

    serial: int


class DropJobImages(Effect, frozen=True):
    """The job ``job`` is over: none of the images that are here by now are kept."""

    job: int


class FetchImages(ActionStep, frozen=True):
    """Copies of images of a job that runs elsewhere. Result: bytes added."""

    args: FetchArgs


class HasRaw(ActionStep, frozen=True):
    """Result: whether the raw image ``serial`` is here."""

    serial: int
    job: int = 0
    INSTANT: ClassVar[bool] = True


class ReadyImages(ActionStep, frozen=True):
    """Bring the images of number ``serial`` here, and the keys of the rendezvous to its server. Result: device
    memory by rank, bytes. Fails "damaged image" when every copy is."""

    serial: int
    job: int = 0


class Renewed(NamedTuple):
    """Rank directories of the next generation: cores by rank, and how a share of a device is enforced
    (``JobReport.share_limits``)."""

    cpus: dict[int, tuple[int, ...]]
    share_limits: str = ""


class MakeGeneration(ActionStep, frozen=True):
    """Give the ranks directories of ``generation``, to come back from images in. Result: ``Renewed``. A half-made one is never
    looked at."""

    serial: int
    generation: int


class EnterGeneration(Effect, frozen=True):
    """The record names the new generation: from now on its ranks are those of the attempt."""


class RestoreRanks(ActionStep, frozen=True):
    """Bring the ranks back from images ``serial``, quiesced as they were. Result: outcome by rank, of those that failed."""

    serial: int


class RestoreDevices(ActionStep, frozen=True):
    """Processes that used GPUs come back without: give them theirs."""
