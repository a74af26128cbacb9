"""The image store of a node, opened when it is first needed: it brings numpy, which a node without images does without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoint.store.put_worker import PutOrder

if TYPE_CHECKING:
    from ...checkpoint.store import ImageStore


class LazyStore:
    """What ``order`` describes. Safe to use from several threads."""

    def __init__(self, order: PutOrder) -> None:
        self.order = order
        self._guard = threading.Lock()
        self._store: ImageStore | None = None

    def exists(self) -> bool:
        """Whether it is on disk."""
        return Path(self.order.root).is_dir()

    def open(self) -> ImageStore:
        """The store, made if there is none. Raises OSError."""
        with self._guard:
            if self._store is None:
                from ...checkpoint.store import ImageStore

                order = self.order
                self._store = ImageStore(Path(order.root), quota_bytes=order.quota_bytes, secret=order.secret)
            return self._store
