"""A store's objects as others may read them: what a peer pulls from, under the keys of a remote store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...base.errors import WorldError
from .keys import Keys
from .names import KEYS, is_object, tenant_of


class Objects:
    """Reads only; a Remote that refuses to be written. Keys come from others, so none leads outside."""

    def __init__(self, root: Path, keys: Keys) -> None:
        self._root, self._keys = root, keys

    def path(self, key: str) -> Path:
        """The file that holds an object. Raises WorldError when there is none."""
        found = self._find(key)
        if found is None:
            raise WorldError(f"no object {key!r}")
        return found

    def _find(self, key: str) -> Path | None:
        if not is_object(key):
            return None
        tenant, kind, name = key.split("/")
        if kind == KEYS:
            mine = self._keys.find(tenant_of(tenant))
            return self._keys.path(tenant_of(tenant)) if mine is not None and mine.id == name else None
        path = self._root / key
        return path if path.is_file() else None

    def has(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._find(key) is not None}

    def read(self, key: str) -> bytes:
        try:
            return self.path(key).read_bytes()
        except OSError as error:
            raise WorldError(f"cannot read object {key!r}: {error.strerror}") from error

    def write(self, key: str, data: bytes) -> None:
        raise WorldError("a store is written by its own node only")

    def list(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")
        if not is_object(f"{folder}/x"):
            return []
        try:
            names = sorted(path.name for path in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in names if name.startswith(start)]
