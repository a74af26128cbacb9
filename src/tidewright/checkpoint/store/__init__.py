"""The content-addressed image store (store.py), and what stands on its doorstep."""

from .check import Finding
from .errors import ImageDamaged, ImageMissing, StoreFull
from .names import ImageName, is_key
from .quota import Entry
from .remote import Erasable, FsspecRemote, Remote
from .served import Objects
from .store import ImageStore, PutReport
from .sweep import Freed
from .transfer import Moved

__all__ = [
    "Entry",
    "Erasable",
    "Finding",
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
