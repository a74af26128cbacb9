"""Devices that are not there and misbehave on request, for tests of everything above them."""

from __future__ import annotations

from ..base.errors import WorldError
from ..model.node import NodeSpec
from .cpu import check_indices
from .protocol import DeviceHealth, DeviceLoad, Surroundings


def open_backend(name: str, slots: int = 0) -> FakeBackend:
    """``slots`` fake devices (8 unless given)."""
    return FakeBackend(name, slots or 8)


class FakeBackend:
    """Set ``sick`` (index to note), ``silent`` (every question fails), ``load`` (index to percent) or ``held`` (index to
    bytes by process) at any time."""

    name = "fake"

    def __init__(self, name: str = "fake", devices: int = 8, kind: str = "fake", memory: int = 16 * 2**30) -> None:
        self._spec = NodeSpec(
            name=name,
            kind=kind,
            devices=devices,
            device_memory=memory,
            memory=memory * devices,
            cpus=devices,
            uuids=tuple(f"FAKE-{index:04d}" for index in range(devices)),
        )
        self.sick: dict[int, str] = {}
        self.load: dict[int, float] = {}
        self.held: dict[int, dict[int, int]] = {}
        self.silent = False
        self.closed = False

    def discover(self) -> NodeSpec:
        return self._spec

    def _ask(self) -> range:
        if self.silent:
            raise WorldError("the fake driver does not answer")
        return range(self._spec.devices)

    def health(self) -> tuple[DeviceHealth, ...]:
        return tuple(DeviceHealth(index, index not in self.sick, self.sick.get(index, "")) for index in self._ask())

    def environment(self, devices: tuple[int, ...], sharers: int = 1) -> Surroundings:
        check_indices(devices, self._spec.devices)
        return Surroundings({"FAKE_VISIBLE_DEVICES": ",".join(self._spec.uuids[index] for index in devices)})

    def usage(self) -> tuple[DeviceLoad, ...]:
        return tuple(self._load(index) for index in self._ask())

    def _load(self, index: int) -> DeviceLoad:
        held = self.held.get(index, {})
        return DeviceLoad(index, self.load.get(index, 0.0), sum(held.values()), tuple(sorted(held)), held)

    def close(self) -> None:
        self.closed = True
