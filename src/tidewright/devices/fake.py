"""Devices that are not there and misbehave on request, for tests of everything above them.

With the variable TIDE_FAKE_DEVICES naming a file, an agent's fake devices do what the lines appended to it say: ``xid 1 79``
(device, XID), ``lost 1``, ``found 1``, ``reset 1``, ``quarantine 0.5`` (seconds, for errors that pass by themselves).
"""

from __future__ import annotations

import os
from pathlib import Path

from ..base.errors import WorldError
from ..model.node import NodeSpec
from .cpu import check_indices
from .faults import FaultLog
from .protocol import DeviceEnvironment, DeviceHealth, DeviceUsage, ShareGrant, Slice
from .share_grants import gpu_grant, slot_grant
from .shares import ShareTable

SCRIPT = "TIDE_FAKE_DEVICES"


def open_backend(name: str, slots: int = 0) -> FakeBackend:
    """``slots`` fake devices (8 unless given)."""
    backend = FakeBackend(name, slots or 8)
    if os.environ.get(SCRIPT):
        backend.follow(Path(os.environ[SCRIPT]))
    return backend


class FakeBackend:
    """Set ``sick`` (index to note), ``silent`` (every question fails), ``load`` (index to percent), ``held`` (index to
    bytes by process) or ``mps`` (folder of an MPS control daemon) at any time. Shares of kind ``cpu`` are those of CPU slots."""

    name = "fake"
    look_s = 0.2
    """How often its agent asks for its health, seconds."""

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
        self._shares = ShareTable(devices, memory)
        self.sick: dict[int, str] = {}
        self.load: dict[int, float] = {}
        self.held: dict[int, dict[int, int]] = {}
        self.mps: Path | None = None
        self.silent = False
        self.closed = False
        self.faults = FaultLog()
        self.script: Path | None = None
        self._read = 0
        self._gone: dict[int, bool] = {}

    def discover(self) -> NodeSpec:
        return self._spec

    def _ask(self) -> range:
        if self.silent:
            raise WorldError("the fake driver does not answer")
        return range(self._spec.devices)

    def health(self) -> tuple[DeviceHealth, ...]:
        self._obey()
        for index in self._gone:
            self.faults.lost(index)
        found = self.faults.health(self._ask())
        return tuple(
            DeviceHealth(one.index, False, self.sick[one.index]) if one.index in self.sick else one for one in found
        )

    def follow(self, script: Path) -> None:
        """Do what is appended to ``script`` from now on: a driver does not repeat the errors of before it was opened."""
        self.script = script
        self._read = len(script.read_text()) if script.exists() else 0

    def _obey(self) -> None:
        """Do what the script's new lines say."""
        try:
            text = self.script.read_text()[self._read :] if self.script else ""
        except FileNotFoundError:
            return
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            verb, *words = line.split()
            if verb == "quarantine":
                self.faults.quarantine_s = float(words[0])
            elif verb == "xid":
                self.faults.xid(int(words[0]), int(words[1]))
            else:
                self._change(verb, int(words[0]))

    def _change(self, verb: str, index: int) -> None:
        if verb == "lost":
            self._gone[index] = True
        elif verb in ("found", "reset"):
            self._gone.pop(index, None)
            if verb == "reset":
                self.faults.recovered(index)
        else:
            raise ValueError(f"{verb!r} in {self.script}; write xid, lost, found, reset or quarantine")

    def forgive(self) -> None:
        self.faults = FaultLog(self.faults.quarantine_s)

    def environment(
        self, devices: tuple[int, ...], sharers: int = 1, counted: tuple[int, ...] = ()
    ) -> DeviceEnvironment:
        check_indices(devices, self._spec.devices)
        check_indices(counted or devices, self._spec.devices)
        shown = [self._spec.uuids[index] for index in counted or devices]
        alone = len(shown) == 1 and self._spec.kind != "cpu"
        return DeviceEnvironment({"FAKE_VISIBLE_DEVICES": ",".join(shown)}, alone=alone)

    def share(self, part: Slice) -> ShareGrant:
        self._shares.add(part)
        if self._spec.kind == "cpu":
            return slot_grant(part)
        return gpu_grant(part, self._spec.device_memory, self.mps)

    def release(self, holder: str) -> None:
        self._shares.release(holder)

    def shares(self) -> tuple[Slice, ...]:
        return self._shares.all()

    def usage(self) -> tuple[DeviceUsage, ...]:
        return tuple(self._load(index) for index in self._ask())

    def _load(self, index: int) -> DeviceUsage:
        held = self.held.get(index, {})
        return DeviceUsage(index, self.load.get(index, 0.0), sum(held.values()), tuple(sorted(held)), held)

    def close(self) -> None:
        self.closed = True
