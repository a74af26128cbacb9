"""A trace: who submitted what, when, and how long it truly ran. Columns, so that half a million jobs stay small.

It refuses to know where the rows came from.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.rng import stream_seed
from ..base.units import SECOND, counted
from ..model.job import LONGEST_US, MAX_RANKS, JobSpec, Phase, Tier

_COMMAND = ("trace",)
_TIERS = tuple(tier.name.lower() for tier in Tier)


class Trace(Struct, frozen=True, kw_only=True):
    """Rows in order of submission. Times are whole microseconds, memory is bytes; every column has shape (n,).

    ``submit`` counts from the first submission; ``duration`` is the true run time on the full allotment; ``expected``
    is what the scheduler sees. Optional columns are None when no row has them.
    """

    name: str
    submit: NDArray[np.int64]
    duration: NDArray[np.int64]
    devices: NDArray[np.int32]
    expected: NDArray[np.int64]
    tier: NDArray[np.int8]
    team: NDArray[np.int32]
    teams: tuple[str, ...] = ("default",)
    floor: NDArray[np.int32] | None = None
    gpu_memory: NDArray[np.int64] | None = None
    cpus_milli: NDArray[np.int64] | None = None
    memory: NDArray[np.int64] | None = None
    """Of the host, of each rank."""
    kinds: NDArray[np.int32] | None = None
    kind_names: tuple[tuple[str, ...], ...] = ()
    names: tuple[str, ...] = ()
    workloads: NDArray[np.int32] | None = None
    phases: tuple[tuple[Phase, ...], ...] = ()
    """What each value of ``workloads`` stands for, as tables of rates name it: one phase, or several one after the other."""
    placement: Literal["consolidate", "one-node", "any"] = "consolidate"
    """What every job asks for; "any" counts devices wherever they lie, as many published simulators do."""
    step_us: NDArray[np.float64] | None = None
    """Run time of one step of each job's program on its full allotment; 0: not known."""
    image_bytes: NDArray[np.int64] | None = None
    """Size of each job's image, of all its ranks; 0: not known."""
    ids: tuple[str, ...] = ()
    """What the source calls each job, where it numbers or names them."""
    remarks: tuple[str, ...] = ()
    """What was changed while the trace was read."""
    retries: int = 0
    """Retries every job asks for; rank failures are only worth simulating when this is above zero."""
    specs: tuple[JobSpec, ...] = ()
    """The requests themselves, where they were recorded: all that the columns do not say (ranks, placement, weight, levels, …).
    Their dependencies name rows, counted from 0, that are submitted earlier."""

    def __len__(self) -> int:
        return len(self.submit)

    def spec(self, row: int) -> JobSpec:
        """The job of one row, as its user would have submitted it."""
        if self.specs:
            return structs.replace(self.specs[row], command=_COMMAND, expected_us=int(self.expected[row]))
        devices = int(self.devices[row])
        phases = self.phases[self.workloads[row]] if self.workloads is not None else ()
        return JobSpec(
            name=self.names[row] if self.names else "",
            command=_COMMAND,
            ranks=devices,
            devices=devices,
            min_devices=int(self.floor[row]) if self.floor is not None else 0,
            device_types=self.kind_names[self.kinds[row]] if self.kinds is not None else (),
            gpu_memory=int(self.gpu_memory[row]) if self.gpu_memory is not None else 0,
            cpus_milli=int(self.cpus_milli[row]) if self.cpus_milli is not None else 0,
            memory=int(self.memory[row]) if self.memory is not None else 0,
            tier=_TIERS[self.tier[row]],
            team=self.teams[self.team[row]],
            expected_us=int(self.expected[row]),
            workload=phases[0].workload if len(phases) == 1 else "",
            phases=phases if len(phases) > 1 else (),
            placement=self.placement,
            retries=self.retries,
        )

    def device_us(self, counted: NDArray[np.bool_] | None = None) -> int:
        """Work in the trace, or in the rows ``counted``, device-microseconds. Beyond 64 bits on real traces."""
        rows = slice(None) if counted is None else counted
        return sum(
            int(d) * int(k) for d, k in zip(self.duration[rows].tolist(), self.devices[rows].tolist(), strict=True)
        )


def make_trace(
    name: str,
    submit_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
    devices: NDArray[np.int64],
    **columns: object,
) -> Trace:
    """A trace from columns in seconds, in any order; time starts at the first submission.

    Rows are sorted by submission, ties in the order given. ``columns`` are Trace's optional fields; arrays hold one
    value per row. Raises UsageError when there are no rows, or a row has no finite time of submission, no run time above 0 or
    more devices than a job may have.
    """
    if not len(submit_s):
        raise UsageError(f"trace {name} holds no jobs", "give a trace with at least one job")
    wrong = np.flatnonzero(~(np.isfinite(submit_s) & np.isfinite(duration_s) & (duration_s > 0)))
    if len(wrong):
        at = int(wrong[0])
        raise UsageError(
            f"trace {name}, row {at + 1}: submitted at {submit_s[at]:g} s for {duration_s[at]:g} s",
            "times of submission must be finite, and run times above 0",
        )
    large = np.flatnonzero(devices > MAX_RANKS)
    if len(large):
        at = int(large[0])
        raise UsageError(
            f"trace {name}, row {at + 1}: submitted at {submit_s[at]:g} s on {devices[at]} devices",
            f"a job has at most {MAX_RANKS} devices, those of all its instances together",
        )
    order = np.argsort(submit_s, kind="stable")
    submit = np.rint((submit_s - submit_s.min()) * SECOND).astype(np.int64)[order]
    duration = np.maximum(np.rint(duration_s * SECOND).astype(np.int64), 1)[order]
    given = {key: _reorder(value, order) for key, value in columns.items()}
    given.setdefault("tier", np.full(len(order), int(Tier.STANDARD), np.int8))
    given.setdefault("team", np.zeros(len(order), np.int32))
    given.setdefault("expected", duration)
    return Trace(name=name, submit=submit, duration=duration, devices=devices[order].astype(np.int32), **given)  # type: ignore[arg-type]


def _reorder(value: object, order: NDArray[np.intp]) -> object:
    return value[order] if isinstance(value, np.ndarray) else value


def head(trace: Trace, jobs: int) -> Trace:
    """The first ``jobs`` rows."""
    return picked(trace, np.arange(min(jobs, len(trace))))


def window(trace: Trace, at: int, of: int) -> Trace:
    """The ``at``-th of ``of`` parts of consecutive jobs, counted from 1, as a trace that begins with its first submission."""
    if not 1 <= at <= of <= max(len(trace), 1):
        raise UsageError(
            f"window {at}/{of}", f"write K/N with K from 1 to N, e.g. 2/5; the trace has {counted(len(trace), 'job')}"
        )
    rows = len(trace)
    return picked(trace, np.arange(rows * (at - 1) // of, rows * at // of))


def picked(trace: Trace, rows: NDArray[np.intp]) -> Trace:
    """These rows, given in ascending order; time starts at the first of them. Raises UsageError for none."""
    if not len(rows):
        raise UsageError(f"trace {trace.name} holds no such jobs", "choose others")
    cut: dict[str, Any] = {}
    for field in trace.__struct_fields__:
        value = getattr(trace, field)
        if isinstance(value, np.ndarray):
            cut[field] = value[rows]
        elif field in ("names", "ids") and value:
            cut[field] = tuple(value[row] for row in rows.tolist())
    if trace.specs:
        cut["specs"] = _specs_of(trace.specs, rows.tolist())
    cut["submit"] = cut["submit"] - cut["submit"][0]
    return changed(trace, **cut)


def _specs_of(specs: tuple[JobSpec, ...], rows: list[int]) -> tuple[JobSpec, ...]:
    """Those of ``rows``, whose dependencies name rows of the new trace."""
    place = {row: at for at, row in enumerate(rows)}
    return tuple(
        structs.replace(
            specs[row],
            after=tuple(structs.replace(one, job=place[one.job]) for one in specs[row].after if one.job in place),
        )
        for row in rows
    )


def changed(trace: Trace, **fields: Any) -> Trace:
    """The same trace with other fields, e.g. ``placement="any"`` or ``retries=3``."""
    return Trace(**{**{field: getattr(trace, field) for field in trace.__struct_fields__}, **fields})


def with_estimates(trace: Trace, error: float, seed: int) -> Trace:
    """The same trace with ``expected`` off by a log-normal factor of this sigma (0.5: two thirds lie within ×/÷ 1.65).

    Users' estimates are wrong by factors, not by amounts (Mu'alem & Feitelson, TPDS 2001). Zero keeps the oracle.
    None exceeds what a request may state, so that every job is let in as it would be without the error.
    """
    if not 0 <= error <= 10:
        raise UsageError(f"estimate error {error} is not between 0 and 10", "0 is exact; 0.5 is typical of good models")
    if not error:
        return trace
    noise = np.random.Generator(np.random.PCG64(stream_seed(seed, "estimates"))).standard_normal(len(trace))
    estimate = np.clip(trace.duration * np.exp(error * noise), 1, LONGEST_US).astype(np.int64)
    return changed(trace, expected=estimate)


def as_asked(trace: Trace, placement: str, splice: bool) -> Trace:
    """The same trace with every job asking for ``placement`` ("trace": as it is), and without floors unless ``splice``."""
    fields: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    if placement not in ("trace", trace.placement):
        fields["placement"] = asked["placement"] = placement
    if not splice and trace.floor is not None:
        fields["floor"], asked["min_devices"] = None, 0
    if asked and trace.specs:
        fields["specs"] = tuple(structs.replace(spec, **asked) for spec in trace.specs)
    return changed(trace, **fields) if fields else trace


def tie_ranks(trace: Trace, ties: str, seed: int) -> list[int] | None:
    """The order of each row among those admitted at the same instant (``ClusterProfile.ties``); None: as listed."""
    if ties == "listed":
        return None
    if ties == "shuffled":
        ranks = np.random.Generator(np.random.PCG64(stream_seed(seed, "ties"))).permutation(len(trace))
        return ranks.tolist()  # type: ignore[no-any-return]
    keys: Any = trace.devices if ties == "fewest" else np.array(trace.ids or trace.names or ("",) * len(trace))
    _, ranks = np.unique(keys, return_inverse=True)
    return ranks.tolist()  # type: ignore[no-any-return]


def load_of(trace: Trace, devices: int, counted: NDArray[np.bool_] | None = None) -> float:
    """Device-time asked over the capacity of ``devices`` until the last submission; infinite where all come at once.

    ``counted``: the rows that count; those that a cluster refuses are no load of it. None: all.
    """
    span = int(trace.submit[-1])
    return trace.device_us(counted) / (devices * span) if span else float("inf")


def check_load(load: float) -> None:
    """Raise UsageError for a load that no trace can be stretched to."""
    if not 0 < load <= 1000:
        raise UsageError(f"load {load:g} is not above 0 and at most 1000", "1.0 asks for just what the cluster has")


def with_load(trace: Trace, load: float, devices: int, counted: NDArray[np.bool_] | None = None) -> Trace:
    """The same trace with its times between submissions stretched so that it asks for ``load`` of ``devices``, by ``load_of``."""
    check_load(load)
    now = load_of(trace, devices, counted)
    if not now:
        raise UsageError(f"trace {trace.name}: the cluster can hold none of its jobs", "give a larger --cluster")
    if now == float("inf"):
        raise UsageError(
            f"trace {trace.name}: all jobs are submitted at once, so it has no load to change", "drop --load"
        )
    submit = np.rint(trace.submit * (now / load))
    if submit[-1] >= 2**62:
        raise UsageError(f"load {load:g} stretches trace {trace.name} beyond what times can hold", "give a larger load")
    return changed(trace, submit=submit.astype(np.int64))


def without_estimates(trace: Trace) -> Trace:
    """The same trace of users who say nothing of run times."""
    return changed(trace, expected=np.zeros(len(trace), np.int64))
