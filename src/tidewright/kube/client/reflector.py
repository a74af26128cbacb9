"""A local copy of one kind of object, kept up to date for as long as it runs: list, watch, bookmarks, list again.

Source: Kubernetes API concepts, "Efficient detection of changes"; client-go ``reflector``. A broken watch is taken up where
it broke; 410 (Expired, Gone) means listing anew and telling what differs, deletions too; failures wait longer and longer,
with jitter, so that a thousand clients do not come back at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any

from ...base.backoff import pause_s
from ...base.errors import TideError
from ..objects.metadata import uid_of
from .api import ApiError, KubeClient, NoAnswer

WATCH_S = 300
"""The server ends a watch after this; also how long a dead connection may go unnoticed."""
BACKOFF_S = (0.2, 30.0)
"""First pause and longest; each is doubled, and drawn from its upper half."""
SHORT_S = 1.0
"""A watch that ends sooner without an event did not work, whatever the server answered (client-go: very short watch)."""
OnChange = Callable[[str, dict[str, Any]], None]
"""("put" | "gone", object); called in the event loop, must not raise."""
Trim = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What to keep of an object, its metadata's names, uid and resourceVersion at least; None: it does not concern us."""


class Reflector:
    """Objects under ``path``, by uid. ``synced`` is set after the first list and never cleared: see ``stale_s``."""

    def __init__(
        self, api: KubeClient, path: str, on_change: OnChange, trim: Trim | None = None, watch_s: int = WATCH_S,
        rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self.api, self.path, self.on_change, self.watch_s = api, path, on_change, watch_s
        self._trim = trim or (lambda item: item)
        self.synced = asyncio.Event()
        self.objects: dict[str, dict[str, Any]] = {}
        self.relists = 0
        self.failure = ""
        """Why the last try failed; empty while all is well."""
        self._rng = rng or random.Random()
        self._version = ""
        self._heard_s = time.monotonic()
        self._tries = 0

    def stale_s(self) -> float:
        """Seconds since the server was last known to be in touch; 0 while a watch is open."""
        return 0.0 if not self.failure and self.synced.is_set() else time.monotonic() - self._heard_s

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                    self._well()
                await self._watch()
            except (ApiError, NoAnswer, TideError) as error:
                if isinstance(error, ApiError) and error.status in (410, 404):
                    self._version = ""
                if not self.failure:
                    self._heard_s = time.monotonic()
                self.failure = str(error)
                await asyncio.sleep(pause_s(self._tries, BACKOFF_S, self._rng))
                self._tries += 1

    def _well(self) -> None:
        self.failure, self._heard_s = "", time.monotonic()
        self.synced.set()

    async def _list(self) -> None:
        """All objects, in pages; what disappeared meanwhile is reported as "gone"."""
        found: dict[str, dict[str, Any]] = {}
        meta: dict[str, Any] = {}
        async for page in self.api.pages(self.path):
            meta = page.get("metadata") or {}
            for item in page.get("items") or ():
                if (kept := self._trim(item)) is not None:
                    found[uid_of(kept)] = kept
        self.relists += 1
        for uid in self.objects.keys() - found.keys():
            self._gone(uid, self.objects[uid])
        for uid, item in found.items():
            self._put(uid, item)
        self._version = str(meta.get("resourceVersion") or "0")

    async def _watch(self) -> None:
        """One, to its end. Raises NoAnswer when it was none."""
        opened_s = math.inf

        def opened() -> None:
            nonlocal opened_s
            opened_s = time.monotonic()
            self._well()

        received = False
        try:
            async for event in self.api.watch(self.path, self._version, self.watch_s, opened):
                received = True
                self._heed(event)
        finally:
            if worked := received or time.monotonic() - opened_s >= SHORT_S:
                self._tries = 0
        if not worked:
            raise NoAnswer(f"the watch of {self.path} ended at once without an event")

    def _heed(self, event: dict[str, Any]) -> None:
        item = event.get("object") or {}
        kind, uid = event["type"], uid_of(item)
        kept = self._trim(item) if kind in ("ADDED", "MODIFIED") else None
        if kept is not None:
            self._put(uid, kept)
        elif kind != "BOOKMARK":
            self._gone(uid, item)
        self._version = str((item.get("metadata") or {}).get("resourceVersion") or self._version)
        self._heard_s = time.monotonic()

    def _put(self, uid: str, item: dict[str, Any]) -> None:
        """``item``: trimmed."""
        known = self.objects.get(uid)
        self.objects[uid] = item
        if known is None or _version(known) != _version(item):
            self.on_change("put", item)

    def _gone(self, uid: str, item: dict[str, Any]) -> None:
        if self.objects.pop(uid, None) is not None:
            self.on_change("gone", item)


def _version(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("resourceVersion", ""))
