"""The hostile world of ``testing.swarm`` whose users change, requeue, hold and release jobs at any moment."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..engine import commands as co
from ..engine import events as ev
from ..model.job import State
from ..model.spec_changes import SpecChanges
from .swarm_services import ServiceSwarm


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
