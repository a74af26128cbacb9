"""Which best-effort models may run beside a real-time model, and on how many cores or multiprocessors, by a table that was
measured on this device."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ...base.errors import UsageError
from ..scheduler.machine import PaddingRule, never_pad
from ..transport.messages import DeviceReady, ModelSource
from .slowdown import DeviceFingerprint, SlowdownTable, load_table, read_table

ALWAYS, NEVER = "always", "never"


class KnownModel(NamedTuple):
    """A loaded model. ``shares``: on which it can run beside real-time work; None: on any."""

    key: str
    shares: tuple[int, ...] | None = None


def model_key(source: ModelSource) -> str:
    """What a table knows a model by: its factory and arguments, however it was named when it was loaded."""
    return f"{source.factory} {json.dumps(source.arguments, sort_keys=True)}" if source.arguments else source.factory


def fingerprint(cores: int, rt_threads: int) -> DeviceFingerprint:
    """This machine as a device: processor, number of cores of the device, kernel, and what computes."""
    versions = []
    for package in ("numpy", "torch"):
        try:
            versions.append((package, version(package)))
        except PackageNotFoundError:
            continue
    versions.append(("rt_threads", str(rt_threads)))
    return DeviceFingerprint(_processor(), cores, platform.release(), tuple(versions))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def gpu_fingerprint(ready: DeviceReady) -> DeviceFingerprint:
    """A GPU as its worker describes it."""
    return DeviceFingerprint(ready.name, ready.multiprocessors, ready.driver, ready.software)


def shares(padding: str, default: int) -> tuple[int, ...]:
    """The shares of a device that the option ``--padding`` may give to best-effort work, ascending: those of the table's file, or
    ``default`` for ``always``. Raises UsageError for a file that is no table."""
    if padding == NEVER:
        return ()
    if padding == ALWAYS:
        return (default,)
    return tuple(sorted({pair.share_sms for pair in read_table(_data(padding)).pairs}))


def rule(
    padding: str, here: DeviceFingerprint, default: int, models: Mapping[int, KnownModel], bound: float
) -> PaddingRule:
    """The rule of the option ``--padding``: never, always (on ``default`` cores or multiprocessors), or a table's file, of
    which pairs up to ``bound`` are admitted. ``models``: those that are loaded, as it is now. Raises UsageError for a table of
    another device."""
    if padding == NEVER:
        return never_pad
    admitted = None if padding == ALWAYS else _admitted(load_table(_data(padding), here), bound)

    def beside(rt: int, be: int) -> set[int]:
        """Shares on which one model may run beside another."""
        if rt not in models or be not in models:
            return set()
        fast, slow = models[rt], models[be]
        found = {default} if admitted is None else admitted.get((fast.key, slow.key), set())
        return found if slow.shares is None else found & set(slow.shares)

    return lambda rt, be: max(set.intersection(*(beside(rt, one) for one in be)), default=0)


def _admitted(table: SlowdownTable, bound: float) -> dict[tuple[str, str], set[int]]:
    """(real-time model, best-effort model) to the shares on which it is slowed down by no more than the bound."""
    found: dict[tuple[str, str], set[int]] = {}
    for pair in table.pairs:
        if table.admits(pair.rt, pair.be, pair.share_sms, bound):
            found.setdefault((pair.rt, pair.be), set()).add(pair.share_sms)
    return found


def _data(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "measure a table: tide runtime calibrate") from None
