"""Invariants, in one place. After every step the jobs it touched; now and then, and at the end, everything."""

from __future__ import annotations

import numpy as np

from ..base.errors import Bug
from ..base.units import WHOLE_DEVICE
from ..model.board import Board
from ..model.job import HOLDING, JobSpec, State
from ..model.job_record import JobRecord
from ..model.node import Allocation, Part, device_count, lone_node
from .book import Book
from .tier_demand import TierDemand

_HOLDING = frozenset(int(state) for state in HOLDING)
_RUNNING, _STOPPING = int(State.RUNNING), int(State.STOPPING)
_LEAVING = (int(State.SUSPENDING), _STOPPING)
_HOLDS = np.array([int(state) in _HOLDING for state in State])


def check_touched(book: Book) -> None:
    """What must hold for each job the step touched. Raises Bug with the job's history."""
    for job in book.touched:
        if job in book.specs:
            _check_job(book, job)


def _check_job(book: Book, job: int) -> None:
    table, record = book.table, book.jobs[job]
    row, state, held = table.row[job], record.state, record.allocation
    if table.state.item(row) != state or table.attempt.item(row) != record.attempt:
        _fail(book, job, f"is {State(state).word}, attempt {record.attempt}, and the table says otherwise")
    stopped_in_image = state == _STOPPING and held is None
    if (held is not None) != (state in _HOLDING) and not stopped_in_image and not record.held_in_place:
        _fail(book, job, f"is {State(state).word} but holds {held}")
    if held is not None:
        least, most = _bounds(record)
        if not least <= device_count(held) <= most:
            _fail(book, job, f"holds {device_count(held)} devices of {least}..{most}: a gang is whole or absent")
    if record.runtime_job and held is not None and state != _STOPPING:
        _check_client(book, job, held)
    if table.lone_node.item(row) != lone_node(held or ()):
        _fail(book, job, f"holds {held}, and the table names node {table.lone_node.item(row) - 1}")
    if (record.reservation is not None) != table.reserved.item(row):
        _fail(book, job, "has a reservation that the table does not know of")
    if state != _RUNNING and table.rate.item(row):
        _fail(book, job, f"is charged for running while {State(state).word}")
    if record.replan_on_release and state not in _LEAVING:
        _fail(book, job, f"is {State(state).word} and still marked for replanning on release")
    if record.hold_retry is not None and (record.user_hold is None or state not in (_RUNNING, *_LEAVING)):
        _fail(book, job, f"is {State(state).word} and to be suspended by a user hold that does not exist")
    if record.held_by and record.user_hold is None:
        _fail(book, job, f"is kept from starting by {record.held_by}, and not held")
    _check_spec(book, job, row, record.spec)
    if record.spec.memory:
        _check_frozen_memory(book, job, record)
    if record.last_image:
        _check_images(book, job, record)
    _check_seen(book, job, record)


def _check_spec(book: Book, job: int, row: int, spec: JobSpec) -> None:
    """What may be changed of a spec is in the columns as it is there."""
    table = book.table
    found = (table.tier.item(row), table.limit.item(row), table.weight.item(row), table.expected.item(row))
    if found != (spec.tier_rank, spec.max_duration_us, spec.weight, spec.expected_us):
        _fail(book, job, f"has tier, limit, weight and estimate {found} in the table, and others in its spec")
    due = table.deadline.item(row)
    if due != (table.submit.item(row) + spec.deadline_us if spec.deadline_us else 0):
        _fail(book, job, f"is due at {due}, and its deadline is {spec.deadline_us} us after its submission")


def _check_frozen_memory(book: Book, job: int, record: JobRecord) -> None:
    """Host memory is kept in use for processes that are frozen or about to be, and for no others."""
    pinned = book.table.pinned_node.item(book.table.row[job]) >= 0
    frozen = record.suspended_as == "process" and record.allocation is None and pinned
    if (frozen and record.frozen_memory is None) or (record.frozen_memory and not (frozen or record.leaving)):
        _fail(book, job, f"is frozen: {frozen}, and keeps {record.frozen_memory} of memory")


def _check_client(book: Book, job: int, held: Allocation) -> None:
    """A client of a runtime is beside it, and only while it runs."""
    runtime = book.jobs.get(book.jobs[job].runtime_job)
    if runtime is None or runtime.state != _RUNNING or runtime.allocation is None:
        _fail(book, job, "runs and its runtime does not")
    elif runtime.allocation[0].node != held[0].node:
        _fail(book, job, f"is on {held}, its runtime on {runtime.allocation}")


def _check_seen(book: Book, job: int, record: JobRecord) -> None:
    """What planners see is what the record says."""
    held, reserved = book.allocations.get(job), book.reservations.get(job)
    if book.specs.get(job) is not record.spec or held is not record.allocation or reserved is not record.reservation:
        _fail(
            book,
            job,
            f"holds {record.allocation} and has {record.reservation} reserved; planners see {held}, {reserved}",
        )
    if bool(record.refused_by) != (job in book.avoided):
        _fail(book, job, f"was refused by {record.refused_by}, and planners see otherwise")


def _bounds(record: JobRecord) -> tuple[int, int]:
    """Fewest and most devices a job may hold. While it is brought to the number its user wants it still has another."""
    spec, override = record.spec, record.size_override
    if not override or record.state != _RUNNING:
        return (min(1, spec.devices) if spec.ranks >= spec.devices else spec.floor), spec.devices
    return override, override


def _check_images(book: Book, job: int, record: JobRecord) -> None:
    """Images are numbered in order, hold no more work than the job has done, and are there when something rests on them."""
    images, ideal = record.images, book.table.ideal.item(book.table.row[job])
    last = 0
    for image in images:
        if not last < image.serial <= record.last_image or image.ideal_us > ideal or not image.whole:
            _fail(book, job, f"has done {ideal} us and keeps {images}")
        last = image.serial
    if record.restore_from and record.state == State.QUEUED and record.restore_from != last:
        _fail(book, job, f"is to start from image {record.restore_from} but keeps {images}")
    if record.image_only and (not images or last != record.last_image):
        _fail(book, job, f"lives in an image but keeps {images}")
    saving = record.saving
    if saving is not None and (saving.ideal_us > ideal or record.allocation is None):
        _fail(book, job, f"has done {ideal} us and is being imaged as {saving}")


def check_all(book: Book) -> None:
    """No device reserved twice, every gang whole or absent, no job lost or doubled, the ledger balances."""
    if not book.table.row.keys() == book.specs.keys() == book.jobs.keys():
        raise Bug("the job table, the specs and the records name different jobs")
    for job in _suspects(book):
        _check_job(book, job)
    _check_boards(book)
    if sum(book.counts) - sum(book.counts[State.COMPLETED :]) != len(book.specs):
        raise Bug(f"states count {book.counts}, jobs are {len(book.specs)}")
    if book.tier_demand.sums != (counted := TierDemand.of(book.table).sums):
        raise Bug(f"tiers ask for {counted}, and {book.tier_demand.sums} is kept")
    made = {job: name for name, record in book.services.records.items() for job in record.replicas if job in book.specs}
    if made != {job: spec.service for job, spec in book.specs.items() if spec.service}:
        raise Bug(f"services have the replicas {made}; other jobs say that they are replicas")
    _check_arrays(book)
    book.ledger.advance(book.now)
    charged = book.ledger.retired_total + book.ledger.open_total(book.jobs.values(), book.now)
    if charged != book.ledger.held_total:
        gave = book.ledger.held_total
        raise Bug(f"the ledger does not balance: jobs were charged {charged}, the pool gave {gave} milli-device-us")


def _check_arrays(book: Book) -> None:
    """Records of arrays and those of their members say the same."""
    waiting = {job: key for key, array in book.arrays.items() for job in array.waiting}
    if waiting != {job: one.waiting_array for job, one in book.jobs.items() if one.waiting_array is not None}:
        raise Bug(f"arrays hold back {waiting}; other jobs say that they wait for one")
    for key, array in book.arrays.items():
        if not array.members or not array.waiting.keys() <= array.members.keys() <= book.jobs.keys():
            raise Bug(f"array {key} has members {list(array.members)}, of which {list(array.waiting)} wait")


def _suspects(book: Book) -> list[int]:
    """Jobs for which some column contradicts the holdings; each is then judged by itself. A few vector expressions."""
    table, n = book.table, book.table.n
    state, reserved = table.state[:n], table.reserved[:n]
    count, lone = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for job, parts in book.allocations.items():
        count[table.row[job]], lone[table.row[job]] = device_count(parts), lone_node(parts)
    wrong = _HOLDS[state] != (count > 0)
    wrong |= (count > 0) & ((count < table.floor[:n]) | (count > table.demand[:n]))
    wrong |= lone != table.lone_node[:n]
    wrong |= (table.rate[:n] > 0) & (state != State.RUNNING)
    expected = np.zeros(n, bool)
    expected[[table.row[job] for job in book.reservations]] = True
    wrong |= expected != reserved
    return [int(job) for job in table.id[:n][wrong]]


def _check_boards(book: Book) -> None:
    committed = [parts for job, parts in book.allocations.items() if not book.jobs[job].leaving]
    committed.extend(book.reservations.values())
    frozen = {job: record.frozen_memory for job, record in book.jobs.items() if record.frozen_memory is not None}
    committed.extend(frozen.values())
    _check_board("committed", book.board, committed)
    closed = tuple(book.outages.mask(node, size) for node, size in enumerate(book.board.layout.node_size))
    if closed != book.board.closed:
        raise Bug(f"devices {book.board.closed} are out of service on the board, {closed} by what is known of them")
    gone = [parts for job, parts in frozen.items() if job not in book.allocations]
    _check_board("occupied", book.phys, [*book.allocations.values(), *gone])
    if book.phys.held_milli() != book.ledger.held_milli:
        raise Bug(f"{book.phys.held_milli()} milli-devices are occupied, {book.ledger.held_milli} are charged")


def _check_board(name: str, board: Board, holders: list[Allocation]) -> None:
    """The board is exactly the sum of its holders, and no device is held beyond its whole."""
    free = [(1 << size) - 1 for size in board.layout.node_size]
    shares: dict[tuple[int, int], int] = {}
    rest: list[Part] = []
    for parts in holders:
        for node, mask, milli, resources in parts:
            if resources is not None:
                rest.append(Part(node, mask, milli, resources))
            if milli >= WHOLE_DEVICE:
                if free[node] & mask != mask:
                    raise Bug(f"devices {mask:#x} of node {node} are {name} twice")
                free[node] ^= mask
            else:
                shares[node, mask] = shares.get((node, mask), 0) + milli
    for (node, mask), used in shares.items():
        if used > WHOLE_DEVICE or free[node] & mask != mask:
            raise Bug(f"device {mask:#x} of node {node} is {name} beyond its whole")
        free[node] ^= mask
    usable = [mask & ~closed for mask, closed in zip(free, board.closed, strict=True)]
    if free != board.untouched or usable != board.free or shares != board.partial:
        raise Bug(f"the {name} board differs from the sum of its holders")
    _check_resources(name, board, rest)


def _check_resources(name: str, board: Board, parts: list[Part]) -> None:
    """What is in use besides devices is the sum of what the parts take, and no device's memory is used beyond its whole."""
    host: dict[int, tuple[int, int]] = {}
    measured: dict[tuple[int, int], tuple[int, int]] = {}
    for node, mask, milli, resources in parts:
        assert resources is not None
        cpus, memory = host.get(node, (0, 0))
        if resources.cpus_milli or resources.memory:
            host[node] = cpus + resources.cpus_milli, memory + resources.memory
        if resources.device_memory >= 0 and milli < WHOLE_DEVICE:
            apart, size = measured.get((node, mask), (0, 0))
            measured[node, mask] = apart + milli, size + resources.device_memory
    if host != board.host or measured != board.measured:
        raise Bug(f"the {name} board has {board.host}, {board.measured} in use, its holders {host}, {measured}")
    for node, mask in measured:
        if not board.share_fits(node, mask, 0, None):
            raise Bug(f"memory of device {mask:#x} of node {node} is {name} beyond its whole")


def _fail(book: Book, job: int, text: str) -> None:
    raise Bug(f"job {job} {text}\n{book.format_history(job)}")
