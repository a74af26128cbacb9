"""Arrays as one thing: the id they are given, the limit on members that run at once, jobs that wait for all of one.

An array submitted to an earlier version has no id: its members share a limit with every array of that name, as they did then.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...model.array_record import ArrayRecord, array_key
from ...model.cause import Cause, Code
from ...model.job import ArrayMember, Dependency, JobSpec, State
from ...model.job_record import Ending
from .. import start_forecasts
from ..book import HELD, Book
from ..commands import Reply
from ..events import LimitArray, Submit
from ..lifecycle import transition
from ..termination import admit_members, satisfied
from .answers import answer, answered

_CHANGED = Code.ARRAY_LIMIT_CHANGED()


def placed(book: Book, event: Submit) -> JobSpec:
    """The spec of a submission, with the id of the array that it is a member of."""
    spec = event.spec
    if spec.array is None or spec.array.job or not event.array_of:
        return spec
    first = book.answers.get(event.array_of)
    number = first.job if first is not None and not first.error else book.next_job
    return replace(spec, array=replace(spec.array, job=number))


def known(book: Book, dependency: Dependency, spec: JobSpec) -> bool:
    """Whether there is, or was, what a job would depend on. No member of an array waits for all of it."""
    if not dependency.array:
        return dependency.job in book.specs or dependency.job in book.outcomes
    if spec.array is not None and spec.array.job == dependency.job:
        return False
    return str(dependency.job) in book.arrays or dependency.job in book.array_outcomes


def depend(book: Book, job: int, dependency: Dependency) -> None:
    """Have a job wait for the end of a whole array, or end it where that has ended otherwise than it asks."""
    record, array = book.jobs[job], book.arrays.get(str(dependency.job))
    if array is not None:
        record.array_dependencies += (dependency.job,)
        array.dependents.append(job)
    elif not satisfied(dependency.kind, book.array_outcomes[dependency.job]):
        record.ending = Ending(int(State.CANCELLED), Code.DEPENDENCY_UNMET(dependency.kind, dependency.job))


def enter(book: Book, job: int, member: ArrayMember) -> None:
    """Note a new member; it waits where the array runs as many as it may."""
    if not member.job and not member.limit:
        return
    key = array_key(member)
    array = book.arrays.get(key)
    if array is None:
        array = book.arrays[key] = ArrayRecord(limit=member.limit)
    elif not member.job:
        array.limit = member.limit  # of several arrays of one name, each came in under its own
    full = bool(array.limit) and array.active >= array.limit
    array.members[job] = True
    if full:
        array.waiting[job] = True
        book.jobs[job].waiting_array = key


def limit(book: Book, event: LimitArray) -> None:
    """Change how many members of an array may run at once."""
    if answered(book, event.op_id):
        return
    array = book.arrays.get(str(event.array))
    if array is None:
        answer(book, Reply(event.op_id, event.array, *_refusal(book, event.array)))
        return
    array.limit = event.limit
    _hold_back(book, str(event.array), array)
    admit_members(book, array, _CHANGED)
    answer(book, Reply(event.op_id, event.array))


def _refusal(book: Book, array: int) -> tuple[Cause, str]:
    over = array in book.array_outcomes
    return (Code.ARRAY_OVER(array), "conflict") if over else (Code.NO_SUCH_ARRAY(array), "notfound")


def _hold_back(book: Book, key: str, array: ArrayRecord) -> None:
    """Members beyond a lowered limit that have not started wait again, the last ones first; those that have run on."""
    beyond = array.active - array.limit if array.limit else 0
    for job in reversed(list(array.members)):
        if beyond <= 0:
            break
        record = book.jobs[job]
        if job in array.waiting or job in book.reservations or record.state not in (HELD, State.QUEUED):
            continue
        if book.table.first_start.item(book.table.row[job]) >= 0:
            continue
        record.waiting_array = key
        array.waiting[job] = True
        start_forecasts.withdraw(book, job)
        beyond -= 1
        if record.state == State.QUEUED:
            transition(book, job, HELD, _CHANGED)
    array.waiting = dict.fromkeys(sorted(array.waiting), True)
