"""What the small API server keeps: objects, their versions and their past, and how objects are changed."""

from __future__ import annotations

import asyncio
import bisect
import copy
import itertools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

Object = dict[str, Any]
Key = tuple[str, ...]
"""Kind, namespace, name; the beginning of one."""
_NOTE_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class ApiRefused(Exception):
    """Answered with a v1 Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code,
                "reason": self.reason, "message": self.message}  # fmt: skip


@dataclass(slots=True)
class Store:
    """Objects by (kind, namespace, name), each replaced as a whole when it changes; ``log``: what happened since the last
    compaction (version, kind, line of a watch)."""

    objects: dict[Key, Object] = field(default_factory=dict)
    version: int = 100
    compacted: int = 0
    log: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    woken: int = 0
    _sorted: list[Key] = field(default_factory=list)

    def put(self, kind: str, item: Object, what: str) -> Object:
        """Keep a new version of ``item``."""
        self.version += 1
        meta = {**item["metadata"], "resourceVersion": str(self.version)}
        key, made = (kind, meta.get("namespace", ""), meta["name"]), {**item, "metadata": meta}
        if what != "MODIFIED":
            self._sorted.clear()
        if what == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = made
        self.log.append((self.version, kind, event(what, made)))
        return made

    def keys(self, kind: str, namespace: str, after: Key) -> Iterator[Key]:
        """Of one kind and namespace (empty: all), those after ``after``, in order."""
        self._sorted = self._sorted or sorted(self.objects)
        begin = bisect.bisect_right(self._sorted, max(after, (kind, namespace)))
        of_kind = itertools.takewhile(lambda key: key[0] == kind, itertools.islice(self._sorted, begin, None))
        return (key for key in of_kind if not namespace or key[1] == namespace)

    def compact(self) -> None:
        """Forget the past: watches from before now are answered 410."""
        self.compacted = self.version
        self.log.clear()

    def found(self, kind: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise ApiRefused(404, "NotFound", f'{kind} "{name}" not found') from None


def event(what: str, item: Object) -> bytes:
    return msgspec.json.encode({"type": what, "object": item}) + b"\n"


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396. What the patch does not touch is shared with ``old``."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def check_notes(meta: Object) -> None:
    for key, value in (meta.get("annotations") or {}).items():
        if not isinstance(value, str):
            raise ApiRefused(
                400, "BadRequest", f"json: cannot unmarshal into Go struct field annotations of type string: {key}"
            )
        if not _NOTE_KEY.fullmatch(key):
            raise ApiRefused(422, "Invalid", f"metadata.annotations: Invalid value: {key!r}")
