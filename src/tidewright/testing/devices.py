"""Conformance kit for device backends: what the agent relies on, whatever the hardware.

``check_backend(open)`` raises AssertionError naming the broken promise; ``open`` makes a fresh backend.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..base.errors import UsageError
from ..base.ids import valid_name
from ..devices.protocol import Backend
from ..model.node import NodeSpec
from .device_shares import check_shares


def check_backend(open_backend: Callable[[], Backend]) -> None:
    """Run the whole kit."""
    backend = open_backend()
    try:
        node = check_node(backend)
        check_lists(backend, node)
        check_environment(backend, node)
        backend.forgive()
        check_lists(backend, node)
    finally:
        backend.close()
        backend.close()  # safe to repeat
    check_shares(open_backend)


def check_node(backend: Backend) -> NodeSpec:
    """The node is well-formed and the same each time."""
    node = backend.discover()
    assert node == backend.discover(), "discover() changes its answer"
    assert valid_name(node.name), f"bad node name {node.name!r}"
    assert valid_name(node.kind) and node.kind == node.kind.lower(), f"bad kind {node.kind!r}"
    assert node.devices >= 1, "a node without devices"
    assert node.device_memory > 0 and node.memory > 0 and node.cpus > 0, "sizes must be known"
    assert len(node.uuids) in (0, node.devices) and len(set(node.uuids)) == len(node.uuids), "uuids: one each or none"
    assert "\n" not in node.note, "the note is one line"
    assert msgspec.json.decode(msgspec.json.encode(node), type=NodeSpec) == node, "the node does not survive JSON"
    return node


def check_lists(backend: Backend, node: NodeSpec) -> None:
    """Health and usage tell of each device once, in order; a sick one says why."""
    indices = list(range(node.devices))
    health, usage = backend.health(), backend.usage()
    assert [each.index for each in health] == indices, "health: one entry per device, by index"
    assert all(each.ok or each.note for each in health), "health: a sick device must say why"
    assert not any(each.ok and (each.broken or each.lasts) for each in health), "health: a sound device has no fault"
    assert [each.index for each in usage] == indices, "usage: one entry per device, by index"
    assert all((each.percent == -1 or 0 <= each.percent <= 100) and each.memory_used >= 0 for each in usage), (
        "usage: out of range"
    )


def check_environment(backend: Backend, node: NodeSpec) -> None:
    """Every device can be shown alone, all together, shared; what does not exist is refused."""
    everything = tuple(range(node.devices))
    shown = [backend.environment((index,)) for index in everything] + [backend.environment(everything, sharers=2)]
    for each in shown:
        assert all(isinstance(text, str) for pair in each.env.items() for text in pair), "variables are strings"
        assert len(set(each.cpus)) == len(each.cpus), "a core twice"
    assert backend.environment(everything, sharers=2) == shown[-1], "environment() changes its answer"
    for index in everything:
        counted = backend.environment((index,), counted=everything)
        assert counted.cpus == shown[index].cpus, "devices that are only counted change no cores"
        if len(everything) > 1 and counted.alone:
            assert counted == shown[index], "alone: it counts more than its own device"
    for wrong in ((), (node.devices,), (-1,), (0, 0)):
        try:
            backend.environment(wrong)
        except UsageError:
            continue
        raise AssertionError(f"environment({wrong}) must raise UsageError")
