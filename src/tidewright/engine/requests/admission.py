"""Admission: may this job enter, what does it wait for, and what would fit if it can never run."""

from __future__ import annotations

from ...base.units import WHOLE_DEVICE
from ...model.cause import Cause, Code
from ...model.job import JobSpec as Spec
from ...model.job import State, Tier, problems
from ...model.job_record import Ending, JobRecord
from ...plan.request import placement_of, request_of
from .. import pauses, rates, start_forecasts
from ..book import HELD, Book
from ..commands import Reply
from ..events import JobIdsUsed, Submit
from ..termination import end, release, satisfied
from . import arrays, runtime_attach
from .answers import answer, answered

PLACEMENTS = ("consolidate", "one-node", "any")
"""Order of the ``placement`` column's values."""
_ADMITTED = Code.ADMITTED()
UNNAMED = "[unknown]"
"""A user whose name is not known; no unix user has a bracket in it."""


def submit(book: Book, event: Submit) -> None:
    """Admit or refuse a job, and answer."""
    if answered(book, event.op_id):
        return
    spec = arrays.placed(book, event)
    refusal = refuse(book, spec)
    if refusal is not None:
        answer(book, Reply(event.op_id, error=refusal[0], kind=refusal[1]))
        return
    job = enter(book, spec)
    doomed = book.jobs[job].ending
    if event.op_id:
        warning = Code.CANCELLED_AT_ONCE(doomed.why) if doomed else _warnings(book, spec)
        answer(book, Reply(event.op_id, job, warning=warning))
    if doomed:
        end(book, job, doomed.state, 1, doomed.why)


def refuse(book: Book, spec: Spec) -> tuple[Cause, str] | None:
    """(error, kind) of a Reply when the job cannot be accepted."""
    wrong = problems(spec)
    if wrong:
        return Code.SPEC_WRONG(tuple(wrong)), "usage"
    missing = runtime_attach.refuse(book, spec) if spec.runtime else None
    if missing is not None:
        return missing
    crowded = too_crowded(book, spec, runtime_attach.runtime_devices(book, spec) if spec.runtime else spec.floor)
    if crowded is not None:
        return crowded, "usage"
    for dependency in spec.after:
        if not arrays.known(book, dependency, spec):
            return Code.UNKNOWN_DEPENDENCY(dependency.job), "notfound"
    misfit = None if spec.runtime else never_fits(book, spec)
    return None if misfit is None else (misfit, "usage")


def too_crowded(book: Book, spec: Spec, devices: int) -> Cause | None:
    """Set when more ranks than the limit would take turns on each of ``devices`` devices."""
    most = book.settings.max_ranks_per_device
    if not most or spec.ranks <= devices * most:
        return None
    needed = next(count for count in range(-(-spec.ranks // most), spec.ranks + 1) if spec.ranks % count == 0)
    return Code.TOO_CROWDED(spec.ranks, devices, most, needed, devices * most)


def never_fits(book: Book, spec: Spec) -> Cause | None:
    """Set when no state of the pool could hold the job. An empty pool refuses nothing."""
    layout = book.board.layout
    if not layout.nodes:
        return None
    wanted = request_of(layout, spec, floor=spec.floor, accepted=rates.kinds_of(book, spec))
    wrong = wanted.reject_pool(layout, one_kind=book.settings.rules > 0)
    if wrong is None:
        return None
    if wrong.code is Code.WRONG_KIND:
        return Code.NO_SUCH_TYPE(spec.device_types, layout.kinds)
    if wrong.code in (Code.CPUS_TOO_FEW, Code.HOST_MEMORY_TOO_SMALL):
        return wrong
    count, most = wrong.args
    if wrong.code is Code.DEVICE_TOO_SMALL:
        return Code.SHARE_TOO_LARGE(count, most)
    return Code.NEVER_FITS(count, spec.device_types, placement_of(spec), most)


def _warnings(book: Book, spec: Spec) -> Cause | None:
    if spec.runtime:
        return None
    if not book.settings.forecasts:
        return None
    found = None
    for warning in (
        forecast(book, spec),
        unenforced(book, spec),
        compute_unenforced(book, spec),
        rates.unknown(book, spec),
    ):
        found = Code.WITH(found, warning) if found and warning else found or warning
    return found


def compute_unenforced(book: Book, spec: Spec) -> Cause | None:
    """A warning when a share of a device's compute may mean nothing where the job runs: CPU slots keep to it themselves."""
    if not (spec.gpu_milli or spec.gpu_share) or not any(kind != "cpu" for kind in _kinds(book, spec)):
        return None
    return Code.COMPUTE_NOT_ENFORCED()


def _kinds(book: Book, spec: Spec) -> list[str]:
    """Kinds of devices that it may run on."""
    return [kind for kind in book.board.layout.kinds if not spec.device_types or kind in spec.device_types]


def unenforced(book: Book, spec: Spec) -> Cause | None:
    """A warning when a share of a device's memory may mean nothing where the job runs."""
    if not (spec.gpu_memory or spec.gpu_share) or not book.settings.forecasts:
        return None
    kinds = _kinds(book, spec)
    if "cpu" not in kinds:
        return None
    others = tuple(kind for kind in kinds if kind != "cpu")
    return Code.SHARE_NOT_ENFORCED_ON_CPU(others) if others else Code.SHARE_NOT_ENFORCED()


def forecast(book: Book, spec: Spec) -> Cause | None:
    """A warning when tiers with a promised GPU fraction together outgrow the pool (product decision: accepted with a warning)."""
    if spec.tier_rank is Tier.BASIC or not book.settings.forecasts:
        return None
    layout = book.board.layout
    whole = max(layout.kind_memory, default=0)
    demand = book.tier_demand.at_least(int(spec.tier_rank))
    shared = demand.memory / whole if whole else 0.0
    wanted = (demand.devices - demand.of_shares if whole else demand.devices) + shared + demand.milli / WHOLE_DEVICE
    capacity = sum(layout.kind_devices)
    if not capacity or wanted <= capacity:
        return None
    return Code.OVERSUBSCRIBED(spec.tier, round(wanted * 1000), capacity, round(capacity / wanted * 1000))


def skip_ids(book: Book, event: JobIdsUsed) -> None:
    """Give out no id a second time."""
    book.next_job = max(book.next_job, event.next_job)


def enter(book: Book, spec: Spec) -> int:
    """Put the job into the book; returns its id."""
    job = book.next_job
    book.next_job += 1
    book.specs[job] = spec
    book.jobs[job] = JobRecord(spec)
    book.tier_demand.add(spec.tier_rank, spec.devices, spec.gpu_memory, spec.compute_milli)
    if spec.elastic:
        book.elastic_jobs += 1
    if spec.kind == "runtime":
        book.runtimes[job] = True
    team = book.teams.setdefault(spec.team, len(book.teams))
    settings = book.settings
    now = book.now
    book.table.add(job, {
        "state": HELD, "tier": int(spec.tier_rank), "level": book.usual_level(spec),
        "placement": PLACEMENTS.index(spec.placement), "submit": now,
        "since": now, "wait_since": now, "first_start": -1, "run_since": -1, "demand": spec.devices,
        "floor": spec.floor, "ranks": spec.ranks, "kinds": rates.kinds_of(book, spec),
        "memory": spec.gpu_memory, "gpu_milli": spec.compute_milli, "cpus_milli": spec.cpus_milli, "host_memory": spec.memory,
        "accrued": now, "expected": spec.expected_us,
        "deadline": now + spec.deadline_us if spec.deadline_us else 0, "limit": spec.max_duration_us, "weight": spec.weight,
        "team": team, "pinned_node": -1, "restore_kind": -1,
        "reference": -1, "save_us": settings.save_us, "restore_us": settings.restore_us, "attempt": 1,
    })  # fmt: skip
    pauses.expect(book, job, book.table.row[job])
    rates.set_reference(book, job)
    predict(book, job, spec)
    book.counts[HELD] += 1
    book.touched[job] = True
    if spec.runtime:
        runtime_attach.enter(book, job, spec)
        book.record(job, "SUBMITTED", Code.SUBMITTED_TO_RUNTIME(spec.runtime_class, book.jobs[job].runtime_job))
    else:
        book.record(job, "SUBMITTED", Code.SUBMITTED(spec.tier, spec.devices))
    _wait_for_others(book, job, spec)
    if spec.hold:
        _hold(book, job, spec.user)
    release(book, job, _ADMITTED)
    return job


def predict(book: Book, job: int, spec: Spec) -> None:
    """Note what similar jobs took, where the user gave no estimate."""
    if spec.expected_us or spec.service or not book.settings.predict:
        return
    found = book.run_times.predict(spec)
    if found is not None:
        row = book.table.row[job]
        book.table.predicted[row] = found.median_us
        book.table.predicted_low[row], book.table.predicted_high[row] = found.low_us, found.high_us


def _hold(book: Book, job: int, by: str) -> None:
    """It was submitted to be held."""
    record = book.jobs[job]
    record.user_hold, record.held_by = 0, by or UNNAMED
    start_forecasts.withdraw(book, job)
    book.record(job, "HELD", Code.HELD_BY(record.held_by))


def _wait_for_others(book: Book, job: int, spec: Spec) -> None:
    """Note dependencies and the array's limit."""
    record = book.jobs[job]
    for dependency in spec.after:
        if dependency.array:
            arrays.depend(book, job, dependency)
            continue
        other = book.jobs.get(dependency.job)
        if other is not None:
            record.dependencies += (dependency.job,)
            other.dependents = other.dependents or []
            other.dependents.append(job)
        elif not satisfied(dependency.kind, book.outcomes[dependency.job]):
            record.ending = Ending(int(State.CANCELLED), Code.DEPENDENCY_UNMET(dependency.kind, dependency.job))
    if spec.array is not None:
        arrays.enter(book, job, spec.array)
