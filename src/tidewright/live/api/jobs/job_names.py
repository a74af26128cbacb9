"""What the reference to a job in a request means: one job, an array, or some members of one. Every route asks here.

``12``: the array with that id, else the job; ``12_3``, ``12_[3-7,9]``: members by index; a name: a job's, else an array's. Live
jobs come before ended ones.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from ....base.errors import Conflict, NotFound
from ....engine.book import Book
from ....engine.commands import Ended
from ....model.array_record import array_key
from ....model.job import JobSpec
from ....wire.array_refs import member_ref, members_of, ranges
from ...journal.archive import Archive, EndedMember

JOB_ID = re.compile(r"[0-9]{1,18}")
_SHOWN = 10


class JobSelection(NamedTuple):
    """``jobs``: of a whole array those that are live or whose end is being written, else all that were asked for. ``array``: the
    id of the array that they are members of, 0 for jobs that are no members and for members of arrays without an id."""

    jobs: tuple[int, ...]
    array: int = 0
    name: str = ""
    """The array's."""
    indices: frozenset[int] | None = None
    """The members asked for; None: all."""
    many: bool = False
    """Whether more than one member was asked for."""


class JobNames:
    """Looks up references among live jobs, jobs whose end is being written, and the archive.

    ``members``: reads the ended members of an array in a thread, for there may be thousands.
    """

    def __init__(
        self, book: Book, archive: Archive, pending: Mapping[int, Ended],
        members: Callable[[int], Awaitable[list[EndedMember]]],
    ) -> None:  # fmt: skip
        self._book, self._archive, self._pending, self._read_members = book, archive, pending, members

    async def find(self, ref: str, single: bool = False, beside: int = 0) -> JobSelection:
        """What ``ref`` means; with ``single``, a number is the id of one job, whatever array has it. ``beside``: an array that is
        being submitted, which no name means. Raises NotFound, Conflict where a name is of several, UsageError."""
        if JOB_ID.fullmatch(ref):
            number = int(ref)
            array = None if single else self._array(number)
            return JobSelection((number,)) if array is None else self._whole(number, array)
        members = members_of(ref)
        name = self._array(members[0]) if members is not None else None
        if members is not None and name is not None:
            return await self._members(members[0], name, members[1])
        return self._named(ref, beside)

    def spec(self, job: int) -> JobSpec | None:
        """The spec of a job, live or ended."""
        live = self._book.specs.get(job)
        if live is not None:
            return live
        ended = self._pending.get(job) or self._archive.get(job)
        return ended.spec if ended is not None else None

    def _array(self, number: int) -> str | None:
        """The name of the array with that id; None where there is none."""
        record = self._book.arrays.get(str(number))
        spec = self._book.specs[next(iter(record.members))] if record is not None else self.spec(number)
        member = spec.array if spec is not None else None
        return member.parent if member is not None and member.job == number else None

    def live(self, array: int) -> dict[int, int]:
        """Index to job of an array's members that have not ended."""
        record, specs = self._book.arrays.get(str(array)), self._book.specs
        found = {}
        for job in record.members if record is not None else ():
            member = specs[job].array
            if member is not None:
                found[member.index] = job
        return dict(sorted(found.items()))

    def ending(self, array: int) -> dict[int, int]:
        """Index to job of an array's members whose end is being written."""
        return {
            one.spec.array.index: one.job
            for one in self._pending.values()
            if one.spec.array is not None and one.spec.array.job == array
        }

    def _whole(self, array: int, name: str) -> JobSelection:
        jobs = self.ending(array) | self.live(array)
        return JobSelection(tuple(jobs.values()), array, name, None, True)

    async def _members(self, array: int, name: str, indices: tuple[int, ...]) -> JobSelection:
        live = self.live(array)
        gone = [index for index in indices if index not in live]
        ended = await self._ended(array, gone)
        if missing := [index for index in gone if index not in ended]:
            what = f"member {missing[0]}" if len(missing) == 1 else f"members {ranges(missing)}"
            raise NotFound(f"array {array} ({name}) has no {what}", f"list its members: tide ps --all --name {name}")
        jobs = tuple(live[index] if index in live else ended[index] for index in indices)
        return JobSelection(jobs, array, name, frozenset(indices), len(indices) > 1)

    async def by_index(self, array: int) -> dict[int, int]:
        """Index to job of all members of an array."""
        now = self.ending(array) | self.live(array)
        return {one.index: one.job for one in await self._read_members(array)} | now

    async def _ended(self, array: int, indices: list[int]) -> dict[int, int]:
        """Index to job of those of these members that have ended."""
        if not indices:
            return {}
        ending = self.ending(array)
        single = len(indices) == 1
        found = self._archive.members(array, indices[0]) if single else await self._read_members(array)
        return {one.index: one.job for one in found} | ending

    def _named(self, name: str, beside: int) -> JobSelection:
        live = [job for job, spec in self._book.specs.items() if spec.name == name and not _of(spec, beside)]
        if len(live) > 1:
            raise Conflict(f"{len(live)} jobs are called {name!r}: {_listed(map(str, live))}", "use one of these ids")
        if live:
            return JobSelection((live[0],))
        members = [
            (job, spec)
            for job, spec in self._book.specs.items()
            if spec.array is not None and spec.array.parent == name and not _of(spec, beside)
        ]
        arrays = {array_key(spec.array): spec.array.job for _, spec in members if spec.array is not None}
        if len(arrays) > 1:
            known = _listed(str(number) for number in arrays.values() if number)
            raise Conflict(f"{len(arrays)} arrays are called {name!r}: {known}", "use one of these ids")
        if members:
            number = next(iter(arrays.values()))
            return (
                self._whole(number, name)
                if number
                else JobSelection(tuple(job for job, _ in members), 0, name, None, True)
            )
        return self._named_ended(name, beside)

    def _named_ended(self, name: str, beside: int) -> JobSelection:
        pending = [one for one in self._pending.values() if not _of(one.spec, beside)]
        job = next((one for one in pending if one.spec.name == name), None)
        job = job or next((one for one in self._archive.named(name, 8) if not _of(one.spec, beside)), None)
        if job is not None:
            return JobSelection((job.job,))
        last = next((one for one in pending if one.spec.array is not None and one.spec.array.parent == name), None)
        last = last or self._archive.array_named(name)
        member = last.spec.array if last is not None else None
        if last is not None and member is not None and not _of(last.spec, beside):
            return self._whole(member.job, name) if member.job else JobSelection((last.job,))
        raise NotFound(
            f"no job called {name!r}",
            "list jobs with tide ps --all; members of an array are called name[index], or ID_index",
        )


def _of(spec: JobSpec, array: int) -> bool:
    """Whether a job is a member of that array."""
    return bool(array) and spec.array is not None and spec.array.job == array


def _listed(words: Iterable[str]) -> str:
    shown = list(words)
    return ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else "")


def typed(book: Book, job: int) -> str:
    """What to type for one live job, so that no array is meant."""
    spec = book.specs.get(job)
    array = spec.array if spec is not None else None
    return member_ref(array.job, array.index) if array is not None and array.job else str(job)


def some(selection: JobSelection, ended: Iterable[EndedMember]) -> list[EndedMember]:
    """Those of an array's ended members that were asked for."""
    return [one for one in ended if selection.indices is None or one.index in selection.indices]
