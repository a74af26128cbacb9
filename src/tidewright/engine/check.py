"""Invariants, in one place. After every step the jobs it touched; now and then, and at the end, everything."""

from __future__ import annotations

from ..base.errors import Bug
from ..base.units import WHOLE_DEVICE
from ..model.board import Board
from ..model.job import HOLDING, State
from ..model.node import Allocation, device_count
from .book import Book

_HOLDING = frozenset(int(state) for state in HOLDING)


def check_touched(book: Book) -> None:
    """What must hold for each job the step touched. Raises Bug with the job's story."""
    for job in book.touched:
        if job in book.specs:
            _check_job(book, job)


def _check_job(book: Book, job: int) -> None:
    row = book.table.row[job]
    state = int(book.table.state[row])
    held = book.allocations.get(job)
    imaged_stop = state == State.STOPPING and held is None
    if (held is not None) != (state in _HOLDING) and not imaged_stop and job not in book.pins:
        _fail(book, job, f"is {State(state).name} but holds {held}")
    if held is not None:
        spec = book.specs[job]
        if not spec.floor <= device_count(held) <= spec.devices:
            _fail(
                book,
                job,
                f"holds {device_count(held)} devices of {spec.floor}..{spec.devices}: a gang is whole or absent",
            )
    if (job in book.promises) != bool(book.table.promised[row]):
        _fail(book, job, "has a promise the table does not know of")
    if book.table.rate[row] and state != State.RUNNING:
        _fail(book, job, f"is charged for running while {State(state).name}")


def check_all(book: Book) -> None:
    """No device promised twice, every gang whole or absent, no job lost or doubled, the ledger balances."""
    if list(book.table.row) != list(book.specs) and sorted(book.table.row) != sorted(book.specs):
        raise Bug("the job table and the specs name different jobs")
    for job in book.specs:
        _check_job(book, job)
    _check_boards(book)
    if sum(book.counts) - sum(book.counts[State.COMPLETED :]) != len(book.specs):
        raise Bug(f"states count {book.counts}, jobs are {len(book.specs)}")
    book.ledger.advance(book.now)
    charged = book.ledger.retired_total + book.ledger.open_total(book.allocations, book.now)
    if charged != book.ledger.held_total:
        raise Bug(
            f"the ledger does not balance: jobs were charged {charged}, the pool gave {book.ledger.held_total} milli-device-us"
        )


def _check_boards(book: Book) -> None:
    committed = [parts for job, parts in book.allocations.items() if job not in book.leaving] + list(
        book.promises.values()
    )
    _check_board("committed", book.board, committed)
    _check_board("occupied", book.phys, list(book.allocations.values()))
    if book.phys.held_milli() != book.ledger.held_milli:
        raise Bug(f"{book.phys.held_milli()} milli-devices are occupied, {book.ledger.held_milli} are charged")


def _check_board(name: str, board: Board, holders: list[Allocation]) -> None:
    """The board is exactly the sum of its holders."""
    rebuilt = Board(board.layout)
    for parts in holders:
        rebuilt.take(parts)
    if rebuilt.free != board.free or rebuilt.partial != board.partial:
        raise Bug(f"the {name} board differs from the sum of its holders")


def _fail(book: Book, job: int, text: str) -> None:
    raise Bug(f"job {job} {text}\n{book.story_text(job)}")


def milli_free(board: Board) -> int:
    """Milli-devices free on nodes that are up (reports)."""
    return WHOLE_DEVICE * sum(board.free_total)
