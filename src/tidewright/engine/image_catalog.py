"""What the book knows of full images beyond single jobs: where the latest of each lies, and which nodes died with theirs."""

from __future__ import annotations

from ..model.job_record import EVERYWHERE, Image, JobRecord
from .nodes.failure_rate import Failures
from .settings import EngineSettings


class ImageCatalog:
    """The part of the book that is about images."""

    jobs: dict[int, JobRecord]
    nodes: dict[str, int]
    settings: EngineSettings

    def __init__(self) -> None:
        self.image_nodes: dict[int, tuple[int, ...]] = {}
        """The nodes where the latest image of a job lies, in rank order, for planners."""
        self.with_images: dict[int, bool] = {}
        """Jobs that have images, or have had them since they last began anew, the one imaged first first."""
        self.dead: dict[int, bool] = {}
        """Nodes with which everything on them died (others in ``node_down`` are silent)."""
        self.world_failures = Failures()

    def keep_images(self, job: int, kept: tuple[Image, ...]) -> None:
        """These are the job's images now."""
        self.jobs[job].images = kept
        self.with_images[job] = True
        nodes = self._nodes_of_image(kept[-1]) if kept else ()
        if nodes:
            self.image_nodes[job] = nodes
        else:
            self.image_nodes.pop(job, None)

    def drop_images(self, job: int) -> tuple[Image, ...]:
        """The job begins anew; returns the images that it had."""
        record = self.jobs[job]
        images, record.images = record.images, ()
        for index in (self.image_nodes, self.with_images):
            index.pop(job, None)
        return images

    def _nodes_of_image(self, image: Image) -> tuple[int, ...]:
        """Node indices: where it was taken, as long as each part is there, else where copies are. None where images lie in
        one place that every node has equally far.
        """
        names = image.copies if image.torn else image.nodes
        return () if self.settings.shared_images else tuple(self.nodes[name] for name in names if name != EVERYWHERE)

    def image_node_names(self, job: int) -> tuple[str, ...]:
        """Names of the nodes that hold something of the job's latest image, copies included; "*" is a store beyond them."""
        image = self.jobs[job].image
        return image.places if image else ()
