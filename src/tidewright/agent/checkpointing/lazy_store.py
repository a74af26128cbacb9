"""The image store of a node, opened when it is first needed: it brings numpy, which a node without images does without."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import WorldError
from ...checkpoint.store.put_worker import PutOrder

if TYPE_CHECKING:
    from ...checkpoint.store import ImageStore


class LazyStore:
    """What ``order`` describes. One that is there already is opened at once: an agent that cannot read its images must not say
    that it has none. Safe to use from several threads. Raises WorldError."""

    def __init__(self, order: PutOrder) -> None:
        self.order = order
        self._guard = threading.Lock()
        self._store: ImageStore | None = None
        if self.exists():
            self.open()

    def exists(self) -> bool:
        """Whether there is one, if only a link to a disk that is not there: it is opened then, and says so."""
        return self._store is not None or os.path.lexists(self.order.root)

    def open(self) -> ImageStore:
        """The store, made if there is none. Raises WorldError."""
        with self._guard:
            if self._store is None:
                from ...checkpoint.store import ImageStore

                order = self.order
                try:
                    self._store = ImageStore(Path(order.root), quota_bytes=order.quota_bytes, secret=order.secret)
                except OSError as error:
                    raise WorldError(f"the image store in {order.root} cannot be opened: {error}") from error
            return self._store
