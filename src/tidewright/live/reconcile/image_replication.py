"""Images as agents report them: when one is whole, where its copies go, and the level that an attempt really has."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...engine.book import Book
from ...engine.events import Checkpointed, CheckpointFailed, Event, ImageCopied, LevelLowered, Noticed
from ...model.job import Level, State
from ...model.job_record import Image
from ...wire import agent as wire
from .agent_calls import AgentCalls, Call, CallOutcome, forget_call
from .aggregate_reports import GONE
from .image_registry import ImageRegistry
from .pending_commands import level_of, serial

log = logging.getLogger(__name__)
EVERYWHERE = "*"
"""The store that outlives nodes, in ImageCopied."""


class ImageReplication:
    """Every image is to survive the node it was taken on: it goes to the remote store, else to one other node."""

    def __init__(self, book: Book, registry: ImageRegistry, agent_calls: AgentCalls) -> None:
        self.book, self.registry, self.agent_calls = book, registry, agent_calls
        self._requested: dict[tuple[int, int], list[str]] = {}
        """(job, serial) to the nodes that were asked to take a copy, in order."""
        self._reported: dict[tuple[int, int], list[str]] = {}
        """(job, serial) to the places reported to the engine."""
        self._levels: dict[int, tuple[int, int]] = {}
        """Job to (attempt, level) of the last lowering reported."""
        self._notices: dict[int, str] = {}

    def serial(self, job: int) -> int:
        """The image that is being made of the job or that it comes back from; 0: none."""
        record = self.book.jobs.get(job)
        return serial(self.book, job) or (record.source if record is not None else 0)

    def on_report(self, node: str, report: wire.JobReport) -> CallOutcome:
        """The events and calls that follow from what a report says of images and levels."""
        job, image = report.job, report.image
        if job not in self.book.specs:
            made = image is not None and not report.error
            return CallOutcome([], [forget_call(node, job, 0, images=True, left=True)] if made else [])
        if report.verb == "fetch":
            if report.error:
                return CallOutcome([], self.retry(node, job, report.error))
            if image is None:  # it has begun; the result is reported later
                return CallOutcome([], [])
            self.registry.hold(node, job, image.serial, image.ranks)
            return CallOutcome(self.copied(job), [])
        events = [*self._lowered(report), *self._noticed(report), *self._not_made(report)]
        if image is None or not image.serial or image.lost or report.error:
            return CallOutcome(events, [])
        self.registry.note(node, job, image)
        return CallOutcome([*events, *self._made(report, image), *self.copied(job)], self._spread(report, image))

    def inventory(self, node: str, found: wire.Inventory) -> CallOutcome:
        """Register the images that a node holds; those of jobs that have ended are dropped."""
        if found.peer is not None:
            self.registry.peers[node] = found.peer
        self.registry.inventory(node, found.images)
        held = self.registry.jobs_on(node)
        ended = [job for job in held if job not in self.book.specs]
        for job in ended:
            self.registry.drop(job)
        events = [event for job in held for event in self.copied(job)]
        return CallOutcome(events, [forget_call(node, job, 0, images=True, left=True) for job in ended])

    # -- made ---------------------------------------------------------------------------------------------------------

    def _made(self, report: wire.JobReport, image: wire.ImageReport) -> list[Event]:
        """The image of a running job is whole once every node has stored its part."""
        job = report.job
        awaited = self.book.state(job) is State.RUNNING and serial(self.book, job) == image.serial
        made = self.registry.stored(job, image.serial, self.book.specs[job].ranks) if awaited else None
        if made is None:
            return []
        parts = list(made.values())
        event = Checkpointed(
            job, report.attempt, image.serial, max(part.save_us for part in parts), max(part.hold_us for part in parts),
            sum(part.size_bytes for part in parts),
        )  # fmt: skip
        return [event]

    def _not_made(self, report: wire.JobReport) -> list[Event]:
        if report.verb != "checkpoint" or not report.error or report.state in GONE:
            return []
        return self.failed(report.job, report.attempt, report.error)

    def failed(self, job: int, attempt: int, error: str) -> list[Event]:
        """No image was made; of no interest once the job has gone on to something else."""
        running = job in self.book.specs and self.book.state(job) is State.RUNNING
        wanted = serial(self.book, job) if running else 0
        return [CheckpointFailed(job, attempt, wanted, error)] if wanted else []

    def answered(self, report: wire.JobReport) -> bool:
        """Whether the agent has made the image that a running job waits for."""
        wanted = serial(self.book, report.job)
        return not wanted or (report.image is not None and report.image.serial == wanted)

    # -- copied -------------------------------------------------------------------------------------------------------

    def _spread(self, report: wire.JobReport, image: wire.ImageReport) -> list[Call]:
        """Once an image is stored whole: ask for a copy, unless it is in the remote store."""
        job = report.job
        made = self.registry.stored(job, image.serial, self.book.specs[job].ranks)
        if made is None or (job, image.serial) in self._requested or all(part.remote for part in made.values()):
            return []
        return self._request_copy(job, report.attempt, image.serial)

    def copied(self, job: int) -> list[Event]:
        """Events of the places that hold an image whole and were not reported to the engine yet; for images that it knows."""
        if job not in self.book.specs:
            return []
        record = self.book.jobs[job]
        ranks = record.spec.ranks
        events: list[Event] = []
        for image in record.images:
            made = self.registry.stored(job, image.serial, ranks)
            remote = made is not None and all(part.remote for part in made.values())
            held = [node for node in self.registry.holders(job, image.serial) if image.nodes != (node,)]
            places = [EVERYWHERE] * remote + [
                node for node in held if self.registry.holds(node, job, image.serial, ranks)
            ]
            reported = self._reported.setdefault((job, image.serial), list(image.copies))
            new = [place for place in places if place not in reported and place not in image.copies]
            reported += new
            events += [ImageCopied(job, image.serial, place) for place in new]
        return events

    def _request_copy(self, job: int, attempt: int, serial: int) -> list[Call]:
        """One node outside takes all of it; where there is none, each node of the gang takes what it lacks."""
        requested = self._requested.setdefault((job, serial), [])
        makers = list(self.registry.made.get(job, {}).get(serial, {}))
        outside = [node for node in self._takers(job) if node not in makers and node not in requested]
        chosen = outside[:1] or [node for node in makers if len(makers) > 1 and node not in requested]
        requested += chosen
        calls = [self.agent_calls.fetch(node, job, attempt, serial) for node in chosen]
        return [call for call in calls if call is not None]

    def _takers(self, job: int) -> list[str]:
        """Nodes that could take a copy: those that could also restore it first; begins elsewhere for every job."""
        nodes = self.book.board.layout.nodes
        alive = [
            node for index, node in enumerate(nodes)
            if index not in self.book.node_down and node.name in self.registry.peers and not self.agent_calls.is_dead(node.name)
        ]  # fmt: skip
        names = [node.name for node in alive if node.full] or [node.name for node in alive]
        first = job % len(names) if names else 0
        return [*names[first:], *names[:first]]

    def retry(self, node: str, job: int, error: str = "refused") -> list[Call]:
        """A copy could not be taken there: the next node is asked, each at most once."""
        log.warning("node %s took no copy of job %d's image: %s", node, job, error)
        record = self.book.jobs.get(job)
        image = record.image if record is not None else None
        if image is None or node not in self._requested.get((job, image.serial), []):
            return []
        return self._request_copy(job, image.attempt, image.serial)

    def kept(self, node: str, held: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
        """(job, serial) of images of which a node that was started anew has its part still.

        ``held``: (job, serial, rank) of what lies there; a restore checks it against its hashes. Of an image
        that several nodes made, one's part is known only from what it has reported since the controller was started.
        """
        there = frozenset(held)
        return tuple(
            (job, image.serial)
            for job, record in self.book.jobs.items()
            for image in record.images
            if (part := self._part(node, job, image)) and all((job, image.serial, rank) in there for rank in part)
        )

    def _part(self, node: str, job: int, image: Image) -> tuple[int, ...]:
        """The ranks of an image that the node should have; none when that is not known."""
        if node in image.copies or image.nodes == (node,):
            return tuple(range(self.book.specs[job].ranks))
        made = self.registry.made.get(job, {}).get(image.serial, {}).get(node)
        return made.ranks if made is not None and node in image.nodes else ()

    def node_down(self, node: str) -> None:
        """The node is down; what it holds when it comes back is reported again."""
        for places in self._reported.values():
            if node in places:
                places.remove(node)

    # -- levels -------------------------------------------------------------------------------------------------------

    def _lowered(self, report: wire.JobReport) -> list[Event]:
        job, row = report.job, self.book.table.row[report.job]
        current = self.book.table.attempt[row] == report.attempt and self.book.state(job) is State.RUNNING
        if report.level < 0 or not current or report.level >= level_of(self.book, job):
            return []
        if self._levels.get(job) == (report.attempt, report.level):
            return []
        self._levels[job] = (report.attempt, report.level)
        why = report.level_why or f"its node can suspend it by {Level(report.level).name.lower()} at most"
        return [LevelLowered(job, report.attempt, report.level, why)]

    def _noticed(self, report: wire.JobReport) -> list[Event]:
        """An agent's notice to a job's user, each once."""
        if not report.notice or self._notices.get(report.job) == report.notice:
            return []
        self._notices[report.job] = report.notice
        return [Noticed(report.job, report.attempt, report.notice)]

    def forget(self, job: int) -> None:
        """The job has ended."""
        self._levels.pop(job, None)
        self._notices.pop(job, None)
        for store in (self._requested, self._reported):
            for key in [key for key in store if key[0] == job]:
                del store[key]
