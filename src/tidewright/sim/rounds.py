"""When jobs are admitted and plans are made under a profile that does not do so at once, and how far jobs get in a round.

It refuses to know who asked for a plan and what is in it.
"""

from __future__ import annotations

from ..model.rate import lasts_us, progress_us
from .profile import ClusterProfile
from .trace import Trace
from .world import SimulatedWorld, Truth


class Pace:
    """The rounds of one simulation. Times are absolute microseconds.

    A round starts when ``opens`` says so; every instant at which one could start is among those that ``next`` gives.
    """

    def __init__(self, profile: ClusterProfile, trace: Trace) -> None:
        self.profile = profile
        self.every = profile.round_us or profile.tick_us or 1
        self.whole_steps = profile.round_end == "last-finish" and profile.round_us > 0
        self._steps = trace.step_us.tolist() if trace.step_us is not None else None
        self._origin = 0
        """Start of a round from which later ones are counted."""
        self._planned = -1
        """Time of the last allocation; -1: none yet."""
        self.end = -1
        """With rounds of whole steps, when the one under way is over; -1: none is."""

    def opens(self, now: int) -> bool:
        """Whether a round starts at this instant."""
        if self.whole_steps:
            return self.end < 0 or now == self.end
        return (now - self._origin) % self.every == 0

    def next(self, now: int, submit: int | None, asked: bool, empty: bool) -> int | None:
        """When a round starts for the next submission or the plan that was asked for; None: for neither.

        ``empty``: no job is in the cluster. In O(1), however long nothing happens.
        """
        if self.end >= 0:
            return self.end
        times = []
        if submit is not None:
            times.append(self._admission(max(submit, now), empty))
        if asked:
            times.append(self.planning(now))
        return min(times, default=None)

    def _admission(self, at: int, empty: bool) -> int:
        if empty and self.profile.round_end == "idle":
            tick = self.profile.tick_us or 1
            self._origin = -(-at // tick) * tick
        return at if self.whole_steps else self._start(at)

    def _start(self, at: int) -> int:
        """The first round that starts at ``at`` or later, where rounds are of one length."""
        return self._origin - (self._origin - at) // self.every * self.every

    def planning(self, now: int) -> int:
        """The first instant from ``now`` at which a plan may be made. All plans of one instant are one allocation."""
        at = self.allocation(now)
        if not self.whole_steps:
            return self._start(at)
        # Of a round under way only the end is known: there it is asked again.
        return at if self.opens(now) else self.end

    def allocation(self, now: int) -> int:
        """When the next allocation may be made, rounds aside."""
        if self._planned < 0 or now == self._planned:
            return now
        return max(now, self._planned + self.profile.reallocation_us)

    def plan(self, now: int) -> None:
        """An allocation is made."""
        self._planned = now

    # -- rounds of whole steps ----------------------------------------------------------------------------------------

    def begin(self, now: int, world: SimulatedWorld, until: int | None) -> None:
        """Let every job that has devices do its whole steps, and fix the end of the round: the latest of their finishes.

        Rounds before ``until``, when something comes from outside, in which no job ends are taken as one.
        """
        running = [(job, truth) for job, truth in world.jobs.items() if truth.allocation and truth.rate]
        for _, truth in running:
            world.count_progress(truth, now)
        work = [self._work(truth, now) for _, truth in running]
        rounds = 1
        if running and all(truth.since <= now for _, truth in running):
            rounds = min(
                (truth.duration - truth.done - 1) // done for (_, truth), done in zip(running, work, strict=True)
            )
            if until is not None:
                length = max(_wall(truth, done) for (_, truth), done in zip(running, work, strict=True))
                rounds = min(rounds, -(-(until - now) // length))
            rounds = max(1, rounds)
        self.end = -1
        for (job, truth), done in zip(running, work, strict=True):
            truth.cap = min(truth.duration, truth.done + rounds * done)
            ends = max(now, truth.since) + rounds * _wall(truth, min(done, truth.duration - truth.done))
            self.end = max(self.end, world.agenda.ticked(ends if done else now + self.profile.round_us))
            if truth.cap == truth.duration:
                world.foresee_end(job, truth, ends)

    def _work(self, truth: Truth, now: int) -> int:
        """Full-speed microseconds of the steps that fit into the round, at least one; none for a job that launches through it."""
        time = self.profile.round_us - max(0, truth.since - now)
        if time <= 0:
            return 0
        work = progress_us(time, truth.rate)
        step = self._steps[truth.row] if self._steps is not None else 0.0
        return max(1, round(max(1, int(work / step)) * step) if step else work)


def _wall(truth: Truth, work: int) -> int:
    return lasts_us(work, truth.rate)
