"""Images that are to be removed from the remote store, too: recorded on disk first, so that no kill and no outage loses one.

A pending delete is an empty file below its tenant's directory: ``JOB.SERIAL.RANK`` stands for one image, ``JOB.SERIAL`` for
all of a job up to that serial. Never for later ones: a job that starts over makes new images while old deletes are pending.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import TideError
from ...base.paths import matching
from ...checkpoint.store import Erasable
from ...checkpoint.store.disk import Disk
from ...checkpoint.store.names import ImageName, folder, parse_image, tenant_of

if TYPE_CHECKING:
    from ...checkpoint.store import ImageStore

log = logging.getLogger(__name__)

SWEEP_S = 600.0
"""Least time between two looks at all images over there."""


class PendingDeletes:
    """``run`` blocks on the network, and is called by one thread at a time; ``add`` by any."""

    def __init__(self, root: Path, store: ImageStore, remote: Erasable, clock: Callable[[], float] = time.time) -> None:
        self._root, self._store, self._remote, self._clock = root, store, remote, clock
        self._swept_at = float("-inf")
        self._trouble = ""

    def add(self, tenant: str, name: str) -> None:
        """Note, durably, what has to go over there. Raises OSError."""
        directory, disk = self._root / folder(tenant), Disk()
        disk.make_directory(directory, below=self._root.parent)
        (directory / name).touch(mode=0o600)
        disk.sync_directory(directory)

    @contextmanager
    def sending(self, tenant: str, name: str, here: Callable[[], bool]) -> Iterator[None]:
        """An image is on its way over there; if it is not ``here`` any more at the end, what was sent goes again.

        It is noted durably before: by the note, the agent that follows one that was killed in the middle knows what may be over
        there. Raises OSError.
        """
        self.add(tenant, f".{name}")
        try:
            yield
        except Exception:  # what ends the process leaves the note
            self._sent(tenant, name, here())
            raise
        self._sent(tenant, name, here())

    def _sent(self, tenant: str, name: str, here: bool) -> None:
        if not here:  # dropped while it was on its way
            self.add(tenant, name)
        (self._root / folder(tenant) / f".{name}").unlink(missing_ok=True)

    def recover(self, here: Callable[[ImageName], bool]) -> None:
        """Delete remotely what an agent that was killed was sending, where the image is not here any more."""
        for path in matching(self._root, "*/.*"):
            tenant, file = tenant_of(path.parent.name), path.name[1:]
            name = parse_image(tenant, file)
            if name is not None and not here(name):
                self.add(tenant, file)
            path.unlink(missing_ok=True)

    def waiting(self) -> list[tuple[str, str]]:
        """(tenant, name) of what has not been removed yet."""
        return sorted((tenant_of(path.parent.name), path.name) for path in matching(self._root, "*/*"))

    def run(self) -> None:
        """Remove what waits and, now and then, what no image over there needs. A failure is logged once, and retried."""
        waiting = self.waiting()
        try:
            for tenant, name in waiting:
                self._store.drop_remote(self._remote, tenant, *map(int, name.split(".")))
                (self._root / folder(tenant) / name).unlink(missing_ok=True)
            if self._clock() - self._swept_at >= SWEEP_S:
                self._sweep()
        except (TideError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("%d removals of remote copies are still to be made: %s; tried again", len(waiting), error)
            self._trouble = str(error)
        else:
            if self._trouble:
                log.info("remote copies can be removed again")
            self._trouble = ""

    def _sweep(self) -> None:
        freed = self._store.collect_remote(self._remote, self._clock())
        self._swept_at = self._clock()
        for note in freed.notes:
            log.warning("%s", note)
        if freed.packs:
            log.info("%d packs that no image needs were removed from the remote store", freed.packs)
