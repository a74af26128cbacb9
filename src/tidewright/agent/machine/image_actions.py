"""What the machine has done with full images (``actions``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...checkpoint.protocol import GangImage
from ...wire.agent import FetchArgs
from .actions import ActionStep, Effect


@dataclass(frozen=True, slots=True)
class MeasureRanks(ActionStep):
    """Result: device memory by rank, bytes, as far as it can be measured."""


class Dumped(NamedTuple):
    """A raw image: its size, and the image as the record names it."""

    size_bytes: int
    image: GangImage


@dataclass(frozen=True, slots=True)
class DumpRanks(ActionStep):
    """Dump quiesced ranks into raw images of number ``serial``; ``left`` travels with the first rank's. Result: ``Dumped``.
    Processes stay stopped."""

    serial: int
    leave_running: bool
    left: str


@dataclass(frozen=True, slots=True)
class UndoDump(ActionStep):
    """Whatever a dump has come to: processes run, and have their devices."""


@dataclass(frozen=True, slots=True)
class FinishDump(ActionStep):
    """The image stands for the processes: end them."""


@dataclass(frozen=True, slots=True)
class DiscardRaw(ActionStep):
    """The raw image ``serial`` is of no use."""

    serial: int


@dataclass(frozen=True, slots=True)
class RemoveRaw(Effect):
    """As ``DiscardRaw``, at leisure."""

    job: int
    serial: int


@dataclass(frozen=True, slots=True)
class StoreImage(ActionStep):
    """Take the raw image into the store. Result: bytes that it added. Fails "unneeded" when the job ends meanwhile."""

    serial: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushImage(ActionStep):
    """Copy an image in the store to the remote one. Result: False when none is configured."""

    serial: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PruneImages(ActionStep):
    """Keep the newest images up to ``newest``, or it and ``previous``."""

    newest: int
    previous: int


@dataclass(frozen=True, slots=True)
class DropImage(ActionStep):
    """An image that was made too late for any controller to know of it."""

    serial: int


@dataclass(frozen=True, slots=True)
class DropJobImages(Effect):
    """The job ``job`` is over: none of the images that are here by now are kept."""

    job: int


@dataclass(frozen=True, slots=True)
class FetchImages(ActionStep):
    """Copies of images of a job that runs elsewhere. Result: bytes added."""

    args: FetchArgs


@dataclass(frozen=True, slots=True)
class HasRaw(ActionStep):
    """Result: whether the raw image ``serial`` is here."""

    serial: int
    INSTANT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ReadyImages(ActionStep):
    """Bring the images of number ``serial`` here, and the keys of the rendezvous to its server. Result: device
    memory by rank, bytes. Fails "damaged image" when every copy is."""

    serial: int


class Renewed(NamedTuple):
    """Rank directories of the next generation: cores by rank."""

    cpus: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MakeGeneration(ActionStep):
    """Give the ranks directories of ``generation``, to come back from images in. Result: ``Renewed``. A half-made one is never
    looked at."""

    serial: int
    generation: int


@dataclass(frozen=True, slots=True)
class EnterGeneration(Effect):
    """The record names the new generation: from now on its ranks are those of the attempt."""


@dataclass(frozen=True, slots=True)
class RestoreRanks(ActionStep):
    """Bring the ranks back from images ``serial``, quiesced as they were. Result: outcome by rank, of those that failed."""

    serial: int


@dataclass(frozen=True, slots=True)
class RestoreDevices(ActionStep):
    """Processes that used GPUs come back without: give them theirs."""
