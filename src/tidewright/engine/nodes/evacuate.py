"""Jobs leave devices that are out of service: suspended where they can be, started again where nothing can go on."""

from __future__ import annotations

from ...model.cause import Code
from ...model.job import State
from ..apply_plan import unsuspendable
from ..book import QUEUED, RUNNING, Book
from ..lifecycle import transition
from ..termination import stop
from . import drains
from .outages import DeviceOutage


def close_devices(book: Book, index: int) -> None:
    """Bring the board in line with what is known of the node's devices, and move the jobs on those out of service."""
    mask = book.outages.mask(index, book.board.layout.node_size[index])
    if mask != book.board.closed[index]:
        book.board.close(index, mask)
        book.forced = True
    name = book.board.layout.nodes[index].name
    for job in list(book.reservation_order.get(index, ())):
        if not book.board.open_for(book.reservations[job]):
            book.cancel_reservation(job)
            book.record(job, "UNRESERVED", Code.DEVICES_OUT(name))
    for job in [job for job, parts in book.allocations.items() if any(part.node == index for part in parts)]:
        move_away(book, job)


def move_away(book: Book, job: int) -> None:
    """Have a running job leave devices that are out of service, and nodes that are drained so. One that cannot be suspended runs
    on, unless nothing can go on there: then it is started again, from its latest image if there is one."""
    if book.table.state.item(book.table.row[job]) != RUNNING:
        return
    found = _fault_under(book, job)
    if found is None:
        drains.leave(book, job)
        return
    index, fault = found
    why = Code.DEVICE_OUT(fault.device, book.board.layout.nodes[index].name, fault.why)
    reason = unsuspendable(book, job, book.table.row[job])
    if reason is None:
        transition(book, job, int(State.SUSPENDING), why)
        book.jobs[job].replan_on_release = True
    elif fault.broken:
        stop(book, job, QUEUED, why)
    else:
        book.record(job, State.RUNNING.name, Code.RUNS_ON_THERE(why, reason))


def _fault_under(book: Book, job: int) -> tuple[int, DeviceOutage] | None:
    """(node, fault) of the worst device that a job holds."""
    found: tuple[int, DeviceOutage] | None = None
    for node, mask, _, _ in book.allocations.get(job, ()):
        for fault in book.outages.of(node):
            if mask >> fault.device & 1 and (found is None or (fault.broken and not found[1].broken)):
                found = node, fault
    return found
