"""What agents reported of themselves: their addresses, which are down, and which images lie where. Stores and decides
nothing; every agent that connects reports all of it again."""

from __future__ import annotations

from collections.abc import Iterable

from ...wire.agent import ImageReport, Peer

KEPT = 3
"""Serials remembered per job; agents keep two."""


class ImageRegistry:
    """By node name. ``peers``: where its agent is reached by others; ``dead``: whether the node was found to be down,
    or to be there, since the controller was started."""

    def __init__(self) -> None:
        self.peers: dict[str, Peer] = {}
        self.dead: dict[str, bool] = {}
        self.made: dict[int, dict[int, dict[str, ImageReport]]] = {}
        """Job to serial to node to that node's report on its own part of the image."""
        self._held: dict[int, dict[int, dict[str, int]]] = {}
        """Job to serial to node to the ranks whose images can be fetched there, as a bit set."""
        self._sent: dict[int, dict[str, bool]] = {}
        """Job to the nodes that hold images of it or were sent some; older serials included."""

    def inventory(self, node: str, images: Iterable[tuple[int, int, int]]) -> None:
        """All that the node holds, replacing what was believed."""
        for serials in self._held.values():
            for holders in serials.values():
                holders.pop(node, None)
        for job, serial, rank in images:
            self.hold(node, job, serial, (rank,))

    def hold(self, node: str, job: int, serial: int, ranks: Iterable[int]) -> None:
        """Other nodes can fetch these ranks' images from the node."""
        self.sent(node, job)
        serials = self._held.setdefault(job, {})
        holders = serials.setdefault(serial, {})
        for rank in ranks:
            holders[node] = holders.get(node, 0) | 1 << rank
        forget_older(serials)

    def note(self, node: str, job: int, image: ImageReport) -> None:
        """A node's report on its part of an image it made."""
        serials = self.made.setdefault(job, {})
        serials.setdefault(image.serial, {})[node] = image
        forget_older(serials)
        self.hold(node, job, image.serial, image.ranks)

    def sent(self, node: str, job: int) -> None:
        """The node was sent a call after which it may hold images of the job."""
        self._sent.setdefault(job, {})[node] = True

    def holds(self, node: str, job: int, serial: int, ranks: int) -> bool:
        """Whether the node has the images of all ranks."""
        return self._held.get(job, {}).get(serial, {}).get(node, 0) == (1 << ranks) - 1

    def holders(self, job: int, serial: int) -> list[str]:
        """Nodes that have some rank's image."""
        return list(self._held.get(job, {}).get(serial, {}))

    def lacks(self, node: str, job: int, serial: int, ranks: int) -> tuple[int, ...]:
        """Ranks whose images the node does not have."""
        mine = self._held.get(job, {}).get(serial, {}).get(node, 0)
        return tuple(rank for rank in range(ranks) if not mine >> rank & 1)

    def sources(self, job: int, serial: int, but: str = "") -> tuple[Peer, ...]:
        """Agents that have some rank's image and can be reached, other than ``but``."""
        holders = self._held.get(job, {}).get(serial, {})
        return tuple(
            self.peers[node] for node in holders if node != but and node in self.peers and not self.dead.get(node)
        )

    def stored(self, job: int, serial: int, ranks: int) -> dict[str, ImageReport] | None:
        """The reports of the nodes that made an image once every rank of it is stored; None before."""
        made = self.made.get(job, {}).get(serial, {})
        there = 0
        for image in made.values():
            for rank in image.ranks if image.stored and not image.lost else ():
                there |= 1 << rank
        return made if there == (1 << ranks) - 1 else None

    def held_us(self, job: int) -> int:
        """How long it took to quiesce the ranks for the newest image, microseconds; 0 when that is not known here."""
        serials = self.made.get(job, {})
        return max((part.hold_us for part in serials[max(serials)].values()), default=0) if serials else 0

    def where(self, job: int) -> list[str]:
        """Nodes that hold something of the job's images, or may."""
        return list(self._sent.get(job, {}))

    def jobs_on(self, node: str) -> list[int]:
        """Jobs of which the node holds images, or may."""
        return [job for job, nodes in self._sent.items() if node in nodes]

    def drop(self, job: int) -> None:
        """Nothing of the job is needed any more."""
        self.made.pop(job, None)
        self._held.pop(job, None)
        self._sent.pop(job, None)


def forget_older(serials: dict[int, dict[str, int]] | dict[int, dict[str, ImageReport]]) -> None:
    """Keep the newest few."""
    while len(serials) > KEPT:
        del serials[min(serials)]
