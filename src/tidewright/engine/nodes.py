"""Nodes come, change, fall silent and die, and what that means for the jobs and images on them."""

from __future__ import annotations

from msgspec.structs import replace

from ..model.job import State
from ..model.node import MAX_DEVICES_PER_NODE, NodeSpec
from . import events as ev
from . import images
from .book import HELD, QUEUED, RUNNING, Book
from .leave import restart, stop
from .react import exited

_STARTING = int(State.STARTING)


def nodes_up(book: Book, arrivals: list[ev.NodeUp]) -> None:
    """Nodes appear or come back; many at once cost as much as one."""
    fresh: dict[str, NodeSpec] = {}
    for event in arrivals:
        node = _usable(event.node)
        book.incarnations[node.name] = event.incarnation
        if node.name not in book.nodes and node.devices > 0:
            fresh[node.name] = node
    if fresh:
        book.add_nodes(list(fresh.values()))
    for event in arrivals:
        index = book.nodes.get(event.node.name)
        if index is None:
            continue
        node = _usable(event.node)
        if node.name not in fresh and node != book.board.layout.nodes[index]:
            _describe_again(book, index, node)
        book.node_down.pop(index, None)
        book.dead.pop(index, None)
        book.set_node_up(index)


def _usable(node: NodeSpec) -> NodeSpec:
    """The node as the book can hold it: with as many devices as a snapshot's 64-bit masks can name."""
    if 0 <= node.devices <= MAX_DEVICES_PER_NODE:
        return node
    note = f"only {MAX_DEVICES_PER_NODE} of its {node.devices} devices are used"
    return replace(node, devices=max(0, min(node.devices, MAX_DEVICES_PER_NODE)), note=note)


def _describe_again(book: Book, index: int, node: NodeSpec) -> None:
    """Take over a changed description, unless the change touches devices somebody holds."""
    old = book.board.layout.nodes[index]
    same_devices = (old.devices, old.kind, old.device_memory) == (node.devices, node.kind, node.device_memory)
    busy = any(
        part.node == index for held in (book.allocations, book.promises) for parts in held.values() for part in parts
    )
    if same_devices or not busy:
        book.replace_node(index, node)
    if node.full != old.full:
        for job, parts in book.allocations.items():
            row = book.table.row[job]
            if book.table.state[row] in (_STARTING, RUNNING) and any(part.node == index for part in parts):
                images.settle_level(book, job, row)


def node_down(book: Book, event: ev.NodeDown) -> None:
    """A node died with everything on it."""
    index = book.nodes.get(event.name)
    if index is None:
        return
    if index not in book.dead:
        book.world_failures.count += 1
    _close(book, index, event.why)
    book.dead[index] = True
    images.node_lost(book, event.name, frozenset(event.kept))
    why = f"node {event.name} is down: {event.why}"
    for job in [job for job, parts in book.allocations.items() if any(part.node == index for part in parts)]:
        _lose(book, job, why)
    for job in list(book.imaged):
        if job in book.allocations:
            continue
        if book.table.home[book.table.row[job]] == index:
            _lose(book, job, why)
        elif book.image_only(job) and _image_died(book, job):
            restart(book, job, why, keeps_work=False, from_image=True)
    for job in [job for job, serial in book.from_image.items() if _must_go_back(book, job, serial)]:
        row = book.table.row[job]
        book.tell(job, "IMAGE", f"{why}; {images.roll_back(book, job, row)}")


def _image_died(book: Book, job: int) -> bool:
    """Whether the image that a suspended job lives in is gone; the one before it is of an earlier moment."""
    image = book.image(job)
    return image is None or image.serial != book.serials[job]


def _must_go_back(book: Book, job: int, serial: int) -> bool:
    """Whether a job that waits to start from an image lost that one."""
    waiting = book.table.state.item(book.table.row[job]) in (QUEUED, HELD)
    return waiting and all(image.serial != serial for image in book.images.get(job, ()))


def _lose(book: Book, job: int, why: str) -> None:
    """A job lost at least one node: stop what survives, then start over. Survivors of a job with an image are rolled back,
    so nothing they still do is of use."""
    parts = book.allocations.get(job, ())
    row = book.table.row[job]
    if any(part.node not in book.node_down for part in parts):
        stop(book, job, QUEUED, why, grace_us=0 if book.image(job) is not None else -1)
    else:
        exited(book, ev.Exited(job, book.table.attempt.item(row), 137, lost=True, why=why))


def node_silent(book: Book, event: ev.NodeSilent) -> None:
    """A node does not answer: its jobs run on, nothing new is placed there."""
    index = book.nodes.get(event.name)
    if index is not None:
        _close(book, index, event.why)


def _close(book: Book, index: int, why: str) -> None:
    book.node_down[index] = why
    book.set_node_up(index)
    for job in list(book.promise_order.get(index, ())):
        book.revoke(job)
        book.tell(job, "REVOKED", f"node {book.board.layout.nodes[index].name}: {why}")
