"""Changing what a waiting job asks for, and leaving waiting jobs out: "what if it asked for less?".

Used on forks only; a live book takes no such write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...base.errors import Bug
from ...model.job import JobSpec, State
from .. import rates
from ..book import Book
from ..ledger import change_tier
from .admission import PLACEMENTS

WAITING = (State.HELD, State.QUEUED, State.SUSPENDED)


def amend(book: Book, job: int, spec: JobSpec) -> None:
    """Replace the spec of a job that holds no devices; takes effect with the next planning round. Raises Bug otherwise."""
    if book.state(job) not in WAITING or job in book.reservations:
        raise Bug(f"job {job} is {book.state(job).name}; only a waiting job can be amended")
    book.own()
    table, row = book.table, book.table.row[job]
    share = table.memory.item(row), table.gpu_milli.item(row)
    book.tier_demand.add(table.tier.item(row), table.demand.item(row), *share, -1)
    book.tier_demand.add(spec.tier_rank, spec.devices, spec.gpu_memory, spec.compute_milli)
    book.elastic_jobs += int(spec.elastic) - int(book.specs[job].elastic)
    if spec.tier_rank != book.specs[job].tier_rank:
        change_tier(table, row, book.jobs[job], spec.tier_rank, book.now)
    book.specs[job] = book.jobs[job].spec = spec
    table.demand[row], table.floor[row], table.ranks[row] = spec.devices, spec.floor, spec.ranks
    table.kinds[row] = rates.kinds_of(book, spec)
    table.memory[row], table.gpu_milli[row] = spec.gpu_memory, spec.compute_milli
    table.cpus_milli[row], table.host_memory[row] = spec.cpus_milli, spec.memory
    table.resourced = table.resourced or bool(table.gpu_milli.item(row) or spec.cpus_milli or spec.memory)
    table.placement[row] = PLACEMENTS.index(spec.placement)
    table.level[row] = book.usual_level(spec)
    book.forced = True


@contextmanager
def aside(book: Book, jobs: Sequence[int]) -> Iterator[None]:
    """While it lasts, plans leave out these waiting jobs, as if they were held."""
    rows = [book.table.row[job] for job in jobs]
    book.own()
    before = book.table.state[rows]
    book.table.state[rows] = int(State.HELD)
    try:
        yield
    finally:
        book.own()
        book.table.state[rows] = before
