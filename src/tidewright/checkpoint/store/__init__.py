"""The content-addressed image store (store.py), and what stands on its doorstep."""

from .check import IntegrityFinding
from .errors import ImageDamaged, ImageMissing, StoreFull
from .gc import Freed
from .names import ImageName, is_key
from .quota import ImageEntry
from .remote import Erasable, FsspecRemote, Remote
from .served import Objects
from .store import ImageStore, PutReport
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
