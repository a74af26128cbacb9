"""An agent that lives in the test, and a planner that starts whatever fits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from tidewright.base.errors import WorldError
from tidewright.fabric.protocol import FabricNode, OnNode, OnReport, Refused, Unknown
from tidewright.model.job import State
from tidewright.model.node import DeviceFault, NodeSpec, Part
from tidewright.model.view import View
from tidewright.plan.moves import Move, Resume, Start
from tidewright.plan.plan import Plan
from tidewright.wire import agent as wire


class FirstFit:
    """Starts waiting jobs in order of id, each on the lowest free devices of one node."""

    name = "first-fit"

    def plan(self, view: View) -> Plan:
        board, moves = view.board(), []
        for row in sorted(range(view.jobs.n), key=lambda row: int(view.jobs.id[row])):
            if view.jobs.waiting[row]:
                move = self._place(view, board, row)
                if move is not None:
                    moves.append(move)
        return Plan(view.revision, tuple(moves))

    def _place(self, view: View, board: Any, row: int) -> Move | None:
        job, need = int(view.jobs.id[row]), int(view.jobs.demand[row])
        for node, free in enumerate(board.free):
            devices = [bit for bit in range(64) if free >> bit & 1][:need]
            if not board.up >> node & 1 or len(devices) < need:
                continue
            allocation = (Part(node, sum(1 << bit for bit in devices)),)
            board.acquire(allocation)
            kind = Start if int(view.jobs.state[row]) == State.QUEUED else Resume
            return kind(job, allocation, "it fits")
        return None


class FakeFabric:
    """One node called ``here``. Ranks run until ``finish``; ``down`` makes every call time out."""

    def __init__(self, devices: int = 4, incarnation: str = "boot-1") -> None:
        self.node = NodeSpec(name="here", kind="cpu", devices=devices)
        self.incarnation = incarnation
        self.jobs: dict[tuple[int, int], wire.JobReport] = {}
        self.calls: list[tuple[str, str]] = []
        self.starts: list[tuple[int, int]] = []
        self.down = False
        self.broken = ""
        """Why it launches nothing."""
        self.faults: tuple[DeviceFault, ...] = ()
        self.usage_calls, self.samples_per_step = 0, 0
        """Jobs take sixty steps from one usage call to the next; with samples they report these."""
        self.ops: set[str] = set()
        self._on_node: OnNode | None = None
        self._on_report: OnReport | None = None

    def nodes(self) -> list[FabricNode]:
        return [self._me(not self.down)]

    def _me(self, alive: bool) -> FabricNode:
        return FabricNode(name="here", incarnation=self.incarnation, address="127.0.0.1", alive=alive, spec=self.node)

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        self._on_node, self._on_report = on_node, on_report
        asyncio.get_running_loop().call_soon(self.connect, not self.down)

    def connect(self, alive: bool = True) -> None:
        self.down = not alive
        assert self._on_node is not None
        self._on_node(self._me(alive))

    def health(self, *faults: DeviceFault) -> None:
        """Devices fail and recover."""
        self.faults = faults
        assert self._on_report is not None
        self._on_report("here", wire.Health(faults))

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.down:
            raise Unknown("no answer")
        self.calls.append((method, op_id))
        if method == "inventory":
            found = wire.Inventory(
                node=self.node, incarnation=self.incarnation, epoch=epoch, pid=1, jobs=tuple(self.jobs.values()),
                faults=self.faults, unhealthy={fault.device: fault.why for fault in self.faults},
            )  # fmt: skip
            # As over the wire, where keys are text.
            return msgspec.json.decode(msgspec.json.encode(found))
        if method == "forgive":
            return msgspec.to_builtins(wire.Health(self.faults))
        if method == "usage":
            self.usage_calls += 1
            steps = 60 * self.usage_calls
            counted = (
                wire.JobUsage(job=job, attempt=attempt, steps=steps, samples=steps * self.samples_per_step)
                for job, attempt in self.jobs
            )
            return msgspec.to_builtins(wire.Usage(jobs=tuple(counted) if self.samples_per_step else ()))
        return msgspec.to_builtins(getattr(self, method)(msgspec.convert(args, wire.ARGS[method])))

    def launch(self, args: wire.LaunchArgs) -> wire.JobReport:
        key = (args.job, args.attempt)
        wanted = [device for seat in args.ranks for device in seat.devices]
        if any(device >= self.node.devices for device in wanted):
            raise Refused(f"devices {wanted} are not distinct indices below {self.node.devices}")
        if self.broken:
            raise WorldError(self.broken)
        if key not in self.jobs:
            self.starts.append(key)
            self.jobs[key] = wire.JobReport(job=args.job, attempt=args.attempt, state="running", verb="launch")
            if args.command == ("true",):
                asyncio.get_running_loop().call_soon(self.finish, key, 0)
        return self.jobs[key]

    def suspend(self, args: wire.SuspendArgs) -> wire.JobReport:
        return self._set((args.job, args.attempt), state="suspended", verb="suspend", took_us=1000)

    def resume(self, args: wire.ResumeArgs) -> wire.JobReport:
        return self._set((args.job, args.attempt), state="running", verb="resume", took_us=500)

    def stop(self, args: wire.StopArgs) -> wire.JobReport:
        key = (args.job, args.attempt)
        if key not in self.jobs:
            return wire.JobReport(job=args.job, attempt=args.attempt, state="exited", lost=True)
        return self._set(key, state="exited", verb="stop", code=143)

    def forget(self, args: wire.ForgetArgs) -> wire.JobReport:
        self.jobs.pop((args.job, args.attempt), None)
        return wire.JobReport(job=args.job, attempt=args.attempt, state="exited")

    def finish(self, key: tuple[int, int], code: int) -> None:
        """The ranks of an attempt end by themselves."""
        if key in self.jobs and self.jobs[key].state != "exited":
            self._set(key, state="exited", code=code)
            if not self.down and self._on_report is not None:
                self._on_report("here", self.jobs[key])

    def _set(self, key: tuple[int, int], **changes: Any) -> wire.JobReport:
        self.jobs[key] = msgspec.structs.replace(self.jobs[key], **changes)
        return self.jobs[key]

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        raise AssertionError("no controller copies files between nodes")

    async def close(self) -> None:
        self._on_node = self._on_report = None
