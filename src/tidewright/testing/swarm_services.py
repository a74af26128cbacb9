"""The hostile world of ``testing.swarm`` with services among its jobs: deployed, scaled, updated and deleted at any moment."""

from __future__ import annotations

from msgspec.structs import replace

from ..base.units import SECOND
from ..engine import commands as co
from ..engine import events as ev
from ..model.job import State
from ..model.service import ServiceSpec
from .swarm_clients import ClientSwarm


class ServiceSwarm(ClientSwarm):
    """Services of three names; replicas ask for whatever jobs ask for, or are clients of runtimes that may not be there."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.replicas = 0
        """Replicas that have ended."""
        self.from_images = 0
        """Starts of replicas from the image of another."""

    def _surprise(self) -> ev.Event:
        rng = self.rng
        if rng.random() >= 0.2:
            return super()._surprise()
        name, op_id, choice = rng.choice(("a", "b", "c")), f"v{rng.random()}", rng.random()
        if choice < 0.15:
            return ev.DeleteService(name, op_id)
        if choice < 0.4:
            return ev.ScaleService(name, rng.randrange(5), op_id)
        if choice < 0.7:
            return self._said_by_the_gateway(op_id)
        spec = replace(self._submission().spec, array=None, after=(), max_duration_us=0)
        from_image = rng.random() < 0.5
        if from_image:
            spec = replace(spec, ranks=1, devices=1, min_devices=0, runtime="")
        least = rng.randrange(3)
        service = ServiceSpec(
            name=name, replica=spec, min_replicas=least, max_replicas=max(1, least + rng.randrange(3)),
            reports_ready=from_image or rng.random() < 0.5, from_image=from_image,
            reclaim_us=rng.choice((0, SECOND)),
        )  # fmt: skip
        return ev.DeployService(service, op_id)

    def _said_by_the_gateway(self, op_id: str) -> ev.Event:
        """Of a replica that there may be no more: it is ready, or waits to be the image of its service."""
        book, rng = self.engine.book, self.rng
        found = [(name, job) for name, record in book.services.records.items() for job in record.replicas]
        runs = [(name, job) for name, job in found if job in book.jobs and book.state(job) is State.RUNNING]
        name, job = rng.choice(runs if runs and rng.random() < 0.8 else found or [("a", 0)])
        attempt = book.jobs[job].attempt if job in book.jobs and rng.random() < 0.9 else 1
        said = ev.TakeServiceImage if rng.random() < 0.7 else ev.ReplicaReady
        return said(name, job, attempt, op_id)

    def _note(self, command: co.Command) -> None:
        if isinstance(command, co.Launch) and command.image_job:
            self.from_images += 1
        if isinstance(command, co.Ended) and command.spec.service:
            self.accepted[command.job] = True
            self.replicas += 1
        super()._note(command)

    def settle(self, turns: int = 4000) -> None:
        """Users delete their services; then as in other swarms."""
        self.turn([ev.DeleteService(name) for name in self.engine.book.services.records])
        super().settle(turns)
        assert not self.engine.book.services.records, "a service outlives its replicas"
