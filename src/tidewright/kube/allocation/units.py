"""Memory as the kubelet counts it: one device id per unit of each GPU. Pure.

Ids are short ("0-12f": GPU, then the unit in hexadecimal), because the kubelet takes no message over 4 MiB and names every
id in one: gpushare's ids of 60 bytes end at 70,000 units, these at about 190,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...base.errors import UsageError

MIB_OF = {"GiB": 1024, "MiB": 1}
MESSAGE_LIMIT = 4 << 20
"""Bytes; gRPC's default for what a client receives, which the kubelet leaves as it is (1.36 too)."""
_AROUND_ID = 2 + 2 + 2 + len("Unhealthy")
"""Bytes of a Device beside its id: its own tag and length, those of both fields, and the longer of the two words."""


def occupied_units(units: int, exclusive_size: int = 0) -> int:
    """Units of a GPU that others cannot use while a pod has ``units`` of it. ``exclusive_size``: the units of a GPU that goes to
    one pod alone (a MIG instance), 0 for a shared one."""
    return max(units, exclusive_size) if units else 0


@dataclass(frozen=True, slots=True)
class UnitSize:
    """How memory is cut: one unit is ``unit_mib`` MiB."""

    unit_mib: int = 1024

    @classmethod
    def of(cls, unit: str, chunk: int = 0) -> UnitSize:
        """``unit``: GiB or MiB; ``chunk``: MiB to a unit, only with MiB. Raises UsageError."""
        if unit not in MIB_OF:
            raise UsageError(f"memory unit {unit!r} does not exist", f"choose one of {', '.join(MIB_OF)}")
        if chunk and unit != "MiB":
            raise UsageError("a chunk is a number of MiB", "give --memory-unit MiB with it, or leave it out")
        if chunk < 0:
            raise UsageError(f"a chunk of {chunk} MiB", "give 1 or more, such as 256")
        return cls(chunk or MIB_OF[unit])

    def units(self, memory_mib: int) -> int:
        """Whole units of a GPU."""
        return memory_mib // self.unit_mib


def id_of(gpu: int, unit: int) -> str:
    """Of one unit of one GPU."""
    return f"{gpu}-{unit:x}"


def gpu_of(device_id: str) -> int:
    """The GPU of an id; -1 for one that is not ours."""
    gpu, dash, unit = device_id.partition("-")
    return int(gpu) if dash and unit and gpu.isascii() and gpu.isdigit() else -1


def ids(units: Mapping[int, int]) -> tuple[str, ...]:
    """Every id of a node; ``units`` by GPU, each its own number."""
    return tuple(id_of(gpu, unit) for gpu in sorted(units) for unit in range(units[gpu]))


def message_bytes(units: Mapping[int, int]) -> int:
    """What a ListAndWatch answer takes at most; without writing the ids out, which may be a million."""
    return sum(count * (len(f"{gpu}-") + _AROUND_ID) + _digits(count) for gpu, count in units.items())


def _digits(count: int) -> int:
    """Hexadecimal digits of all numbers below ``count`` together."""
    return sum(max(count - (16**power if power else 0), 0) for power in range(14))


def check_message(memory_mib: Mapping[int, int], split: UnitSize) -> dict[int, int]:
    """Units by GPU. Raises UsageError when the kubelet could not take so many ids, or a GPU has none."""
    units = {gpu: split.units(mib) for gpu, mib in memory_mib.items()}
    if message_bytes(units) > MESSAGE_LIMIT:
        remedy = f"give --memory-unit GiB, or --chunk {_least_chunk(memory_mib)} (a unit is then that many MiB, on every node)"
        raise UsageError(
            f"{sum(units.values())} units of {split.unit_mib} MiB are more ids than the kubelet takes in one message of 4 MiB",
            remedy,
        )
    if small := [gpu for gpu, count in units.items() if not count]:
        raise UsageError(f"GPU {small[0]} is smaller than one unit of {split.unit_mib} MiB", "use a smaller unit")
    return units


def _least_chunk(memory_mib: Mapping[int, int]) -> int:
    """The smallest power of two that fits: few different units in a cluster are easier to remember."""
    chunk = 2
    while message_bytes({gpu: mib // chunk for gpu, mib in memory_mib.items()}) > MESSAGE_LIMIT:
        chunk *= 2
    return chunk


def prefer(available: Sequence[str], must: Iterable[str], size: int, shares: Mapping[int, int]) -> list[str]:
    """Which ids to take so that they lie on the GPUs that were chosen: ``shares``, units by GPU, empty when unknown.

    ``must`` is always among them. What the chosen GPUs do not have comes from the GPU with the fewest free that has
    enough, else from the fullest first. Fewer than ``size`` only when not so many are available.
    """
    taken = list(dict.fromkeys(must))[:size]
    had = set(taken)
    left: dict[int, list[str]] = {}
    for one in available:
        if one not in had:
            left.setdefault(gpu_of(one), []).append(one)
    for gpu, count in shares.items():
        wanted = min(size - len(taken), count - sum(gpu_of(one) == gpu for one in taken))
        _move(left.get(gpu, []), taken, wanted)
    missing = size - len(taken)
    for gpu in sorted(left, key=lambda at: (len(left[at]) < missing, len(left[at]), at)):
        _move(left[gpu], taken, size - len(taken))
    return taken


def _move(source: list[str], target: list[str], count: int) -> None:
    if count > 0:
        target += source[:count]
        del source[:count]
