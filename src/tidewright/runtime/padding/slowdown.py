"""How much a best-effort model on a share of the SMs slows a real-time model down, as measured; and which are admitted.

The table of another device, driver or compiler says nothing here and is refused. Pairs that were not measured are not admitted.
"""

from __future__ import annotations

import msgspec

from ...base.errors import UsageError

TABLE_FORMAT = 1
DEFAULT_BOUND = 0.02
"""REEF's claim for the end-to-end latency of real-time tasks (OSDI'22): below 2 % overhead."""


class DeviceFingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a measured time depends on. ``software``: name and version of whatever compiled the kernels, sorted by name."""

    device: str
    sms: int
    driver: str
    software: tuple[tuple[str, str], ...] = ()


class PairSlowdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``slowdown``: what ``be`` on ``share_sms`` SMs adds to the latency of ``rt``, as a share of it; negative is noise."""

    rt: str
    be: str
    share_sms: int
    slowdown: float
    samples: int


class SlowdownTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured pairs of one device. ``measured`` tells a device's figures from those of the model of a device."""

    fingerprint: DeviceFingerprint
    pairs: tuple[PairSlowdown, ...]
    measured: bool = True
    format: int = TABLE_FORMAT

    def slowdown(self, rt: str, be: str, share_sms: int) -> float | None:
        """The measured figure, or None: that pair or share was not measured. Of several the largest."""
        return max(
            (pair.slowdown for pair in self.pairs if (pair.rt, pair.be, pair.share_sms) == (rt, be, share_sms)),
            default=None,
        )

    def admits(self, rt: str, be: str, share_sms: int, bound: float = DEFAULT_BOUND) -> bool:
        """Whether ``be`` may run on ``share_sms`` SMs beside ``rt``."""
        found = self.slowdown(rt, be, share_sms)
        return found is not None and found <= bound

    def best_share(self, rts: tuple[str, ...], be: str, bound: float = DEFAULT_BOUND) -> int:
        """The most SMs on which ``be`` is admitted beside every one of ``rts``; 0 for none, and where ``rts`` is empty."""
        shares = sorted({pair.share_sms for pair in self.pairs if pair.be == be}, reverse=True)
        fitting = (share for share in shares if rts and all(self.admits(rt, be, share, bound) for rt in rts))
        return next(fitting, 0)


def dump_table(table: SlowdownTable) -> bytes:
    """The table as JSON, pairs in order, so that equal tables are equal files."""
    ordered = sorted(table.pairs, key=lambda pair: (pair.rt, pair.be, pair.share_sms))
    return msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(table, pairs=tuple(ordered))), indent=1)


def read_table(data: bytes) -> SlowdownTable:
    """Whatever device it is of. Raises UsageError when it cannot be read."""
    try:
        table = msgspec.json.decode(data, type=SlowdownTable)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a slow-down table: {error}", _MEASURE) from error
    if table.format != TABLE_FORMAT:
        raise UsageError(f"a slow-down table of format {table.format}, not {TABLE_FORMAT}", _MEASURE)
    return table


def load_table(data: bytes, here: DeviceFingerprint) -> SlowdownTable:
    """The table of this device. Raises UsageError when it cannot be read or was made for another device, driver or software."""
    table = read_table(data)
    if differing := _differences(table.fingerprint, here):
        raise UsageError(f"the slow-down table was made with another {', '.join(differing)}", _MEASURE)
    return table


_MEASURE = "measure the pairs again on this device"


def _differences(there: DeviceFingerprint, here: DeviceFingerprint) -> list[str]:
    return [name for name in DeviceFingerprint.__struct_fields__ if getattr(there, name) != getattr(here, name)]
