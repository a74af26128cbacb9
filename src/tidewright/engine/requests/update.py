"""Changes of what a job asks for, while it waits or runs: all that the engine has derived from its spec follows.

What decides where a job can run (devices, types, memory, placement) is not among them: devices have requests of their own
(``user_moves``). The time of submission stays, and with it the place in the queue.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from ...model.cause import Cause, Code
from ...model.job import JobSpec, State, problems
from ...model.spec_changes import SpecChanges
from .. import events as ev
from .. import start_forecasts
from ..book import Book
from ..commands import Reply
from ..ledger import arm_limit, change_tier, over_limit, run_time_us
from ..termination import stop
from .admission import UNNAMED, forecast, predict
from .answers import answer, known
from .requeue import has_begun
from .user_moves import Refusal

_TIMES = ("max_duration_us", "deadline_us", "expected_us")
_TEXTS = ("name", "team", "tier", "weight", "retries")


def update(book: Book, event: ev.Update) -> None:
    """Change a job, and answer."""
    job = event.job
    if not known(book, event.op_id, job):
        return
    try:
        spec = _changed(book, job, event.changes)
    except Refusal as refusal:
        answer(book, Reply(event.op_id, job, refusal.why, refusal.kind))
        return
    before = book.specs[job]
    if spec == before:
        answer(book, Reply(event.op_id, job))
        return
    _write(book, job, spec)
    book.record(job, "CHANGED", Code.CHANGED_BY(event.by or UNNAMED, differences(before, spec)))
    start_forecasts.withdraw(book, job)
    book.touched[job] = book.forced = True
    answer(book, Reply(event.op_id, job, warning=_warning(book, job, before)))
    if over_limit(book, job):
        stop(book, job, int(State.TIMEOUT), Code.TIME_LIMIT())


def differences(before: JobSpec, spec: JobSpec) -> tuple[Cause, ...]:
    """What was changed, from what to what; times are as specs hold them, deadlines counted from submission."""
    found = []
    for field in _TEXTS:
        was, now = getattr(before, field), getattr(spec, field)
        if was != now:
            found.append(Code.TEXT_CHANGED(field, _text(was), _text(now)))
    for field in _TIMES:
        was, now = getattr(before, field), getattr(spec, field)
        if was != now:
            found.append(Code.TIME_CHANGED(field, was, now))
    return tuple(found)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _changed(book: Book, job: int, changes: SpecChanges) -> JobSpec:
    """The job's spec with the changes in it. Raises Refusal."""
    record = book.jobs[job]
    if record.spec.service:
        raise Refusal(Code.IS_REPLICA(job, record.spec.service))
    if record.ends:
        raise Refusal(Code.ENDING(job))
    fields: dict[str, Any] = {name: value for name, value in asdict(changes).items() if value is not None}
    by = fields.pop("limit_by_us")
    if by:
        fields["max_duration_us"] = _limit_by(book, job, by)
    if fields.get("deadline_us", 0) > 0:
        fields["deadline_us"] += book.now - book.table.submit.item(book.table.row[job])
    spec = replace(record.spec, **fields)
    _bound_to_attempts(book, job, spec)
    wrong = problems(spec)
    if wrong:
        raise Refusal(Code.CHANGES_WRONG(job, tuple(wrong)), "usage")
    return spec


def _bound_to_attempts(book: Book, job: int, spec: JobSpec) -> None:
    """Raise Refusal for what the files of an attempt depend on: images are stored by team, and an output may have the name."""
    record = book.jobs[job]
    if spec.team != record.spec.team and (has_begun(record) or record.images):
        raise Refusal(Code.TEAM_HAS_IMAGES(job, record.spec.team))
    started = record.attempt > 1 or record.allocation is not None or record.suspended_as
    if spec.name != record.spec.name and "%x" in spec.output and started:
        raise Refusal(Code.NAME_IN_OUTPUT(job))


def _limit_by(book: Book, job: int, by: int) -> int:
    limit = book.specs[job].max_duration_us
    if not limit:
        raise Refusal(Code.NO_LIMIT(job), "usage")
    if limit + by <= 0:
        raise Refusal(Code.LIMIT_TOO_SHORT(job, limit, -by), "usage")
    return limit + by


def _write(book: Book, job: int, spec: JobSpec) -> None:
    """Put a spec in the place of the one that there is, and all that follows from it."""
    table, row, record = book.table, book.table.row[job], book.jobs[job]
    before = record.spec
    if spec.tier != before.tier:
        asked = table.demand.item(row), table.memory.item(row), table.gpu_milli.item(row)
        book.tier_demand.add(before.tier_rank, *asked, -1)
        book.tier_demand.add(spec.tier_rank, *asked)
        change_tier(table, row, record, spec.tier_rank, book.now)
    book.specs[job] = record.spec = spec
    table.team[row] = book.teams.setdefault(spec.team, len(book.teams))
    table.weight[row], table.expected[row] = spec.weight, spec.expected_us
    table.deadline[row] = table.submit.item(row) + spec.deadline_us if spec.deadline_us else 0
    table.limit[row] = spec.max_duration_us
    if spec.max_duration_us != before.max_duration_us:
        arm_limit(book, job)
    if spec.expected_us or before.expected_us:
        table.predicted[row] = table.predicted_low[row] = table.predicted_high[row] = 0
        predict(book, job, spec)


def _warning(book: Book, job: int, before: JobSpec) -> Cause | None:
    """What the user of a changed job should know."""
    spec = book.specs[job]
    if over_limit(book, job):
        return Code.PAST_ITS_LIMIT(run_time_us(book, job), spec.max_duration_us)
    return forecast(book, spec) if spec.tier_rank > before.tier_rank else None
