"""Which best-effort models may run on the cores that a real-time model leaves, by a table measured on this machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...base.errors import UsageError
from ..scheduler.machine import PaddingRule
from ..transport.messages import ModelSource
from .slowdown import DEFAULT_BOUND, DeviceFingerprint, load_table

ALWAYS, NEVER = "always", "never"


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


def rule(
    padding: str, cores: int, rt_threads: int, keys: Mapping[int, str], bound: float = DEFAULT_BOUND
) -> PaddingRule:
    """The rule of a runtime's option ``--padding``: never, always, or a table's file. ``keys``: each model's key, as it is now.
    Raises UsageError for a table of another device."""
    if padding == NEVER:
        return lambda rt, be: False
    if padding == ALWAYS:
        return lambda rt, be: True
    try:
        data = Path(padding).read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {padding}: {error.strerror}", "measure a table: tide runtime calibrate"
        ) from None
    table = load_table(data, fingerprint(cores, rt_threads))
    left = cores - rt_threads

    def admits(rt: int, be: tuple[int, ...]) -> bool:
        return (
            left > 0
            and rt in keys
            and all(one in keys and table.admits(keys[rt], keys[one], left, bound) for one in be)
        )

    return admits
