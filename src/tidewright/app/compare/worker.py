"""A worker process: simulates the cells that it is sent, one after the other, and ends with the process that started it."""

from __future__ import annotations

import os
import threading
import time
from functools import lru_cache
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import msgspec
from msgspec import Struct

from ...base.errors import Bug, TideError
from ...model.node import NodeSpec
from ...model.view import View
from ...plan.plan import Plan, Planner
from ...policy.registry import make
from ...sim.clusters import load_cluster
from ...sim.meter import Series
from ...sim.result import SimulationResult
from ...sim.run import Simulation
from ...sim.trace import Trace
from ...sim.traces import load_trace
from ..simulate import Question, options_of, seeded_trace, shaped

_EVERY_S = 0.5
"""Least time between two reports of progress."""


class RunResult(Struct, frozen=True, kw_only=True):
    """What came of a simulation; seconds of processor time, without reading the trace. The result is without its series."""

    result: SimulationResult
    planning_s: float
    cpu_s: float


class RunProgress(Struct, frozen=True, tag=True):
    """Share of the jobs that are settled, 0 to 1."""

    share: float


class RunFailed(Struct, frozen=True, tag=True):
    """The simulation raised, or its process died twice; ``cause`` in one line."""

    cause: str


class WorkerDied(Struct, frozen=True):
    """The process ended without an answer; ``cause`` in one line."""

    cause: str


class RunDone(Struct, frozen=True, tag=True):
    """The simulation has ended."""

    found: RunResult


Message = RunProgress | RunFailed | RunDone


class _Timed:
    """A planner, and the processor time that its plans took."""

    def __init__(self, planner: Planner) -> None:
        self._planner, self.name, self.took_s = planner, planner.name, 0.0

    def plan(self, view: View) -> Plan:
        before = time.process_time()
        plan = self._planner.plan(view)
        self.took_s += time.process_time() - before
        return plan


def simulate_cell(question: Question, report: Connection | None = None) -> RunResult:
    """One simulation, in this process. Raises UsageError and what the policy raises."""
    nodes = load_cluster(question.cluster)
    trace = shaped(_loaded(seeded_trace(question.trace, question.seed), nodes), question, nodes)
    before = time.process_time()
    planner = _Timed(make(question.policy))
    options = msgspec.structs.replace(options_of(question), label=question.policy)
    due = time.monotonic()

    def progress(settled: int, total: int, _: int) -> None:
        nonlocal due
        if report is not None and time.monotonic() >= due:
            due = time.monotonic() + _EVERY_S
            report.send_bytes(msgspec.msgpack.encode(RunProgress(settled / total)))

    result = Simulation(trace, nodes, planner, options).run(progress)
    _account(result)
    plain = msgspec.structs.replace(result, series=Series(width_us=1, queued=(), held_devices=()))
    return RunResult(result=plain, planning_s=planner.took_s, cpu_s=time.process_time() - before)


@lru_cache(maxsize=1)
def _loaded(trace: str, nodes: tuple[NodeSpec, ...]) -> Trace:
    """A trace as its source has it; kept, as most cells of a worker are of one trace."""
    return load_trace(trace, sum(node.devices for node in nodes))


def _account(result: SimulationResult) -> None:
    """Raise Bug unless every job of the trace ended in one way or is known to be unfinished."""
    found = result.completed + result.failed + result.refused + result.unfinished
    if found != result.jobs:
        raise Bug(f"{result.policy} on {result.trace}: {found} of {result.jobs} jobs are accounted for")


def work(pipe: Connection) -> None:
    """Answer questions until the other end is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            question = msgspec.msgpack.decode(pipe.recv_bytes(), type=Question)
            pipe.send_bytes(msgspec.msgpack.encode(_answer(question, pipe)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _answer(question: Question, pipe: Connection) -> Message:
    try:
        return RunDone(simulate_cell(question, pipe))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except TideError as error:
        return RunFailed(" ".join(str(error).split()))
    except MemoryError:
        return RunFailed("out of memory")
    except Exception as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return RunFailed(f"{type(error).__name__}: {error}{notes}")


def _end_with_parent() -> None:
    """Also where the parent was killed: a simulation would go on to its end for no reader."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
