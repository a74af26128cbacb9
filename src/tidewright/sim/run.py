"""The simulator's loop: jump to the next instant at which something happens, step the engine, carry out its commands.

One of the two places that decide what time it is (the other is live/run). It refuses to know which policy it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, structs

from ..base.errors import Bug
from ..base.units import DAY, MS, SECOND, agreeing, counted, format_duration
from ..drive.driver import EngineDriver, Recorder
from ..engine.book import QUEUED
from ..engine.commands import Command, Ended, PlanRequest, Reply
from ..engine.engine import Engine
from ..engine.events import Cancel, Event, PlanReady, Submit, Tick
from ..engine.settings import RULES, EngineSettings
from ..estimate.rates import rates_of
from ..model.job import JobSpec
from ..model.node import NodeSpec
from ..model.rate import RateSettings
from ..model.splice import OVERHEAD_MILLI
from ..plan.plan import Planner
from ..plan.reasons import Reason
from .agenda import Agenda
from .costs import Costs, typical_us
from .faults import Faults, FaultSettings, FaultWatch
from .free_share import FreeDevices
from .meter import ArrivalMeter, PoolMeter
from .metrics import Labels, Outcomes, measure
from .profile import ClusterProfile
from .result import SimulationResult
from .rounds import Pace
from .trace import Trace, as_asked, tie_ranks
from .world import SimulatedWorld

Progress = Callable[[int, int, int], None]
"""Called now and then with (jobs settled, jobs in the trace, simulated microseconds)."""
_YEAR = 365 * DAY
_PROGRESS_TURNS = 2048
_IDLE_ROUNDS = 10_000
"""Planning rounds in a row without a move, less than a millisecond apart on average, that no sane policy needs."""


class Options(Struct, frozen=True, kw_only=True):
    """How to simulate. Times in microseconds; ``horizon_us`` ends a run that would go on without end."""

    profile: ClusterProfile = ClusterProfile()
    costs: Costs | None = None
    """Instead of the profile's."""
    faults: FaultSettings = FaultSettings()
    engine: EngineSettings = EngineSettings(history_length=0, forecasts=False, splice_milli=OVERHEAD_MILLI)
    true_rates: RateSettings | None = None
    """How fast jobs truly run where that is not what the engine believes (``engine.rates``)."""
    checkpoints: bool | None = None
    """Whether running jobs are imaged now and then; None: when nodes or ranks fail, which is what images are for."""
    think_us: int = 0
    """How long a plan takes; the world moves on meanwhile."""
    horizon_us: int = 10 * _YEAR
    cluster: str = "custom"
    label: str = ""
    """What to call the policy in results; empty: the planner's own name."""

    @property
    def charged(self) -> Costs:
        """The costs in force."""
        return self.profile.costs if self.costs is None else self.costs


class Simulation:
    """One trace on one cluster under one planner. Same arguments, same result, on any machine."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[NodeSpec],
        planner: Planner,
        options: Options | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.options = options or Options()
        self.trace = trace = as_asked(trace, self.options.profile.placement, self.options.profile.splice)
        self.planner = planner
        self.capacity = sum(node.devices for node in nodes)
        self.meter = PoolMeter()
        faults, engine, profile = Faults(self.options.faults), self.options.engine, self.options.profile
        rates = rates_of(self.options.true_rates or engine.rates, engine.splice_milli)
        self.agenda = Agenda(profile.tick_us)
        self.pace = Pace(profile, trace) if profile.paced else None
        whole_steps = self.pace is not None and self.pace.whole_steps
        self.world = SimulatedWorld(
            nodes, self.agenda, self.meter, self.options.charged, faults, rates, profile.seed, whole_steps
        )
        self.fault_watch = FaultWatch(self.world)
        self.outcomes = Outcomes(trace)
        self._depends = any(spec.after for spec in trace.specs)
        self._job_of: dict[int, int] = {}
        """Row to the job it became, where jobs wait for others."""
        # Remembered for clients that call twice, which a trace has not, and for dependencies on ended jobs, which few have.
        checkpoints = faults.active if self.options.checkpoints is None else self.options.checkpoints
        predict = engine.predict and not trace.expected.all()  # nothing is to be foretold where every run time is given
        forgetful = msgspec.structs.replace(
            engine,
            remembered_answers=0,
            remembered_outcomes=len(trace) if self._depends else 0,
            checkpoints=checkpoints,
            predict=predict,
            rules=RULES,
            explained=profile.refuse,  # a refusal names its reason
        )
        self.engine = Engine(forgetful)
        self.driver = EngineDriver(self.engine, recorder)
        self._submit: list[int] = trace.submit.tolist()
        self.arrivals = ArrivalMeter(self.meter, self._submit, self.pace is not None)
        self._free = FreeDevices(trace, nodes)
        self._rank = tie_ranks(trace, profile.ties, profile.seed)
        self.next_row = 0
        self._due: deque[int] = deque()
        """Rows whose time has come, and that are admitted one by one."""
        self._asked = False
        """Whether the engine has asked for a plan that is made at a later start of a round."""
        self._changed = False
        """Whether a job has come or gone since the last allocation, where these are to be apart: each such change makes one, even
        if the engine knows that no plan could do anything."""
        self._arrived: list[tuple[int, int]] = []
        """(job, row) of those that are refused unless the next plan starts them."""
        self._refused: dict[int, str] = {}
        self.planning_rounds = 0
        self.moves = 0
        self._idle_since = self._idle_rounds = 0
        self.world.boot()

    def run(self, progress: Progress | None = None) -> SimulationResult:
        """Simulate to the end, or to the horizon. What the planner raises comes out with a note on when."""
        while self.outcomes.settled < len(self.trace):
            now = self.next_instant()
            if now is None or now > self.options.horizon_us or self.fault_watch.stopped:
                stands = now is None or self.fault_watch.stopped
                self.arrivals.advance(self.meter.at if stands else self.options.horizon_us)
                break
            self.turn(now)
            if progress is not None and self.driver.turns % _PROGRESS_TURNS == 0:
                progress(self.outcomes.settled, len(self.trace), now)
        return self.result()

    def next_instant(self) -> int | None:
        """When something happens next; None when nothing ever will."""
        submit = self._submit[self.next_row] if self.next_row < len(self._submit) else None
        if self.pace is not None:
            submit = self.meter.at if self._due else submit
            submit = self.pace.next(self.meter.at, submit, self._asked or self._changed, not self.world.jobs)
        first = self.agenda.next()
        if first is None or (submit is not None and submit < first):
            first = submit
        due = self.engine.due()
        return due if first is None or (due is not None and due < first) else first

    def turn(self, now: int) -> None:
        """Everything that happens at one instant, once; what it causes at the same instant is the next step's."""
        if now >= self._free.due:
            self._free.sample(now, self.engine.book.phys)
        self.arrivals.advance(now)
        held = self.meter.held_milli
        events = self.world.deliver(now, self.agenda.take(now))
        if self.world.faults.active:
            self.fault_watch.count(now, events, held - self.meter.held_milli, self.outcomes.settled, self.next_row)
        if self.pace is None or self.pace.opens(now):
            self._submit_due(now, events)
        if not events:
            due = self.engine.due()
            if due is not None and due <= now:
                events.append(Tick())
            elif self.pace is None:
                return
        if events:
            self._step(now, events)
        if self.pace is not None:
            self._settle(now, self.pace)

    def _step(self, now: int, events: Sequence[Event]) -> None:
        commands = self.driver.step(now, events)
        while commands:
            ready = [plan for command in commands if (plan := self._carry_out(now, command)) is not None]
            # A plan that is made in no time and with nothing else happening need not pass through the agenda.
            commands = self.driver.step(now, ready) if ready else []

    def _submit_due(self, now: int, events: list[Event]) -> None:
        submit, row = self._submit, self.next_row
        while row < len(submit) and submit[row] <= now:
            row += 1
        rows: Sequence[int] = range(self.next_row, row)
        if row > self.next_row:
            self.next_row = row
            if self._rank is not None:
                rows = sorted(rows, key=self._rank.__getitem__)
        if self.options.profile.refuse:
            self._due.extend(rows)
            rows = [self._due.popleft()] if self._due else ()
            if rows:
                self.engine.replan()  # what the last plan waits for says nothing of a job that cannot wait
        if rows:
            self.arrivals.presented()
        events.extend(Submit(self._request(at), str(at)) for at in rows)

    def _request(self, row: int) -> JobSpec:
        """The job of a row; it waits for the jobs that the rows it names have become."""
        spec = self.trace.spec(row)
        if not spec.after:
            return spec
        known = [one for one in spec.after if one.job in self._job_of]
        return structs.replace(spec, after=tuple(structs.replace(one, job=self._job_of[one.job]) for one in known))

    # -- at the start of a round --------------------------------------------------------------------------------------

    def _quiet(self, now: int) -> bool:
        """Whether nothing more happens at this instant."""
        upcoming = self.agenda.next()
        return upcoming is None or upcoming > now

    def _settle(self, now: int, pace: Pace) -> None:
        """Once nothing more happens at this instant: make the plan that was asked for, refuse what it left, begin the round."""
        while (self._asked or self._changed) and self._quiet(now) and pace.planning(now) == now:
            pace.plan(now)
            asked, self._asked, self._changed = self._asked, False, False
            plan = self._plan(now) if asked else None
            if plan is not None:
                self._step(now, [plan])
        if self._arrived and not self._asked and self._quiet(now):
            self._refuse_queued(now)
        if pace.whole_steps and pace.opens(now) and self._quiet(now) and not self._due:
            pace.begin(now, self.world, self._from_outside(now, pace))

    def _refuse_queued(self, now: int) -> None:
        book, arrived, self._arrived = self.engine.book, self._arrived, []
        for job, row in arrived:
            at = book.table.row.get(job)
            if at is not None and book.table.state.item(at) == QUEUED and job not in book.reservations:
                blocked = book.blocked.get(job)
                self._refused[row] = str(blocked.reason) if blocked is not None else "Behind"
                self._step(now, [Cancel(job)])

    def _from_outside(self, now: int, pace: Pace) -> int | None:
        """When anything but a job's own work comes next."""
        submit = self._submit[self.next_row] if self.next_row < len(self._submit) else None
        asked = max(now + 1, pace.allocation(now)) if self._asked or self._changed else None
        times = [at for at in (submit, asked, self.agenda.next(), self.engine.due()) if at is not None]
        return min(times, default=None)

    def _carry_out(self, now: int, command: Command) -> PlanReady | None:
        if isinstance(command, PlanRequest):
            if self.pace is None:
                return self._plan(now)
            self._asked = True
            return None
        if isinstance(command, Reply):
            self._answered(command)
        elif isinstance(command, Ended):
            self._ended(command)
        else:
            self.world.obey(now, command)
        return None

    def _ended(self, ended: Ended) -> None:
        self._changed = self.options.profile.reallocation_us > 0
        truth = self.world.forget(ended.job)
        refused = self._refused.get(truth.row) if self._refused else None
        if refused is None:
            self.outcomes.record(truth.row, ended, truth.lost)
        else:
            self.outcomes.refuse(truth.row, refused)

    def _answered(self, reply: Reply) -> None:
        row = int(reply.op_id)
        self.arrivals.answered()
        if reply.error:
            self.outcomes.refuse(row, str(reply.error.code))
            return
        trace, self._changed = self.trace, self.options.profile.reallocation_us > 0
        image_bytes = int(trace.image_bytes[row]) if trace.image_bytes is not None else 0
        if self._depends:
            self._job_of[row] = reply.job
        self.world.admit(reply.job, row, int(trace.duration[row]), self.engine.book.specs[reply.job], image_bytes)
        if self.options.profile.refuse:
            self._arrived.append((reply.job, row))

    def _plan(self, now: int) -> PlanReady | None:
        """Plan on a view that is gone before the next step, so that the engine need not copy its columns.

        Returns the plan if it is the next thing that happens; else it is in the agenda.
        """
        self.planning_rounds += 1
        try:
            plan = self.planner.plan(self.engine.view())
        except Exception as error:
            error.add_note(f"policy {self.planner.name}, trace {self.trace.name}, turn {self.driver.turns}, {now} us")
            raise
        self.moves += len(plan.moves)
        self._watch(now, bool(plan.moves))
        upcoming = self.agenda.next()
        if not self.options.think_us and (upcoming is None or upcoming > now):
            return PlanReady(plan)
        self.agenda.put(now + self.options.think_us, PlanReady(plan))
        return None

    def _watch(self, now: int, moved: bool) -> None:
        """Catch a policy whose wake-ups creep forward by microseconds: the run would never end."""
        if moved or now - self._idle_since > _IDLE_ROUNDS * MS:
            self._idle_since, self._idle_rounds = now, 0
        self._idle_rounds += 1
        if self._idle_rounds > _IDLE_ROUNDS:
            raise Bug(
                f"policy {self.planner.name} plans again and again without a move, at {now} us of {self.trace.name}"
            )

    def result(self) -> SimulationResult:
        """The figures so far. Raises Bug when the simulator's account of devices differs from the engine's."""
        if not self.world.faults.active:
            self._balance()
        labels = Labels(
            policy=self.options.label or self.planner.name,
            cluster=self.options.cluster,
            devices=self.capacity,
            launch_us=typical_us(self.options.charged.launch_us, self.trace.devices),
            profile=self.options.profile.name,
            arriving_area=self.arrivals.area,
            arriving_us=self.arrivals.until if self._all_presented() else 0,
            fragmentation=self._free.fragmentation,
            turns=self.driver.turns,
            planning_rounds=self.planning_rounds,
            moves=self.moves,
            refused_moves=self.engine.refused_moves,
            checkpoints=self.world.checkpoints,
        )
        result = measure(self.outcomes, self.meter, labels)
        remarks = (*result.remarks, *self._beyond_horizon())
        return structs.replace(result, remarks=remarks, horizon_s=self.options.horizon_us / SECOND)

    def _all_presented(self) -> bool:
        return self.next_row == len(self.trace) and not self._due

    def _beyond_horizon(self) -> list[str]:
        """Remarks on an end for faults, and on the jobs of the trace that come after the end of the simulation."""
        if self.fault_watch.stopped:
            at = format_duration(self.meter.at)
            advice = "see --faults: make them rarer, nodes come back sooner, or failures less likely than 1"
            return [
                f"{self.options.label or self.planner.name}: ended after {at}: {self.fault_watch.stopped}; {advice}"
            ]
        horizon = self.options.horizon_us
        late = int((self.trace.submit > horizon).sum())
        if not late:
            return []
        were = agreeing(late, "was", "were")
        after = format_duration(horizon) if horizon % _YEAR else counted(horizon // _YEAR, "year")
        return [f"{counted(late, 'job')} {were} never submitted: the simulation ends after {after}"]

    def why_unfinished(self) -> dict[int, str]:
        """Row to the state in which a job that has not ended is, and the limit it waits behind where one is known."""
        book = self.engine.book
        limits = self._limits() if self.outcomes.settled < len(self.trace) else {}
        waiting = dict.fromkeys((*self._due, *range(self.next_row, len(self.trace))), "not submitted")
        for job, truth in self.world.jobs.items():
            waiting[truth.row] = book.state(job).word + (f": {limits[job]}" if job in limits else "")
        return waiting

    def _limits(self) -> dict[int, Reason]:
        """What keeps the first jobs of the queue waiting, by a plan made now: those of the run did not say."""
        self.engine.enforce(structs.replace(self.engine.settings, explained=True))
        return {blocked.job: blocked.reason for blocked in self.planner.plan(self.engine.view()).blocked}

    def _balance(self) -> None:
        book = self.engine.book
        book_area = book.ledger.held_total + book.ledger.held_milli * (self.meter.at - book.ledger.at)
        if book_area != self.meter.held_area:
            raise Bug(f"held {self.meter.held_area} milli-device-us by the world's count, {book_area} by the ledger's")


def simulate(
    trace: Trace,
    nodes: Sequence[NodeSpec],
    planner: Planner,
    options: Options | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Run a trace on a cluster under a planner."""
    return Simulation(trace, nodes, planner, options).run(progress)
