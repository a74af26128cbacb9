"""Models on a CUDA device as the queues of its worker run them: compiled, captured, their slots in page-locked memory.

The ring ``gpu`` shows what they do on a GPU (docs/gpu.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ....base.errors import UsageError
from ...transport.messages import DeviceReady, MakeModel, ModelMade
from ...transport.tensors import Signature, TensorSpec, slot_views
from ...worker.execution import flat_outputs, make_module, parameter_bytes, spec_of, tensor_view
from ..compile import compile_gated, compile_plain, require_device
from ..device import BEST_EFFORT, REAL_TIME, ChainLane, ControlBlocks, GatedChain, RealTimeGraph
from ..shares import ShareStreams
from .queues import ChainQueue, ClientQueue, GraphQueue

log = logging.getLogger(__name__)
QUEUES, LARGEST_GRID = 64, 65_536
"""Best-effort queues of a device (REEF has 32), and CTAs of their largest kernels: 17 MB of control blocks."""


class SlottedModel:
    """What both kinds have: tensors of the device, and views of the slots in the host's memory."""

    def __init__(self, signature: Signature, outputs: list[Any]) -> None:
        import torch

        self.signature, self.outputs = signature, outputs
        self.slots: list[tuple[list[Any], list[Any]]] = []
        self._event: Any = torch.cuda.Event()
        self.locked: tuple[Any, int] | None = None
        """The slots' memory and its address, while it is page-locked."""

    @property
    def shares(self) -> tuple[int, ...]:
        """What it can be granted to go on with while real-time work runs."""
        return ()

    def copies(self, slot: int) -> list[tuple[Any, Any]]:
        """(target in the slot, output of the device)."""
        return list(zip(self.slots[slot][1], self.outputs, strict=True))

    def deliver_on(self, stream: Any, slot: int) -> None:
        """Begin to copy the outputs, in the order of a stream."""
        import torch

        with torch.cuda.stream(stream):
            for target, output in self.copies(slot):
                target.copy_(output, non_blocking=True)
            self._event.record(stream)

    def delivered(self) -> bool:
        """Whether they are there."""
        return bool(self._event.query())

    def release(self) -> None:
        """Free what it computes in."""
        self.outputs = []


class ChainModel(SlottedModel):
    """A gated chain behind the interface of a queue."""

    def __init__(self, chain: GatedChain, signature: Signature) -> None:
        super().__init__(signature, flat_outputs(chain.outputs))
        self.chain = chain
        self.lanes: dict[int, ChainLane] = {0: chain.lanes[0]}
        """By its multiprocessors; 0: all."""
        self.share = 0

    @property
    def shares(self) -> tuple[int, ...]:
        """With which it can go on while real-time work runs."""
        return tuple(share for share in self.lanes if share)

    def begin(self, slot: int, share: int) -> None:
        """Copy the inputs, and launch."""
        self.share = share
        self.chain.begin(*self.slots[slot][0], lane=self.lanes[share])

    def drained(self, more: bool) -> bool:
        """Whether nothing of it is on the device."""
        return self.chain.step()

    @property
    def complete(self) -> bool:
        """Whether the task, which has drained, ran to its end."""
        return self.chain.complete

    def go_on(self, share: int) -> None:
        """Launch what is left."""
        self.share = share
        self.chain.launch(self.lanes[share])

    def deliver(self, slot: int) -> None:
        """Begin to copy the outputs."""
        self.deliver_on(self.chain.stream, slot)

    def discard(self) -> None:
        """Forget a task that was cut short."""
        self.chain.discard()

    def release(self) -> None:
        """Free what it computes in."""
        super().release()
        self.lanes.clear()
        self.chain.release()


class GraphModel(SlottedModel):
    """A real-time graph behind the interface of a queue."""

    def __init__(self, graph: RealTimeGraph, signature: Signature, closes_gates: bool) -> None:
        super().__init__(signature, flat_outputs(graph.outputs))
        self.graph, self.closes_gates = graph, closes_gates

    def release(self) -> None:
        """Free what it computes in."""
        super().release()
        self.graph.release()

    def begin(self, slot: int) -> None:
        """Copy the inputs, run, copy the outputs."""
        self.graph.launch(self.slots[slot][0], self.copies(slot))

    def delivered(self) -> bool:
        """Whether the outputs are there."""
        return bool(self.graph.event.query())


class CudaDevice:
    """The device that PyTorch sees as the first. ``shares``: multiprocessors with which best-effort work may go on beside
    real-time work. Raises UsageError where there is no device, or it has no such shares."""

    def __init__(self, shares: tuple[int, ...] = ()) -> None:
        require_device()
        self.ready = describe_device()
        self.controls = ControlBlocks(QUEUES, LARGEST_GRID)
        self.shares = {share: ShareStreams(share) for share in shares}
        self.beside = ControlBlocks(QUEUES, LARGEST_GRID) if shares else None
        """Of the lanes on shares: real-time work does not close these."""
        self._side = new_stream(-1)  # one that no model shares: PyTorch deals those of a priority out in turn
        self._free = list(range(QUEUES))
        self._rows: dict[ClientQueue, int] = {}

    def chain_queue(self) -> ChainQueue:
        """A best-effort queue with a control block of its own. Raises UsageError where all are in use."""
        if not self._free:
            raise UsageError(f"{QUEUES} best-effort queues are open", "close some")
        row = self._free.pop()
        found = ChainQueue(partial(self._close_gates, row))
        self._rows[found] = row
        return found

    def _close_gates(self, row: int, closed: bool) -> None:
        import torch

        with torch.cuda.stream(self._side):
            for blocks in self._blocks():
                blocks.stop(row, closed)

    def release(self, closed: ChainQueue) -> None:
        """It is gone: its control block is as new."""
        import torch

        row = self._rows.pop(closed)
        with torch.cuda.stream(self._side):  # behind the last write of its gate
            for blocks in self._blocks():
                blocks.reset(row)
        self._side.synchronize()
        self._free.append(row)

    def _blocks(self) -> list[ControlBlocks]:
        return [self.controls] if self.beside is None else [self.controls, self.beside]

    def make(self, request: MakeModel, owner: ClientQueue) -> tuple[SlottedModel, ModelMade]:
        """A model for a queue, in another thread than all else. Raises UsageError for what is no module, and what the factory
        and the compiler raise. Without ``gated`` real-time work has the priority of its stream alone."""
        made = make_module(request.source, request.folder)
        try:
            return self._loaded(made, request, owner)
        except BaseException:
            _end_if_unusable()
            raise
        finally:
            # What was made lives long; a collection in the middle of a task would cost it milliseconds.
            gc.collect()
            gc.freeze()

    def _loaded(self, made: Any, request: MakeModel, owner: ClientQueue) -> tuple[SlottedModel, ModelMade]:
        import torch

        with torch.no_grad():
            before = torch.cuda.memory_allocated()
            model = made.eval().cuda()
            inputs = tuple(_zeros(spec) for spec in request.inputs)
            if isinstance(owner, GraphQueue):
                found, gates, took = self.real_time_model(model, inputs, request)
            else:
                found, gates, took = self.best_effort_model(model, inputs, request, self._rows[owner])
            torch.cuda.synchronize()
            # Others free models meanwhile.
            nbytes = max(parameter_bytes(model), torch.cuda.memory_allocated() - before)
        return found, ModelMade(request.model, found.signature, nbytes, took, gates, tuple(found.shares))

    def real_time_model(self, model: Any, inputs: tuple[Any, ...], request: MakeModel) -> tuple[SlottedModel, int, int]:
        """(the model, its gates, ns of one call)."""
        function = compile_plain(model, inputs)
        took = run_ns(function, inputs)
        controls = self.controls if request.gated else None
        graph = RealTimeGraph(function, inputs, controls, new_stream(REAL_TIME))
        return GraphModel(graph, signature_of(request, graph.outputs), request.gated), 0, took

    def best_effort_model(
        self, model: Any, inputs: tuple[Any, ...], request: MakeModel, row: int
    ) -> tuple[SlottedModel, int, int]:
        """The same for a best-effort queue, whose control blocks are ``row``."""
        gated = compile_gated(model, inputs)
        try:
            took = run_ns(gated.function, inputs)
            chain = GatedChain(gated, inputs, self.controls.row(row), new_stream(BEST_EFFORT))
            gates = sum(level.launches for level in gated.levels() if level.excluded is None)
            found = ChainModel(chain, signature_of(request, chain.outputs))
            self._add_lanes(found, row)
            return found, gates, took
        except BaseException:
            gated.release()
            raise

    def _add_lanes(self, model: ChainModel, row: int) -> None:
        """On each share, where the chain can be cut short throughout; one that cannot waits while real-time work runs."""
        if self.beside is None or not all(part.gated for part in model.chain.lanes[0].parts):
            return
        try:
            for share, streams in self.shares.items():
                # One whose capture fails is of no more use: it is dropped.
                model.lanes[share] = model.chain.add_lane(self.beside.row(row), streams.take())
        except BaseException:
            self._give_back(model)
            raise

    def _give_back(self, model: ChainModel) -> None:
        for share in model.shares:
            self.shares[share].give(model.lanes[share].stream)

    def attach(self, model: SlottedModel, slots: Any, count: int) -> None:
        """The memory of the slots of a model, page-locked, so that copies do not hold the caller up; as it is, where that cannot
        be had."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(slots))
        status = _cudart().cudaHostRegister(address, len(slots), 0)
        if int(status):
            log.warning("%d bytes of slots cannot be page-locked (cudaHostRegister: %s): slower", len(slots), status)
            _forget_error()
        else:
            model.locked = (slots, address)
        model.slots = slot_views(model.signature, slots, count, tensor_view)

    def detach(self, model: SlottedModel) -> None:
        """A model is gone. The compiler keeps its code for good: what it computed in is freed here."""
        if model.locked is not None:
            model.slots = []
            _cudart().cudaHostUnregister(model.locked[1])
            model.locked = None
        if isinstance(model, ChainModel):
            self._give_back(model)
        model.release()


def describe_device() -> DeviceReady:
    """The device that PyTorch sees as the first, and what its times depend on."""
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    driver = Path("/sys/module/nvidia/version")  # not there under some hypervisors
    version = driver.read_text().strip() if driver.exists() else str(torch._C._cuda_getDriverVersion())
    software = (("torch", str(torch.__version__)), ("triton", str(triton.__version__)))
    sms, memory = properties.multi_processor_count, properties.total_memory
    return DeviceReady(properties.name, sms, memory, version, software)


def new_stream(priority: int) -> Any:
    """Of PyTorch's pool of this priority."""
    import torch

    return torch.cuda.Stream(priority=priority)


def _cudart() -> Any:
    import torch

    return torch.cuda.cudart()


def _forget_error() -> None:
    """The error of a call that has failed would be raised by the next launch."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _end_if_unusable() -> None:
    """A fault on the device makes its context unusable for good: another process must take over."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)


def signature_of(request: MakeModel, outputs: Any) -> Signature:
    """Of a model that gives ``outputs``. Raises UsageError for what is no tensor."""
    return Signature(request.inputs, tuple(spec_of(output) for output in flat_outputs(outputs)))


def _zeros(spec: TensorSpec) -> Any:
    import torch

    return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device="cuda")


def run_ns(function: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """Of one call, launches by Python included."""
    import torch

    torch.cuda.synchronize()
    began = time.monotonic_ns()
    function(*inputs)
    torch.cuda.synchronize()
    return time.monotonic_ns() - began
