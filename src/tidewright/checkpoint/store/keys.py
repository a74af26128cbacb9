"""The secret of one tenant: hashes of equal pages differ between tenants, so no tenant learns which pages another one has.

Keyed BLAKE3 (blake3.pdf, section 2.3). Pages are named by 16 bytes: 2^64 pages would be needed for an accidental pair.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from ...base.errors import WorldError
from .disk import Disk, draft_name, write_whole
from .names import folder

Hashes = NDArray[np.uint64]
"""Page hashes, shape (pages, 2)."""
PAGE = 4096
HASH_BYTES = 16
SEAL_BYTES = 32
FRAME_DIGEST_BYTES = 16
_SIZE = 32


class TenantKey:
    """Hashes under one tenant's key; a derived key for each use, so that no digest can stand for another."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.id = blake3(b"id", key=secret).hexdigest()[:8]
        self._page, self._frame, self._file, self._seal = (
            blake3(use, key=secret).digest() for use in (b"page", b"frame", b"file", b"seal")
        )

    def pages(self, data: memoryview, at: NDArray[np.intp]) -> Hashes:
        """Hashes of the pages with these numbers; the last page of ``data`` may be short."""
        hasher, digests = blake3(key=self._page), []
        reset, update, digest = hasher.reset, hasher.update, hasher.digest
        for o in (at * PAGE).tolist():  # the same object again: a quarter less time than with a new one for each page
            reset()
            update(data[o : o + PAGE])
            digests.append(digest(HASH_BYTES))
        return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)

    def frame(self, data: bytes | memoryview) -> bytes:
        """Digest of a compressed frame."""
        return blake3(data, key=self._frame).digest(FRAME_DIGEST_BYTES)

    def file(self, threads: int = 1) -> blake3:
        """A hash object for a file's content."""
        return blake3(key=self._file, max_threads=threads)

    def seal(self, *parts: bytes | memoryview) -> bytes:
        """Authenticates a manifest or an index."""
        hasher = blake3(key=self._seal)
        for part in parts:
            hasher.update(part)
        return hasher.digest(SEAL_BYTES)


def encode_key(key: TenantKey) -> bytes:
    """A key's file, and its object in a remote store."""
    return key.secret + key.id.encode()


def decode_key(data: bytes) -> TenantKey:
    """The key in a file. Raises WorldError when it is damaged."""
    key = TenantKey(data[:_SIZE].ljust(_SIZE, b"\0"))
    if encode_key(key) != data:
        raise WorldError("a tenant's key is damaged")
    return key


class Keys:
    """The tenants' keys in ``directory``. With ``secret`` (shared by a cluster), new ones are equal on all its nodes."""

    def __init__(self, directory: Path, drafts: Path, disk: Disk, secret: bytes = b"") -> None:
        self._directory, self._drafts, self._disk, self._secret = directory, drafts, disk, secret

    def find(self, tenant: str) -> TenantKey | None:
        """The tenant's key; None when it has none here yet. Raises WorldError when its file is damaged."""
        path = self.path(tenant)
        try:
            return decode_key(path.read_bytes())
        except FileNotFoundError:
            return None
        except (WorldError, OSError):
            raise WorldError(f"the key of tenant {tenant!r} is damaged: {path}; no image of it can be read") from None

    def known(self, tenant: str, used: set[str]) -> TenantKey:
        """The key of a tenant that has one; a lost one is made anew from the cluster's secret, if ``used`` (ids of keys)
        says that it was made from that. Raises WorldError when it cannot be."""
        try:
            found, lost = self.find(tenant), None
        except WorldError as error:
            found, lost = None, error
        if found is not None:
            return found
        key = TenantKey(self._new(tenant)) if self._secret else None
        if key is None or not used <= {key.id}:
            why = f"the key of tenant {tenant!r} is missing: {self.path(tenant)}; no image of it can be read"
            raise lost or WorldError(why)
        self._disk.remove(self.path(tenant))
        return self.adopt(tenant, key)

    def path(self, tenant: str) -> Path:
        """Where the tenant's key is kept."""
        return self._directory / folder(tenant)

    def get(self, tenant: str) -> TenantKey:
        """The tenant's key, made when there is none."""
        return self.find(tenant) or self.adopt(tenant, TenantKey(self._new(tenant)))

    def adopt(self, tenant: str, key: TenantKey) -> TenantKey:
        """Make ``key`` the tenant's, unless it has one by now; returns the one it has."""
        draft = draft_name(self._drafts)
        write_whole(self._disk, self._drafts, draft, [encode_key(key)])
        self._disk.link(draft, self.path(tenant))
        self._disk.remove(draft)
        self._disk.sync_directory(self._directory)
        found = self.find(tenant)
        assert found is not None
        return found

    def get_shared(self, tenant: str) -> TenantKey | None:
        """The tenant's key, made when there is none but the cluster's secret says which; else None."""
        return self.get(tenant) if self._secret else self.find(tenant)

    def _new(self, tenant: str) -> bytes:
        if not self._secret:
            return secrets.token_bytes(_SIZE)
        root = blake3(self._secret, derive_key_context="tidewright image store 1 tenant key").digest()
        return blake3(tenant.encode(), key=root).digest()

    def tenants(self) -> list[str]:
        """Directory names of tenants with a key."""
        return sorted(path.name for path in self._directory.iterdir())
