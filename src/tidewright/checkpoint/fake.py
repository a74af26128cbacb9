"""A driver without processes that misbehaves on request, for tests of everything above it."""

from __future__ import annotations

from ..base.errors import WorldError
from ..model.job import Level
from .protocol import Gang, GangImage, RestorePlacement
from .verdict import DriverVerdict


class FakeDriver:
    """Set ``refusal``, ``save_error`` or ``restore_error`` at any time; ``held`` are the attempts saved now."""

    name = "fake"

    def __init__(self, level: Level = Level.FULL, *, home: str = "") -> None:
        self.level = level
        self.refusal = ""
        self.save_error = ""
        self.restore_error = ""
        self.held: dict[tuple[int, int], GangImage] = {}
        self._home = home

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        return DriverVerdict(not self.refusal, self.refusal)

    def save(self, gang: Gang) -> GangImage:
        if self.save_error:
            raise WorldError(self.save_error)
        image = GangImage(driver=self.name, job=gang.job, attempt=gang.attempt, home=self._home, ranks=gang.ranks)
        self.held[gang.job, gang.attempt] = image
        return image

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        if self.restore_error:
            raise WorldError(self.restore_error)
        if image.home not in ("", placement.node):
            raise WorldError(f"saved on {image.home}, not on {placement.node}")
        self.held.pop((image.job, image.attempt), None)

    def discard(self, image: GangImage) -> None:
        self.held.pop((image.job, image.attempt), None)
