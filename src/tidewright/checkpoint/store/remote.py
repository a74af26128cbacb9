"""Remote stores: a Remote holds objects under keys, and never sees more of an image than these."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...base.atomic import write_atomically
from ...base.errors import UsageError, WorldError
from ..files.space import is_full, refusal
from .disk import Disk

T = TypeVar("T")
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"})
"""Stores without directories, whose ``makedirs`` would create a bucket."""
_S3_DEFAULTS = {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 3}}


class Remote(Protocol):
    """Methods block, raise WorldError, and may be called from any thread. An object appears whole or not at all."""

    def has(self, keys: Iterable[str]) -> set[str]:
        """Which of these objects are there."""
        ...

    def read(self, key: str) -> bytes:
        """An object's bytes."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Put an object there, durably."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys that begin with ``prefix``, which ends within a key's last part."""
        ...


class Erasable(Remote, Protocol):
    """One from which objects may be removed."""

    def remove(self, key: str) -> None:
        """Remove an object; harmless when there is none."""
        ...


class FsspecRemote:
    """A directory of any file system that fsspec knows: ``file:///backup``, ``s3://bucket/prefix``, ``memory://x``.

    ``options`` go to the file system (fsspec's storage options). Raises UsageError when the URL or a library is missing.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        try:
            import fsspec
        except ImportError:
            raise UsageError(f"{url} needs fsspec", "pip install 'tidewright[remote]'") from None
        protocol = url.partition("://")[0] if "://" in url else "file"
        if protocol in ("s3", "s3a"):
            options = {"config_kwargs": _S3_DEFAULTS, "use_listings_cache": False, **options}
        try:
            self._files, root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"cannot use {url}: {error}", "pip install the library it names, or correct it") from None
        self._root = root.rstrip("/")
        self._local, self._buckets = protocol in ("file", "local"), protocol in _BUCKETS

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _do(self, what: str, work: Callable[[], T]) -> T:
        """Run ``work`` and say plainly what the file system did not do."""
        try:
            return work()
        except WorldError:
            raise
        except FileNotFoundError as error:
            raise WorldError(f"{self.url}: {what}: not there ({_plain(error)})") from error
        except PermissionError as error:
            raise WorldError(f"{self.url}: {what}: access denied ({_plain(error)})") from error
        except Exception as error:  # libraries behind fsspec have no common root for their failures
            kind = type(error).__name__
            text = "no credentials were found" if kind == "NoCredentialsError" else _plain(error)
            unreachable = kind in ("EndpointConnectionError", "ConnectTimeoutError", "ClientConnectorError")
            lead = "cannot be reached: " if unreachable or isinstance(error, ConnectionError) else ""
            raise WorldError(f"{self.url}: {what}: {lead}{text}") from error

    def has(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._do(f"looking for {key}", lambda key=key: self._exists(key))}  # type: ignore[misc]

    def _exists(self, key: str) -> bool:
        try:
            self._files.info(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def read(self, key: str) -> bytes:
        data: bytes = self._do(f"reading {key}", lambda: self._files.cat_file(self._path(key)))
        return data

    def write(self, key: str, data: bytes) -> None:
        put = self._write_file if self._local else self._put
        self._do(f"writing {key}", lambda: put(self._path(key), data))

    def _put(self, path: str, data: bytes) -> None:
        """Object stores put an object whole or not at all."""
        if not self._buckets:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    @staticmethod
    def _write_file(text: str, data: bytes) -> None:
        path = Path(text)
        Disk().make_directory(path.parent)
        try:
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            write_atomically(path, data, draft=draft, durable=True)
        except OSError as error:
            if is_full(error):
                raise refusal(path.parent, "a remote copy", len(data)) from error
            raise

    def remove(self, key: str) -> None:
        def erase() -> None:
            with contextlib.suppress(FileNotFoundError, KeyError):  # KeyError: memory://
                self._files.rm_file(self._path(key))

        self._do(f"removing {key}", erase)

    def list(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")

        def find() -> list[str]:
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
            return sorted(f"{folder}/{name}" for name in names if name.startswith(start) and name[0] != ".")

        return self._do(f"listing {folder}", find)


def _plain(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
