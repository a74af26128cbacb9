"""The content-addressed image store (store.py), and what stands on its doorstep.

``ImageStore`` and what it answers with are loaded at first use: they bring numpy, which an agent without images does not need
(a third of the processor time of its start).
"""

from typing import TYPE_CHECKING

from ...base.lazy import lazy_attribute
from .errors import ImageDamaged, ImageMissing, StoreFull
from .names import ImageName, is_key
from .quota import ImageEntry, PutReport
from .remote import Erasable, FsspecRemote, Remote

if TYPE_CHECKING:
    from .check import IntegrityFinding
    from .gc import Freed
    from .served import Objects
    from .store import ImageStore
    from .transfer import Moved

__all__ = [
    "ImageEntry",
    "Erasable",
    "IntegrityFinding",
    "Freed",
    "FsspecRemote",
    "ImageDamaged",
    "ImageMissing",
    "ImageName",
    "ImageStore",
    "Moved",
    "Objects",
    "PutReport",
    "Remote",
    "StoreFull",
    "is_key",
]

_LAZY = {"ImageStore": "store", "IntegrityFinding": "check", "Freed": "gc", "Moved": "transfer", "Objects": "served"}


def __getattr__(name: str) -> object:
    return lazy_attribute(__name__, _LAZY, name)
