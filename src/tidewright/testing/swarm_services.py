"""The hostile world of ``testing.swarm`` with services among its jobs: deployed, scaled, updated and deleted at any moment; and
with users who change, requeue, hold and release jobs as they like."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..base.units import SECOND
from ..engine import commands as co
from ..engine import events as ev
from ..model.job import State
from ..model.service import ServiceSpec
from ..model.spec_changes import SpecChanges
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
        if isinstance(command, co.Launch) and (command.image_job, command.image) not in self.images.parts:
            self.images.unreported[command.image_job] = (
                True  # other replicas may be launched from it before the report comes
            )

    def settle(self, turns: int = 4000) -> None:
        """Users delete their services; then as in other swarms."""
        self.turn([ev.DeleteService(name) for name in self.engine.book.services.records])
        super().settle(turns)
        assert not self.engine.book.services.records, "a service outlives its replicas"


_WAITS, _RUNS = (State.QUEUED, State.SUSPENDED, State.HELD), (State.RUNNING, State.SUSPENDED, State.STOPPING)


class ChangeSwarm(ServiceSwarm):
    """Jobs, clients of runtimes and replicas of services; some are submitted to be held."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.granted: dict[str, int] = {}
        """Requests that were granted, by the first letter of their op_id: u(pdate), q (requeue), w (hold)."""

    def _submission(self) -> ev.Submit:
        submission = super()._submission()
        hold = self.rng.random() < 0.1
        return replace(submission, spec=replace(submission.spec, hold=hold)) if hold else submission

    def _surprise(self) -> ev.Event:
        rng = self.rng
        if rng.random() >= 0.35:
            return super()._surprise()
        choice = rng.random()
        if choice < 0.25:
            return ev.Hold(self._some_job(*_WAITS), f"w{rng.random()}", waiting=True, by="ada")
        job = self._some_job(*_RUNS)
        if choice < 0.55:
            return ev.Update(job, self._changes(), f"u{rng.random()}", "ada")
        if choice < 0.85:
            return ev.Requeue(job, f"q{rng.random()}", "ada", rng.random() < 0.3, rng.random() < 0.2)
        return ev.Release(job, f"r{rng.random()}")

    def _some_job(self, *states: State) -> int:
        """A job that may have ended, or has never been; those in ``states`` are chosen more often than by chance."""
        book, rng = self.engine.book, self.rng
        found = [job for job in book.specs if book.state(job) in states]
        return rng.choice(found) if found and rng.random() < 0.6 else rng.randrange(1, self.submitted + 3)

    def _changes(self) -> SpecChanges:
        rng = self.rng
        fields: dict[str, Any] = {
            "name": f"j{rng.randrange(99)}x", "team": rng.choice(("a", "b")), "weight": rng.choice((0.5, 2.0, -1.0)),
            "tier": rng.choice(("basic", "standard", "premium")), "retries": rng.randrange(3),
            "max_duration_us": rng.choice((0, 1, 800, 6000)), "limit_by_us": rng.choice((-2000, 500, 4000)),
            "deadline_us": rng.choice((0, 700, 9000)), "expected_us": rng.choice((0, 3000)),
        }  # fmt: skip
        chosen = rng.sample(sorted(fields), rng.randrange(1, 4))
        return SpecChanges(**{name: fields[name] for name in chosen})

    def _note(self, command: co.Command) -> None:
        if isinstance(command, co.Reply) and not command.error:
            letter = command.op_id[:1]
            self.granted[letter] = self.granted.get(letter, 0) + 1
        super()._note(command)
