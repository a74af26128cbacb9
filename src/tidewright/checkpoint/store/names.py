"""How an image is called, and where its parts lie below the store's directory. The same names are used in remote stores.

``TENANT/images/JOB.SERIAL.RANK`` is a manifest, ``TENANT/packs/KEY-ID.pack`` holds pages and ``.idx`` beside it says
which, ``TENANT/keys/KEY`` is the key of the tenant's hashes. Tenants are percent-encoded.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

IMAGES, PACKS, KEYS = "images", "packs", "keys"
PACK, INDEX, BAD = ".pack", ".idx", ".bad"
_IMAGE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_KEY = re.compile(r"[A-Za-z0-9_~%-][A-Za-z0-9._~%-]*/(images|packs|keys)/[A-Za-z0-9_-][A-Za-z0-9._-]*")


class ImageName(Struct, frozen=True, order=True):
    """The image of one rank of one job; ``serial`` counts a job's images, the same for all ranks."""

    tenant: str
    job: int
    serial: int
    rank: int

    def __str__(self) -> str:
        return f"image {self.serial} of job {self.job}, rank {self.rank}"

    @property
    def file(self) -> str:
        """The manifest's name within its tenant's images."""
        return f"{self.job}.{self.serial}.{self.rank}"

    @property
    def key(self) -> str:
        """The manifest's key in a remote store."""
        return f"{folder(self.tenant)}/{IMAGES}/{self.file}"


def parse_image(tenant: str, file: str) -> ImageName | None:
    """The image whose manifest is called ``file``; None when no manifest is called so."""
    match = _IMAGE.fullmatch(file)
    return ImageName(tenant, int(match[1]), int(match[2]), int(match[3])) if match else None


def folder(tenant: str) -> str:
    """A tenant's name as a directory's."""
    name = quote(tenant, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name or "%"


def tenant_of(name: str) -> str:
    """The tenant whose directory is called ``name``."""
    return unquote(name) if name != "%" else ""


def is_object(key: str) -> bool:
    """Whether a key of a remote request can name an object of a store: it leads nowhere outside."""
    return _KEY.fullmatch(key) is not None


def is_key(key: str) -> bool:
    """Whether an object is the key of a tenant, which must not travel in clear."""
    return key.split("/")[1:2] == [KEYS]
