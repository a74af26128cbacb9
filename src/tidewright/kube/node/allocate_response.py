"""What the kubelet handed to the runtime for one container, read from the Allocate response in its checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..allocation.container_lookup import CheckpointEntry
from ..allocation.pod_usage import Allocated
from ..objects import names
from .v1beta1 import messages


def allocated(entry: CheckpointEntry, indices: Mapping[str, int]) -> Allocated:
    """As the answer in the checkpoint says; ``indices`` of this node's GPUs by UUID."""
    return Allocated(entry.uid, entry.container, entry.ids, _units(entry, indices))


def _units(entry: CheckpointEntry, indices: Mapping[str, int]) -> dict[int, int]:
    from google.protobuf.message import DecodeError

    try:
        answer: Any = messages().ContainerAllocateResponse.FromString(entry.answer)
    except DecodeError:
        return {}
    if names.UNITS in answer.annotations:
        return _read(answer.annotations[names.UNITS])
    if answer.cdi_devices:
        return {}  # the variables beside a promised device are a hint only
    gpus = _gpus(answer.envs.get(names.VISIBLE, ""), indices) or _gpus(answer.envs.get(names.IDX, ""), indices)
    share, more = divmod(len(entry.ids), len(gpus) or 1)
    return {gpu: share + (at < more) for at, gpu in enumerate(gpus)}


def _read(text: str) -> dict[int, int]:
    pairs = [one.partition("=") for one in text.split(",")]
    return {int(gpu): int(count) for gpu, _, count in pairs if gpu.isdecimal() and count.isdecimal()}


def _gpus(text: str, indices: Mapping[str, int]) -> list[int]:
    """UUIDs as we write them, or indices as gpushare's device plugin does; none when any is neither."""
    found = [indices.get(one, int(one) if one.isdecimal() else -1) for one in text.split(",")]
    return [] if -1 in found else list(dict.fromkeys(found))
