"""Changes of a waiting job's own request: where it runs, on what, with how much, for which tier."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..base.units import WHOLE_DEVICE
from ..engine.book import Book
from ..model.cause import Code
from ..model.job import JobSpec
from ..plan.explain import Change

_RANKS = 16
"""Ranks on one node that are divided among."""
_UP = {"basic": "standard", "standard": "premium"}


def amended(spec: JobSpec, change: Change) -> JobSpec:
    """The spec with a change made. Fewer devices for a job with one rank each means as many ranks."""
    fields: dict[str, object] = {}
    if change.devices:
        ranks = change.devices if spec.ranks == spec.devices else spec.ranks
        fields |= {"devices": change.devices, "min_devices": 0, "ranks": ranks}
    if change.device_types is not None:
        fields["device_types"] = change.device_types
    if change.gpu_memory >= 0:
        fields["gpu_memory"] = change.gpu_memory
    for name in ("cpus_milli", "memory", "tier", "placement"):
        if value := getattr(change, name):
            fields[name] = value
    return msgspec.structs.replace(spec, **fields)


def candidates(book: Book, job: int) -> Iterator[list[Change]]:
    """Changes worth trying, in groups: of each group the first that starts the job is its least."""
    spec = book.specs[job]
    yield from ([one] for one in _elsewhere(book, spec))
    yield from _less_of_hosts(book, job, spec)
    yield list(_fewer_devices(spec))
    yield list(_smaller_share(book, spec))
    yield list(_higher_tier(spec))


def _elsewhere(book: Book, spec: JobSpec) -> Iterator[Change]:
    if spec.placement != "any" and spec.floor > 1:
        yield Change("request", Code.SPREAD(), "--placement any", placement="any")
    for kind in book.board.layout.kinds if spec.device_types else ():
        if kind not in spec.device_types:
            types = (*spec.device_types, kind)
            yield Change("request", Code.ACCEPT_TYPE(kind), f"--type {','.join(types)}", device_types=types)


def _less_of_hosts(book: Book, job: int, spec: JobSpec) -> Iterator[list[Change]]:
    """As many CPUs, or as much host memory, for each rank as some node with free devices has left for so many ranks."""
    board, kinds = book.board, int(book.table.kinds[book.table.row[job]])
    nodes = [node for node, kind in enumerate(board.layout.node_kind) if kinds >> kind & 1 and board.free[node]]
    left = [board.host_free(node) for node in nodes]
    ranks = range(1, min(spec.ranks, _RANKS) + 1)
    cpus = [max((free for free, _ in left), default=0) // each // 100 * 100 for each in ranks]
    memory = [max((free for _, free in left), default=0) // each // 2**20 * 2**20 for each in ranks]
    yield [
        Change("request", Code.FEWER_CPUS(count, spec.cpus_milli), f"--cpus {count / 1000:g}", cpus_milli=count)
        for count in dict.fromkeys(cpus)
        if 0 < count < spec.cpus_milli
    ]
    yield [
        Change("request", Code.LESS_HOST_MEMORY(size, spec.memory), f"--mem {size // 2**20}MiB", memory=size)
        for size in dict.fromkeys(memory)
        if 0 < size < spec.memory
    ]


def _fewer_devices(spec: JobSpec) -> Iterator[Change]:
    """Every smaller number of devices that its ranks can run on, the largest first."""
    if spec.floor == 1 or spec.gpu_memory or spec.gpu_milli:
        return
    for count in range(spec.floor - 1, 0, -1):
        if spec.ranks == spec.devices or spec.ranks % count == 0 or count % spec.ranks == 0:
            yield Change("request", Code.FEWER_DEVICES(count, spec.floor), f"-g {count}", devices=count)


def _smaller_share(book: Book, spec: JobSpec) -> Iterator[Change]:
    """The memory of any one device that is free, the largest first."""
    board, layout = book.board, book.board.layout
    if not spec.gpu_memory:
        return
    free = {
        (WHOLE_DEVICE - used) * layout.nodes[node].device_memory // WHOLE_DEVICE // 2**20 * 2**20
        for (node, _), used in board.partial.items()
    }
    free |= {layout.nodes[node].device_memory for node, mask in enumerate(board.free) if mask}
    for share in sorted(free, reverse=True):
        if 0 < share < spec.gpu_memory:
            what = Code.SMALLER_SHARE(share, spec.gpu_memory)
            yield Change("request", what, f"--gpu-mem {share // 2**20}MiB", gpu_memory=share)


def _higher_tier(spec: JobSpec) -> Iterator[Change]:
    tier: str = spec.tier
    while tier in _UP:
        tier = _UP[tier]
        yield Change("tier", Code.HIGHER_TIER(tier, spec.tier), f"--sla {tier}", tier=tier)
