"""The hostile world of ``testing.swarm`` with device runtimes and clients of theirs among its jobs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..engine import events as ev
from ..model.job import State
from .swarm import Swarm


class ClientSwarm(Swarm):
    """Some jobs are runtimes, of two names and two users; some are clients that name one of them, which may not be there."""

    def _submission(self) -> ev.Submit:
        submission, rng = super()._submission(), self.rng
        kind, user = rng.random(), rng.choice(("ada", "ada", "bob"))
        if kind < 0.2:
            fields: dict[str, Any] = {"name": rng.choice(("r1", "r2")), "kind": "runtime", "user": user, "array": None}
            fields |= {"cpus_milli": 0, "memory": 0}
            return replace(submission, spec=replace(submission.spec, preempt="requeue", **fields))
        if kind < 0.6:
            name = rng.choice(("r1", "r2", str(rng.randrange(1, self.submitted + 1))))
            fields = {
                "devices": 0, "min_devices": 0, "device_types": (), "gpu_memory": 0, "gpu_milli": 0,
                "cpus_milli": 0, "memory": 0, "preempt": "auto", "runtime": name,
                "user": user, "ranks": rng.choice((1, 1, 2)),
            }  # fmt: skip
            return replace(submission, spec=replace(submission.spec, **fields))
        return submission

    def running_clients(self) -> int:
        """How many clients run now."""
        running = (record for record in self.engine.book.jobs.values() if record.state == State.RUNNING)
        return sum(bool(record.runtime_job) for record in running)
