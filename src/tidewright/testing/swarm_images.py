"""The settings of a swarm run, and the images that truly lie on its nodes' disks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from ..engine import commands as co
from ..engine import events as ev
from ..engine.book import Book
from ..engine.settings import EngineSettings, live_settings


def swarm_settings(seed: int) -> EngineSettings:
    """Odd seeds are real nodes, each with its own images; even ones a simulated pool with a shared store."""
    quick: dict[str, Any] = {
        "check_every": 1, "backoff_us": 1000, "backoff_max_us": 4000, "planning_retry_us": 3000, "checkpoints": True,
        "checkpoint_min_us": 500, "checkpoint_patience_us": 9000, "node_mtbf_us": 10_000, "save_us": 50, "full_save_us": 50,
        "image_rate": 10**12, "splice_milli": 60,
    }  # fmt: skip
    return live_settings(**quick) if seed % 2 else EngineSettings(**quick)


class SwarmImages:
    """The images that there truly are: (job, serial) to the nodes that hold its parts, and where whole copies of it lie."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], tuple[str, ...]] = {}
        self.copies: dict[tuple[int, int], dict[str, bool]] = {}
        self.changed: dict[tuple[int, int], bool] = {}
        """Images that lost something in this step, which an order given earlier in it may still name."""
        self.unreported: dict[int, bool] = {}
        """Jobs whose image was found damaged by an attempt that was over when it said so."""

    def put(self, job: int, serial: int, nodes: tuple[str, ...], copies: tuple[str, ...]) -> None:
        """A new image. Raises AssertionError when the number was used before."""
        key = (job, serial)
        assert key not in self.parts, f"image {key} made twice"
        self.parts[key], self.copies[key] = nodes, dict.fromkeys(copies, True)

    def copy(self, job: int, serial: int, node: str) -> None:
        """The whole image is there as well."""
        self.copies[job, serial][node] = True

    def lose(self, node: str) -> None:
        """A node died with what it held."""
        for key, nodes in list(self.parts.items()):
            if node in nodes or node in self.copies[key]:
                self.changed[key] = True
            self.copies[key].pop(node, None)
            if node in nodes:
                self.parts[key] = ()

    def spoil(self, job: int, serial: int) -> None:
        """The image, if there is one, is damaged everywhere."""
        self.parts.pop((job, serial), None)
        self.copies.pop((job, serial), None)

    def restore(self, job: int, serial: int) -> bool:
        """Whether the image is there; gone only since this step, or unreported. Raises AssertionError otherwise."""
        key = (job, serial)
        there = bool(self.parts.get(key) or self.copies.get(key))
        assert there or key in self.changed or job in self.unreported, f"image {key} is asked for but gone"
        return there

    def observe(self, book: Book, events: Iterable[ev.Event]) -> None:
        """Note damage reported by an attempt that is over: the engine ignores it, and the next to restore it reports it again."""
        for event in events:
            if isinstance(event, ev.StartFailed | ev.ResumeFailed) and event.image_lost:
                row = book.table.row.get(event.job)
                if row is not None and book.table.attempt.item(row) != event.attempt:
                    self.unreported[event.job] = True

    def drop(self, command: co.DropImages) -> None:
        """Images that are not needed any more."""
        for key in [key for key in self.parts if key[0] == command.job and key[1] not in command.keep]:
            del self.parts[key], self.copies[key]


class Memory:
    """A recorder that keeps the encoded steps."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes) -> None:
        self.records.append(record)


class KindRandom(random.Random):
    """Randomness in which nothing fails: chances of harm never come true, choices stay random."""

    def __init__(self, source: random.Random) -> None:
        super().__init__(source.randrange(2**32))

    def random(self) -> float:
        return 0.999

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)
