"""Lists of jobs and sums over them: a page costs what is on it, and a long list lets others have their turn in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ...base.units import counted
from ...engine.book import Book
from ...engine.commands import Ended
from ...engine.ledger import held_milli_us
from ...model.array_record import array_key
from ...model.job import JobSpec, State
from ...model.rate import progress_column
from ...wire import api
from ...wire.array_refs import member_ref, ranges
from ...wire.calls.completion import MOST_WORDS, Word
from ..journal.archive import GPU_SECOND, Sums
from ..journal.store import Journal
from . import views
from .cooperative import CooperativeYield, of_archive
from .views import state_name
from .wall_times import shown

MOST = 1_000_000
"""Jobs of a list without a limit."""
CHUNK = 2_000
"""Live jobs compared with a filter in one go, a fraction of a millisecond."""
PAGE = 256
"""Ended jobs read from the archive at a time."""


class Query(NamedTuple):
    """What is asked for. ``states`` empty: live jobs, with ``ended`` all; ``equal``: name (also an array's), team or user."""

    states: tuple[State, ...] = ()
    equal: Mapping[str, str] = {}
    ended: bool = False
    limit: int = 0
    without: Mapping[int, object] = {}
    """Jobs in the book that are not shown."""
    pending: Mapping[int, Ended] = {}
    """Jobs that have left the book, whose ends are not durable yet."""
    collapse: bool = False
    """One entry for the members of an array that wait alike."""


class _Page(Struct, frozen=True, kw_only=True):
    """``api.JobList``, its jobs encoded already."""

    jobs: list[msgspec.Raw]
    now: int
    more: bool
    schema: str = api.SCHEMA


async def listing(book: Book, journal: Journal, query: Query, now: int) -> bytes:
    """The jobs asked for as an encoded ``api.JobList``: live ones by id, then ended ones, newest first."""
    most = query.limit or MOST
    found: list[msgspec.Raw] = []
    seen: dict[int, None] = {}
    pause = CooperativeYield()
    async for job, view in _matching(book, journal, query, now):
        if job in seen:  # it ended while the list was made
            continue
        if len(found) == most:
            return msgspec.json.encode(shown(_Page(jobs=found, now=now, more=True), book, now))
        seen[job] = None
        found.append(msgspec.Raw(msgspec.json.encode(shown(view, book, now))))
        await pause()
    return msgspec.json.encode(shown(_Page(jobs=found, now=now, more=False), book, now))


async def _matching(book: Book, journal: Journal, query: Query, now: int) -> AsyncIterator[tuple[int, api.JobView]]:
    ids, pause = _live(book, query.states), CooperativeYield()
    groups = await _alike(book, ids, query) if query.collapse else {}
    stands_for = {jobs[0]: jobs for jobs in groups.values()}
    hidden = {job: True for jobs in groups.values() for job in jobs[1:]}
    for first in range(0, len(ids), CHUNK):
        for job in _of(book, ids[first : first + CHUNK], query.equal):
            spec = book.specs.get(job)  # it may have ended since
            if spec is None or job in query.without or job in hidden:
                continue
            view = views.live_job(book, job, now)
            yield job, _for_all(book, view, stands_for[job]) if job in stands_for else view
        await pause()
    fits = _filter(query.equal)
    for ended in list(query.pending.values()) if not query.states or State.STOPPING in query.states else ():
        if fits(ended.spec) and ended.job not in query.without:
            yield ended.job, views.almost_ended(ended)
    final = [int(state) for state in query.states if state >= State.COMPLETED]
    if final or (query.ended and not query.states):
        async for view in _ended(journal, final, query):
            yield view.id, view


async def _alike(book: Book, ids: list[int], query: Query) -> dict[tuple[str, int, str], list[int]]:
    """Members that wait and have not started yet, by array, state and what holds them."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    pause = CooperativeYield()
    for first in range(0, len(ids), CHUNK):
        for job in _of(book, ids[first : first + CHUNK], query.equal):
            record = book.jobs.get(job)
            member = record.spec.array if record is not None else None
            if record is None or member is None or not member.job or job in query.without:
                continue
            if record.state in (State.HELD, State.QUEUED) and book.table.first_start.item(book.table.row[job]) < 0:
                held = book.hold_reason(job) if record.state == State.HELD else None
                groups.setdefault((array_key(member), record.state, held[0].value if held else ""), []).append(job)
        await pause()
    return groups


def _for_all(book: Book, view: api.JobView, jobs: list[int]) -> api.JobView:
    """The entry of the first as that of all of them."""
    members = [
        member for job in jobs if (spec := book.specs.get(job)) is not None and (member := spec.array) is not None
    ]
    name = members[0].parent if members else view.name
    return replace(view, name=name, array_waiting=ranges(member.index for member in members))


def _of(book: Book, ids: list[int], equal: Mapping[str, str]) -> list[int]:
    if not equal:
        return ids
    fits = _filter(equal)
    return [job for job in ids if (spec := book.specs.get(job)) is not None and fits(spec)]


def _filter(equal: Mapping[str, str]) -> Callable[[JobSpec], bool]:
    """Whether a job is one of those that have all of ``equal``; made once for thousands."""
    name = equal.get("name")
    rest = {key: value for key, value in equal.items() if key != "name"}
    fields, wanted = attrgetter(*rest) if rest else None, tuple(rest.values())
    one_or_all = wanted if len(wanted) != 1 else wanted[0]

    def fits(spec: JobSpec) -> bool:
        return (fields is None or fields(spec) == one_or_all) and (
            name is None or spec.name == name or (spec.array is not None and spec.array.parent == name)
        )

    return fits


def _live(book: Book, states: tuple[State, ...]) -> list[int]:
    """Ids of live jobs in these states, smallest first. Jobs enter the book in the order of their ids."""
    if not states:
        return list(book.specs)
    table, n = book.table, book.table.n
    among = np.isin(table.state[:n], [int(state) for state in states])
    found: list[int] = np.sort(table.id[:n][among]).tolist()
    return found


async def _ended(journal: Journal, final: list[int], query: Query) -> AsyncIterator[api.JobView]:
    """From the archive, page by page, on a connection of its own: a long search must not block the usual one."""
    archive = journal.reader()
    below = None
    try:
        while page := await asyncio.to_thread(
            archive.find, min(PAGE, (query.limit or MOST) + 1), final, query.equal, below
        ):
            for ended in page:
                yield views.ended_job(ended)
            below = page[-1].job
    finally:
        archive.close()


async def usage(book: Book, journal: Journal, by: str, now: int) -> tuple[api.UsageRow, ...]:
    """Sums by team, user or tier over live and ended jobs, most device-time first."""
    archived = await of_archive(journal, lambda archive: archive.sums(by))
    totals = {one.key: _archived(one) for one in archived}
    for key, live in _live_sums(book, by, now).items():
        totals[key] = totals.get(key, np.zeros(6)) + live
    found = [
        api.UsageRow(
            key=key, jobs=int(row[0]), live=int(row[1]), held_gpu_s=float(row[2]), delivered_gpu_s=float(row[3]),
            fraction=float(row[4]) / max(1.0, float(row[0])), preemptions=int(row[5]),
        )
        for key, row in totals.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (-row.held_gpu_s, row.key)))


_Row = np.ndarray[tuple[int], np.dtype[np.float64]]
"""Jobs, live ones of them, GPU-seconds held and delivered, sum of delivered fractions, preemptions."""


def _archived(one: Sums) -> _Row:
    return np.array([one.jobs, 0, one.held, one.delivered, one.fraction_sum, one.preemptions], dtype=np.float64)


def _live_sums(book: Book, by: str, now: int) -> dict[str, _Row]:
    table, n = book.table, book.table.n
    ids: list[int] = table.id[:n].tolist()
    index: dict[str, int] = {}
    group = [index.setdefault(str(getattr(book.specs[job], by)), len(index)) for job in ids]
    running = np.where(table.rate[:n] > 0, now - table.accrued[:n], 0)
    ideal = table.ideal[:n] + progress_column(running, table.rate[:n])
    fraction = np.minimum(1.0, ideal / np.maximum(1, now - table.submit[:n]))
    delivered = (table.attained[:n] + running * table.held_milli[:n]) / GPU_SECOND
    held = [held_milli_us(book.jobs[job], now) / GPU_SECOND for job in ids]
    ones = np.ones(n)
    columns = (ones, ones, held, delivered, fraction, table.preemptions[:n])
    sums = np.array([np.bincount(group, column, len(index)) for column in columns]) if n else np.zeros((6, 0))
    return {key: sums[:, at] for key, at in index.items()}


async def words(book: Book, journal: Journal, of: str, prefix: str) -> tuple[Word, ...]:
    """What begins with ``prefix`` (``completion.WordKind``): ids, the newest first, then words in order; at most MOST_WORDS.

    Of ended jobs, only the latest are looked at.
    """
    if of == "nodes":
        nodes = book.board.layout.nodes
        found = [
            Word(name, f"{nodes[at].kind}, {counted(nodes[at].devices, 'device')}") for name, at in book.nodes.items()
        ]
    elif of == "services":
        found = [Word(name) for name in book.services.records]
    else:
        ended = await of_archive(journal, lambda archive: archive.find(PAGE)) if of != "jobs" else []
        found = await _of_jobs(book, ended, of, prefix)
    kept = {one.word: one for one in found if one.word and one.word.startswith(prefix)}
    ids = sorted((word for word in kept if word.isdecimal()), key=int, reverse=True)
    return tuple(kept[word] for word in [*ids, *sorted(kept.keys() - set(ids))][:MOST_WORDS])


_FIELD_OF = {"teams": "team", "users": "user", "names": "name"}


async def _of_jobs(book: Book, ended: Iterable[Ended], of: str, prefix: str) -> list[Word]:
    """Teams, users or names; else ids, arrays, and names: those of one live job, since those of several are refused, and of the
    latest ended one where no live job has it.
    Members of an array (12_3) are offered once the array and ``_`` are there, all of them as ranges and by name behind ``[``."""
    jobs = {one.job: (one.spec, int(one.state)) for one in ended}
    jobs |= {job: (spec, int(book.jobs[job].state)) for job, spec in book.specs.items()}
    if of == "names" and "[" not in prefix:
        return [Word(word) for word in {spec.array.parent if spec.array else spec.name: 0 for spec, _ in jobs.values()}]
    if of in _FIELD_OF:
        return [Word(word) for word in dict.fromkeys(getattr(spec, _FIELD_OF[of]) for spec, _ in jobs.values())]
    names, before = Counter(spec.name for spec in book.specs.values()), set[str]()
    found, pause = await _of_arrays(jobs, prefix), CooperativeYield()
    for job, (spec, state) in jobs.items():
        await pause()
        if spec.array is not None and spec.array.job:
            continue
        if str(job).startswith(prefix):
            found.append(Word(str(job), f"{spec.name}, {state_name(state)}"))
        known = names[spec.name] == 1 if job in book.specs else not names[spec.name] and spec.name not in before
        if known and spec.name.startswith(prefix):
            before.add(spec.name)
            found.append(Word(spec.name, f"job {job}, {state_name(state)}"))
    return found


async def _of_arrays(jobs: Mapping[int, tuple[JobSpec, int]], prefix: str) -> list[Word]:
    found: dict[str, Word] = {}
    several: dict[str, list[int]] = {}
    pause = CooperativeYield()
    for spec, state in jobs.values():
        await pause()
        array = spec.array
        if array is None or not array.job:
            continue
        if "[" in prefix:
            several.setdefault(f"{array.job}_[", []).append(array.index)
            if spec.name.startswith(prefix):
                found[spec.name] = Word(spec.name, f"{member_ref(array.job, array.index)}, {state_name(state)}")
        elif "_" in prefix:
            member = f"{array.job}_{array.index}"
            if member.startswith(prefix):
                found[member] = Word(member, f"{spec.name}, {state_name(state)}")
        elif str(array.job).startswith(prefix):
            found[str(array.job)] = Word(str(array.job), f"array {array.parent}, {counted(array.size, 'member')}")
        if array.parent.startswith(prefix):
            found[array.parent] = Word(array.parent, f"array {array.job}, {counted(array.size, 'member')}")
    for begun, indices in several.items():
        word = f"{begun}{ranges(indices)}]"
        found[word] = Word(word, counted(len(indices), "member"))
    return list(found.values())
