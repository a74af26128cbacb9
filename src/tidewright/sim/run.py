"""The simulator's loop: jump to the next instant at which something happens, step the engine, carry out its commands.

One of the two places that decide what time it is (the other is live/run). It refuses to know which policy it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ..base.errors import Bug
from ..base.units import DAY, MS
from ..drive.driver import EngineDriver, Recorder
from ..engine.commands import Command, Ended, PlanRequest, Reply
from ..engine.engine import Engine
from ..engine.events import Event, PlanReady, Submit, Tick
from ..engine.settings import EngineSettings
from ..estimate.rates import Rates
from ..model.node import NodeSpec
from ..model.rate import RateSettings
from ..model.splice import OVERHEAD_MILLI
from ..plan.plan import Planner
from .agenda import Agenda
from .faults import Faults, FaultSettings
from .meter import PoolMeter
from .metrics import Labels, Outcomes, measure
from .result import SimulationResult
from .trace import Trace
from .world import Costs, SimulatedWorld

Progress = Callable[[int, int, int], None]
"""Called now and then with (jobs settled, jobs in the trace, simulated microseconds)."""
_PROGRESS_TURNS = 2048
_IDLE_ROUNDS = 10_000
"""Planning rounds in a row without a move, less than a millisecond apart on average, that no sane policy needs."""


class Options(Struct, frozen=True, kw_only=True):
    """How to simulate. Times in microseconds; ``horizon_us`` ends a run that would go on without end."""

    costs: Costs = Costs()
    faults: FaultSettings = FaultSettings()
    engine: EngineSettings = EngineSettings(history_length=0, forecasts=False, splice_milli=OVERHEAD_MILLI)
    true_rates: RateSettings | None = None
    """How fast jobs truly run where that is not what the engine believes (``engine.rates``)."""
    checkpoints: bool | None = None
    """Whether running jobs are imaged now and then; None: when nodes or ranks fail, which is what images are for."""
    think_us: int = 0
    """How long a plan takes; the world moves on meanwhile."""
    horizon_us: int = 3650 * DAY
    cluster: str = "custom"
    label: str = ""
    """What to call the policy in results; empty: the planner's own name."""


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
        self.trace = trace
        self.planner = planner
        self.options = options or Options()
        self.capacity = sum(node.devices for node in nodes)
        self.agenda = Agenda()
        self.meter = PoolMeter()
        faults, engine = Faults(self.options.faults), self.options.engine
        rates = Rates(self.options.true_rates or engine.rates, engine.splice_milli)
        self.world = SimulatedWorld(nodes, self.agenda, self.meter, self.options.costs, faults, rates)
        self.outcomes = Outcomes(trace)
        # Remembered for clients that call twice and for dependencies on ended jobs; a trace has neither.
        checkpoints = faults.active if self.options.checkpoints is None else self.options.checkpoints
        predict = engine.predict and not trace.expected.all()  # nothing is to be foretold where every run time is given
        forgetful = msgspec.structs.replace(
            engine, remembered_answers=0, remembered_outcomes=0, checkpoints=checkpoints, predict=predict
        )
        self.engine = Engine(forgetful)
        self.driver = EngineDriver(self.engine, recorder)
        self._submit: list[int] = trace.submit.tolist()
        self.next_row = 0
        self.planning_rounds = 0
        self.moves = 0
        self.arriving_area = 0
        self._idle_since = self._idle_rounds = 0
        self.world.boot()

    def run(self, progress: Progress | None = None) -> SimulationResult:
        """Simulate to the end, or to the horizon. What the planner raises comes out with a note on when."""
        while self.outcomes.settled < len(self.trace):
            now = self.next_instant()
            if now is None or now > self.options.horizon_us:
                self.meter.advance(min(self.options.horizon_us, self.meter.at if now is None else now))
                break
            self.turn(now)
            if progress is not None and self.driver.turns % _PROGRESS_TURNS == 0:
                progress(self.outcomes.settled, len(self.trace), now)
        return self.result()

    def next_instant(self) -> int | None:
        """When something happens next; None when nothing ever will."""
        submit = self._submit[self.next_row] if self.next_row < len(self._submit) else None
        first = self.agenda.next()
        if first is None or (submit is not None and submit < first):
            first = submit
        due = self.engine.due()
        return due if first is None or (due is not None and due < first) else first

    def turn(self, now: int) -> None:
        """Everything that happens at one instant, once; what it causes at the same instant is the next step's."""
        self.meter.advance(now)
        events = self.world.deliver(now, self.agenda.take(now))
        self._submit_due(now, events)
        if not events:
            due = self.engine.due()
            if due is None or due > now:
                return
            events.append(Tick())
        commands = self.driver.step(now, events)
        while commands:
            ready = [plan for command in commands if (plan := self._carry_out(now, command)) is not None]
            # A plan that is made in no time and with nothing else happening need not pass through the agenda.
            commands = self.driver.step(now, ready) if ready else []

    def _submit_due(self, now: int, events: list[Event]) -> None:
        submit, row = self._submit, self.next_row
        while row < len(submit) and submit[row] <= now:
            events.append(Submit(self.trace.spec(row), str(row)))
            row += 1
        if row > self.next_row:
            self.next_row = row
            self.arriving_area = self.meter.held_area

    def _carry_out(self, now: int, command: Command) -> PlanReady | None:
        if isinstance(command, PlanRequest):
            return self._plan(now)
        if isinstance(command, Reply):
            self._answered(command)
        elif isinstance(command, Ended):
            truth = self.world.forget(command.job)
            self.outcomes.record(truth.row, command, truth.lost)
        else:
            self.world.obey(now, command)
        return None

    def _answered(self, reply: Reply) -> None:
        row = int(reply.op_id)
        if reply.error:
            self.outcomes.refuse(row)
        else:
            self.world.admit(reply.job, row, int(self.trace.duration[row]), self.engine.book.specs[reply.job])

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
            launch_us=self.options.costs.launch_us,
            arriving_area=self.arriving_area,
            turns=self.driver.turns,
            planning_rounds=self.planning_rounds,
            moves=self.moves,
            checkpoints=self.world.checkpoints,
        )
        return measure(self.outcomes, self.meter, labels)

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
