"""Nodes come, change, fall silent and die, and what that means for the jobs and images on them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ...base.units import WHOLE_DEVICE
from ...model.cause import Cause, Code, reported
from ...model.job import State
from ...model.job_record import JobRecord
from ...model.node import DeviceFault, NodeSpec, bits, usable
from .. import events as ev
from .. import images
from ..book import HELD, QUEUED, RUNNING, Book
from ..reports import exited
from ..termination import restart, stop
from . import refusals
from .evacuate import close_devices
from .outages import Changed

_STARTING = int(State.STARTING)


def nodes_up(book: Book, arrivals: list[ev.NodeUp]) -> None:
    """Nodes appear or come back; many at once cost as much as one."""
    fresh: dict[str, NodeSpec] = {}
    for event in arrivals:
        node = usable(event.node)
        book.incarnations[node.name] = event.incarnation
        if node.name not in book.nodes and node.devices > 0:
            fresh[node.name] = node
    if fresh:
        book.add_nodes(list(fresh.values()))
    for event in arrivals:
        index = book.nodes.get(event.node.name)
        if index is None:
            continue
        node = usable(event.node)
        refusals.lift(book, index)
        if node.name not in fresh and (node != book.board.layout.nodes[index] or index in book.outages.changed):
            _describe_again(book, index, node)
        book.node_down.pop(index, None)
        book.dead.pop(index, None)
        book.set_node_up(index)


def _describe_again(book: Book, index: int, node: NodeSpec) -> None:
    """Take over a changed description. Held devices that are not what they were keep their place until the jobs on them have
    been moved."""
    old = book.board.layout.nodes[index]
    book.outages.changed.pop(index, None)
    described, lost = node, _lost_devices(book, index, old, node)
    if lost:
        described, book.outages.changed[index] = _until_moved(old, node, lost)
    if _shape(described) != _shape(old):
        _revoke_on(book, index, Code.OTHER_DEVICES())
    book.replace_node(index, described)
    close_devices(book, index)
    if described.full != old.full:
        for job, parts in book.allocations.items():
            row = book.table.row[job]
            if book.table.state[row] in (_STARTING, RUNNING) and any(part.node == index for part in parts):
                images.settle_level(book, job, row)


def _shape(node: NodeSpec) -> tuple[object, ...]:
    return node.devices, node.kind, node.device_memory, node.uuids


def _until_moved(old: NodeSpec, node: NodeSpec, lost: dict[int, bool]) -> tuple[NodeSpec, Changed]:
    """How a node is described while jobs hold devices that are gone: longer than it is, or, when what is left of its devices
    is numbered anew or shares were sized by another memory, as it was."""
    resized = node.device_memory != old.device_memory and any(lost.values())
    beyond = node.kind == old.kind and min(lost) >= node.devices and not resized
    why = Code.CAME_BACK_WITH(node.devices) if beyond else Code.CAME_BACK_OTHER()
    size = max(lost) + 1 if beyond else old.devices
    gone = range(node.devices, size) if beyond else lost
    faults = tuple(DeviceFault(device, "", broken=old.kind != "cpu") for device in gone)
    return (replace(node, devices=size) if beyond else old), Changed(node, faults, not beyond, why)


def _lost_devices(book: Book, index: int, old: NodeSpec, node: NodeSpec) -> dict[int, bool]:
    """The devices of a node that jobs hold and that are gone, or others, by its new description; whether each is shared."""
    held: dict[int, bool] = {}
    for parts in book.allocations.values():
        for part in parts:
            if part.node == index:
                held.update(
                    {device: part.milli < WHOLE_DEVICE or held.get(device, False) for device in bits(part.mask)}
                )
    return {device: shared for device, shared in held.items() if not _same_device(device, shared, old, node)}


def _same_device(device: int, shared: bool, old: NodeSpec, node: NodeSpec) -> bool:
    if device >= node.devices or node.kind != old.kind or (shared and node.device_memory != old.device_memory):
        return False
    known = device < len(old.uuids) and device < len(node.uuids)
    return not known or old.uuids[device] == node.uuids[device]


def settle(book: Book) -> None:
    """Take over the new description of nodes whose old devices the jobs on them have left."""
    for index, changed in list(book.outages.changed.items()):
        lost = _lost_devices(book, index, book.board.layout.nodes[index], changed.node)
        if not any(fault.device in lost for fault in changed.gone):
            _describe_again(book, index, changed.node)


def node_health(book: Book, event: ev.NodeHealth) -> None:
    """Devices fail and recover."""
    index = book.nodes.get(event.name)
    if index is None:
        return
    if event.faults:
        book.outages.faults[index] = event.faults
    else:
        book.outages.faults.pop(index, None)
    close_devices(book, index)


def node_down(book: Book, event: ev.NodeDown) -> None:
    """A node died with everything on it."""
    index = book.nodes.get(event.name)
    if index is None:
        return
    if index not in book.dead:
        book.world_failures.count += 1
    _close(book, index, event.why)
    book.dead[index] = True
    book.outages.faults.pop(index, None)  # said anew when it is back
    close_devices(book, index)
    images.node_lost(book, event.name, frozenset(event.kept))
    why = Code.NODE_DOWN(event.name, reported(event.why))
    for job in [job for job, parts in book.allocations.items() if any(part.node == index for part in parts)]:
        _lose(book, job, why)
    for job in _suspended(book):
        record = book.jobs[job]
        if book.table.pinned_node[book.table.row[job]] == index:
            _lose(book, job, why)
        elif record.image_only and _image_died(record):
            restart(book, job, why, keeps_work=False, from_image=True)
    for job in [job for job in book.with_images if _must_go_back(book.jobs[job])]:
        row = book.table.row[job]
        book.record(job, "IMAGE", Code.WITH(why, images.roll_back(book, job, row)))


def _suspended(book: Book) -> list[int]:
    """Jobs whose suspended attempt holds no devices, by id. Found by the columns: a rack of nodes may be lost at once."""
    table, n = book.table, book.table.n
    away = np.isin(table.state[:n], (State.SUSPENDED, State.HELD, State.STOPPING))
    jobs = ((job, book.jobs[job]) for job in sorted(table.id[:n][away].tolist()))
    return [job for job, record in jobs if record.suspended_as and record.allocation is None]


def _image_died(record: JobRecord) -> bool:
    """Whether the image that a suspended job lives in is gone; the one before it is of an earlier moment."""
    return record.image is None or record.image.serial != record.last_image


def _must_go_back(record: JobRecord) -> bool:
    """Whether a job that waits to start from an image lost that one."""
    waiting = record.restore_from and record.state in (QUEUED, HELD)
    return bool(waiting) and all(image.serial != record.restore_from for image in record.images)


def _lose(book: Book, job: int, why: Cause) -> None:
    """A job lost at least one node: stop what survives, then start over. Survivors of a job with an image are rolled back,
    so nothing they still do is of use."""
    record = book.jobs[job]
    if any(part.node not in book.node_down for part in record.allocation or ()):
        stop(book, job, QUEUED, why, grace_us=0 if record.image is not None else -1)
    else:
        exited(book, ev.Exited(job, record.attempt, 137, lost=True, why=why))


def node_silent(book: Book, event: ev.NodeSilent) -> None:
    """A node does not answer: its jobs run on, nothing new is placed there."""
    index = book.nodes.get(event.name)
    if index is not None:
        _close(book, index, event.why)


def _close(book: Book, index: int, why: Cause | str) -> None:
    book.node_down[index] = why
    book.set_node_up(index)
    _revoke_on(book, index, reported(why))


def _revoke_on(book: Book, index: int, why: Cause) -> None:
    for job in list(book.reservation_order.get(index, ())):
        book.cancel_reservation(job)
        book.record(job, "UNRESERVED", Code.NODE_CLOSED(book.board.layout.nodes[index].name, why))
