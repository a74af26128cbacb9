"""Changes of a waiting job's own request: where it runs, on what, with how much, for which tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ..base.units import WHOLE_DEVICE
from ..engine.book import Book
from ..model.cause import Code
from ..model.job import MIN_HOST_MEMORY, JobSpec
from ..plan.explain import Change

MIB = 2**20
_CPU_STEP = 100
"""Thousandths of a CPU between two amounts that are tried."""
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
    for name in ("gpu_milli", "gpu_share", "cpus_milli", "memory", "tier", "placement"):
        if value := getattr(change, name):
            fields[name] = value
    return msgspec.structs.replace(spec, **fields)


class Candidates(NamedTuple):
    """Changes of one kind, the mildest first: a value each, and the change that it makes."""

    values: Sequence[Any]
    change: Callable[[Any], Change]


def candidates(book: Book, job: int) -> Iterator[Candidates]:
    """Changes worth trying, in groups: of each group the first that starts the job is its least."""
    spec = book.specs[job]
    for one in _elsewhere(book, spec):
        yield Candidates([one], lambda change: change)
    yield from _less_of_hosts(spec)
    yield Candidates(list(_fewer_devices(spec)), lambda change: change)
    yield from _smaller_share(spec)
    yield Candidates(list(_higher_tier(spec)), lambda change: change)


def _elsewhere(book: Book, spec: JobSpec) -> Iterator[Change]:
    if spec.placement != "any" and spec.floor > 1:
        yield Change("request", Code.SPREAD(), "--placement any", placement="any")
    for kind in book.board.layout.kinds if spec.device_types else ():
        if kind not in spec.device_types:
            types = (*spec.device_types, kind)
            yield Change("request", Code.ACCEPT_TYPE(kind), f"--type {','.join(types)}", device_types=types)


def _below(asked: int, step: int, least: int) -> range:
    """Multiples of ``step`` below ``asked``, the largest first, down to ``least``."""
    return range((asked - 1) // step * step, least - 1, -step)


def _less_of_hosts(spec: JobSpec) -> Iterator[Candidates]:
    """Fewer CPUs, and less host memory, for each rank."""

    def fewer(cpus: int) -> Change:
        return Change("request", Code.FEWER_CPUS(cpus, spec.cpus_milli), f"--cpus {cpus / 1000:g}", cpus_milli=cpus)

    def less(size: int) -> Change:
        what = Code.LESS_HOST_MEMORY(size, spec.memory)
        return Change("request", what, f"--mem {size // MIB}MiB", memory=size)

    yield Candidates(_below(spec.cpus_milli, _CPU_STEP, _CPU_STEP), fewer)
    yield Candidates(_below(spec.memory, MIB, MIN_HOST_MEMORY), less)


def _fewer_devices(spec: JobSpec) -> Iterator[Change]:
    """Every smaller number of devices that its ranks can run on, the largest first."""
    if spec.floor == 1 or spec.shares:
        return
    for count in range(spec.floor - 1, 0, -1):
        if spec.ranks == spec.devices or spec.ranks % count == 0 or count % spec.ranks == 0:
            yield Change("request", Code.FEWER_DEVICES(count, spec.floor), f"-g {count}", devices=count)


def _smaller_share(spec: JobSpec) -> Iterator[Candidates]:
    """Less memory, and less compute, of one device."""

    def memory(share: int) -> Change:
        what = Code.SMALLER_SHARE(share, spec.gpu_memory)
        return Change("request", what, f"--gpu-mem {share // MIB}MiB", gpu_memory=share)

    def compute(milli: int) -> Change:
        what = Code.SMALLER_COMPUTE(milli, spec.gpu_milli)
        return Change("request", what, f"--gpu-milli {milli}", gpu_milli=milli)

    def fraction(milli: int) -> Change:
        what = Code.SMALLER_FRACTION(milli, spec.gpu_share)
        return Change("request", what, f"--share {milli / WHOLE_DEVICE:g}", gpu_share=milli)

    yield Candidates(_below(spec.gpu_memory, MIB, MIB), memory)
    yield Candidates(_below(spec.gpu_milli, 1, 1), compute)
    yield Candidates(_below(spec.gpu_share, 1, 1), fraction)


def _higher_tier(spec: JobSpec) -> Iterator[Change]:
    tier: str = spec.tier
    while tier in _UP:
        tier = _UP[tier]
        yield Change("tier", Code.HIGHER_TIER(tier, spec.tier), f"--sla {tier}", tier=tier)
