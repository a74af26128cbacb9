"""A node in memory: it outlives every controller, and notes everything that its processes ever did."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from pathlib import Path
from typing import Any

import msgspec

from tidewright.fabric.protocol import FabricNode, Fenced, OnNode, OnReport, Refused
from tidewright.model.node import NodeSpec
from tidewright.testing.crash import Fuse
from tidewright.wire import agent as wire

SHORT_S = 0.05
"""How long a start, a freeze, a thaw and a stop take."""
Key = tuple[int, int]


class Process:
    """All ranks of one attempt. ``command`` is ("work", seconds, exit code of the first attempt, of the second, ...)."""

    def __init__(self, args: wire.LaunchArgs) -> None:
        self.args = args
        self.devices = {device for seat in args.ranks for device in seat.devices}
        self.left_s = float(args.command[1])
        codes = args.command[2:]
        self.code = int(codes[min(args.attempt, len(codes)) - 1])
        self.report = wire.JobReport(job=args.job, attempt=args.attempt, state="starting", verb="launch")
        self.timer: asyncio.TimerHandle | None = None
        self.since = 0.0
        self.ops: set[str] = set()

    @property
    def holds(self) -> bool:
        return self.report.state not in ("suspended", "exited")


class Node:
    """Verbs as an agent's. ``ended`` has a line (name, attempt, code) for every attempt that ran to its own end."""

    def __init__(self, devices: int) -> None:
        self.spec = NodeSpec(name="here", kind="cpu", devices=devices)
        self.processes: dict[Key, Process] = {}
        self.started: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int, int]] = []
        self.freezes = 0
        self.wrong: list[str] = []
        self.forgotten: set[Key] = set()
        self.epoch = 0
        self.wire: Wire | None = None

    def serve(self, method: str, args: Any, op_id: str, epoch: int) -> Any:
        if epoch < self.epoch:
            raise Fenced(f"epoch {epoch} is over")
        self.epoch = epoch
        if method == "inventory":
            jobs = tuple(process.report for _, process in sorted(self.processes.items()))
            return wire.Inventory(node=self.spec, incarnation="boot-1", epoch=epoch, pid=1, jobs=jobs)
        return getattr(self, method)((args.job, args.attempt), args, op_id)

    def launch(self, key: Key, args: wire.LaunchArgs, op_id: str) -> wire.JobReport:
        if key in self.forgotten:
            raise Refused("has ended and was forgotten")
        if key not in self.processes:
            process = Process(args)
            self._take(process)
            self.processes[key] = process
            self.started.append((args.name, args.attempt))
            self._soon(process, self._run, "launch")
        return self.processes[key].report

    def suspend(self, key: Key, args: wire.SuspendArgs, op_id: str) -> wire.JobReport:
        process = self._known(key)
        if op_id not in process.ops and process.report.state == "running":
            process.ops.add(op_id)
            process.left_s -= self._now() - process.since
            self.freezes += 1
            self._set(process, state="suspending", verb="suspend")
            self._soon(process, self._set, process, state="suspended", took_us=50_000)
        return process.report

    def resume(self, key: Key, args: wire.ResumeArgs, op_id: str) -> wire.JobReport:
        process = self._known(key)
        if op_id not in process.ops and process.report.state == "suspended":
            process.ops.add(op_id)
            process.devices = {device for seat in args.ranks for device in seat.devices}
            self._take(process)
            self._set(process, state="resuming", verb="resume")
            self._soon(process, self._run, "resume")
        return process.report

    def stop(self, key: Key, args: wire.StopArgs, op_id: str) -> wire.JobReport:
        process = self.processes.get(key)
        if process is None:
            return wire.JobReport(job=key[0], attempt=key[1], state="exited", verb="stop", lost=True)
        if process.report.state not in ("stopping", "exited"):
            self._set(process, state="stopping", verb="stop")
            self._soon(process, self._set, process, state="exited", code=143)
        return process.report

    def forget(self, key: Key, args: wire.ForgetArgs, op_id: str) -> wire.JobReport:
        process = self.processes.get(key)
        if process is None:
            return wire.JobReport(job=key[0], attempt=key[1], state="exited")
        if process.report.state != "exited":
            raise Refused(f"job {key[0]} is {process.report.state}")
        self.forgotten.add(key)
        return self.processes.pop(key).report

    def _known(self, key: Key) -> Process:
        if key not in self.processes:
            raise Refused(f"{key} is not on this node")
        return self.processes[key]

    def _take(self, process: Process) -> None:
        for other in self.processes.values():
            if other is not process and other.holds and other.devices & process.devices:
                self.wrong.append(f"{process.args.name} was given devices that {other.args.name} holds")

    def _run(self, process: Process, verb: str) -> None:
        process.since = self._now()
        self._set(process, state="running", verb=verb)
        process.timer = asyncio.get_running_loop().call_later(process.left_s, self._end, process)

    def _end(self, process: Process) -> None:
        self.ended.append((process.args.name, process.args.attempt, process.code))
        self._set(process, state="exited", code=process.code)

    def _soon(self, process: Process, work: Any, *args: Any, **more: Any) -> None:
        if process.timer is not None:
            process.timer.cancel()
        given = args if args and args[0] is process else (process, *args)
        process.timer = asyncio.get_running_loop().call_later(SHORT_S, lambda: work(*given, **more))

    def _set(self, process: Process, **changes: Any) -> None:
        process.report = msgspec.structs.replace(process.report, **changes)
        if self.wire is not None:
            self.wire.tell(process.report)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class Wire:
    """The fabric of one life: every call is a side effect of it."""

    def __init__(self, node: Node, fuse: Fuse) -> None:
        self._node, self._fuse = node, fuse
        self._context = copy_context()

    def nodes(self) -> list[FabricNode]:
        return [FabricNode(name="here", incarnation="boot-1", address="127.0.0.1", alive=True, spec=self._node.spec)]

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        self._on_report, self._context = on_report, copy_context()
        self._node.wire = self
        asyncio.get_running_loop().call_soon(on_node, self.nodes()[0])

    def tell(self, report: wire.JobReport) -> None:
        if not self._fuse.blown:
            asyncio.get_running_loop().call_soon(self._on_report, "here", report, context=self._context)

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        with self._fuse.effect(f"call {method}"):
            answer = self._node.serve(method, msgspec.convert(args, wire.ARGS[method]), op_id, epoch)
        await asyncio.sleep(0.001)
        return msgspec.to_builtins(answer)

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        raise AssertionError("no controller copies files between nodes")

    async def close(self) -> None:
        self._node.wire = None
