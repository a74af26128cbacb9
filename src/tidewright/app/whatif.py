"""What would have become of one's own jobs on another pool, or under another policy: the recorded jobs simulated twice, as it was
and changed, beside what was recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from ..base.errors import UsageError
from ..base.units import SECOND, counted
from ..model.job import State
from ..model.node import MAX_DEVICES_PER_NODE, NodeSpec
from ..policy.registry import make
from ..sim.clusters import load_cluster
from ..sim.result import SimulationResult
from ..sim.run import Options, Simulation
from .recorded import Recording, read
from .remembered import recall
from .settings import load_settings

SCHEMA = "tidewright.whatif/1"
_NODE = re.compile(r"(\d+)x([a-z][a-z0-9._-]*)")
ADD_REMEDY = "write 8xh100 for a node with 8 devices of that kind, or 2x8:h100 for two"


class PoolChange(Struct, frozen=True, kw_only=True):
    """What is to be different. ``add``: texts as for ``added``; ``remove``: names; ``cluster``: other nodes altogether."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    cluster: str = ""
    policy: str = ""


class Recorded(Struct, frozen=True, kw_only=True):
    """What was recorded of the jobs that ended. Seconds."""

    policy: str
    jobs: int
    jct_mean_s: float
    jct_median_s: float
    jct_p99_s: float
    preemptions: int


class UnfitJob(Struct, frozen=True):
    """A job that ran in ``before`` and does not in ``after``: refused, or never started. ``why``: code of the refusal, else its
    last state, with the limit that it waits behind."""

    job: str
    name: str
    why: str


class WhatIf(Struct, frozen=True, kw_only=True):
    """``before``: the recorded jobs simulated as it was, ``after``: with the change. ``off``: by which part the mean JCT of the
    recorded jobs that ended is longer in ``before`` than it was: differences smaller than that say nothing."""

    schema: str = SCHEMA
    recorded: Recorded
    before: SimulationResult
    after: SimulationResult
    off: float
    unfit: tuple[UnfitJob, ...] = ()
    """Jobs that no longer fit; they are in no mean of ``after``."""
    notes: tuple[str, ...] = ()


def what_if(
    journal: Path,
    change: PoolChange,
    since_us: int = 0,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> WhatIf:
    """Read, and simulate twice. ``progress`` hears which share is done. Raises UsageError."""
    if not (change.add or change.remove or change.cluster or change.policy):
        raise UsageError("nothing is changed", "give --add 8xh100, --remove NODE, --cluster or --policy")
    recording = read(journal, since_us)
    policy = policy_of(journal, recording)
    pool = changed_pool(recording.nodes, change)
    make(change.policy or policy)

    def run(name: str, nodes: Sequence[NodeSpec], begun: float) -> Simulation:
        simulation = Simulation(recording.trace, nodes, make(name), _options(recording, name))
        simulation.run(
            lambda done, total, now: progress(begun + done / total / 2, f"{name}: {done:,} of {counted(total, 'job')}")
        )
        return simulation

    before = run(policy, recording.nodes, 0.0)
    after = run(change.policy or policy, pool, 0.5)
    return WhatIf(
        recorded=_recorded(recording, policy), before=before.result(), after=after.result(),
        off=_off(recording, before), unfit=tuple(unfit_jobs(recording, before, after)), notes=tuple(recording.notes),
    )  # fmt: skip


def policy_of(journal: Path, recording: Recording) -> str:
    """The policy that was in force: an exported journal says, a state directory's last start does."""
    if recording.policy:
        return recording.policy
    state = journal if journal.is_dir() else journal.parent
    return recall(state).get("policy") or load_settings(state).policy


def changed_pool(nodes: Sequence[NodeSpec], change: PoolChange) -> tuple[NodeSpec, ...]:
    """The nodes with the change. Raises UsageError for nodes that are not there, and for what would leave none."""
    base = load_cluster(change.cluster) if change.cluster else tuple(nodes)
    names = {node.name for node in base}
    if unknown := sorted(set(change.remove) - names):
        raise UsageError(f"no node {', '.join(unknown)}", f"there are {', '.join(sorted(names))}")
    kept = [node for node in base if node.name not in change.remove]
    for text in change.add:
        kept += added(text, base, names)
    if not kept:
        raise UsageError("no node is left", "remove fewer, or add some")
    return tuple(kept)


def added(text: str, base: Sequence[NodeSpec], names: set[str]) -> list[NodeSpec]:
    """Nodes that ``8xh100`` (one with 8 devices) or ``2x8:h100`` names. They have the CPUs and the memory of a node of that kind
    and size, where there is one; ``names`` are taken, and those of the new nodes are added. Raises UsageError."""
    one = _NODE.fullmatch(text)
    if one and not 1 <= int(one[1]) <= MAX_DEVICES_PER_NODE:
        raise UsageError(f"{text}: a node has 1 to {MAX_DEVICES_PER_NODE} devices", ADD_REMEDY)
    found = []
    for node in load_cluster(f"1x{one[1]}:{one[2]}" if one else text):
        like = next((has for has in base if (has.kind, has.devices) == (node.kind, node.devices)), node)
        number = next(at for at in range(1, len(names) + 2) if f"added-{at}" not in names)
        names.add(f"added-{number}")
        found.append(msgspec.structs.replace(like, name=f"added-{number}"))
    return found


def _options(recording: Recording, label: str) -> Options:
    engine = msgspec.structs.replace(recording.settings, history_length=0)
    return Options(cluster="its own nodes", engine=engine, costs=recording.own_costs, label=label)


def _recorded(recording: Recording, policy: str) -> Recorded:
    jct = np.array([job.end - job.submit for job in recording.jobs if job.end]) / SECOND
    mean, median, p99 = (float(jct.mean()), *np.quantile(jct, (0.5, 0.99)).tolist()) if len(jct) else (0.0, 0.0, 0.0)
    return Recorded(
        policy=policy, jobs=len(jct), jct_mean_s=mean, jct_median_s=median, jct_p99_s=p99,
        preemptions=sum(job.preemptions for job in recording.jobs if job.end),
    )  # fmt: skip


def unfit_jobs(recording: Recording, before: Simulation, after: Simulation) -> Iterator[UnfitJob]:
    """Jobs that started before and do not after the change, in the order of submission."""
    why = {**after.why_unfinished(), **after.outcomes.refusals}
    never = ((after.outcomes.start < 0) & (before.outcomes.start >= 0)).tolist()
    for row, job in enumerate(recording.jobs):
        if never[row]:
            ended = why.get(row) or State(after.outcomes.state.item(row)).word
            yield UnfitJob(str(job.job), job.spec.name, ended)


def _off(recording: Recording, before: Simulation) -> float:
    """Over the jobs that ended in both."""
    ended = np.array([bool(job.end) for job in recording.jobs]) & (before.outcomes.state == int(State.COMPLETED))
    was = np.array([job.end - job.submit for job in recording.jobs])[ended]
    again = (before.outcomes.end - before.trace.submit)[ended]
    return float(again.mean() / was.mean() - 1) if len(was) and was.mean() > 0 else 0.0
