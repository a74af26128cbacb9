"""A CUDA driver without devices that keeps the real one's states and misbehaves on request, for tests above it.

It stands in for the calls only: that a locked process really makes no CUDA call cannot be checked here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping

from .checkpoint import MOVES, CudaError, CudaState

ILLEGAL, INVALID = "CUDA_ERROR_ILLEGAL_STATE", "CUDA_ERROR_INVALID_VALUE"


class FakeCuda:
    """Devices by UUID; ``start`` makes a process a user of some. ``calls`` is what was asked, in order.

    ``identity`` tells what a pid stands for: a process restored by CRIU is the same under another pid.
    Set ``stuck`` (never out of its CUDA calls), ``unsavable`` (UVM and the like: lost in the attempt, as the real
    driver says of itself), ``host_full`` (no host memory for it; it stays LOCKED) or ``broken`` at any time.
    """

    def __init__(
        self,
        devices: Iterable[str] = ("GPU-00000000-0000-0000-0000-000000000000",),
        *,
        version: int = MOVES,
        memory: int = 0,
        identity: Callable[[int], Hashable] = lambda pid: pid,
    ) -> None:
        self.devices, self.version, self.memory = tuple(devices), version, memory
        self.calls: list[tuple[str, int]] = []
        self.stuck: set[int] = set()
        self.unsavable: set[int] = set()
        self.host_full: set[int] = set()
        self.broken: set[int] = set()
        """Whose devices can never be had back."""
        self._identity = identity
        self._states: dict[Hashable, CudaState] = {}
        self._on: dict[Hashable, tuple[str, ...]] = {}
        self._needs: dict[Hashable, int] = {}
        self._mutex = threading.Lock()

    def start(self, pid: int, devices: Iterable[str] = (), need: int = 0) -> None:
        """A process begins to use CUDA on ``devices`` (all), with ``need`` bytes on each."""
        who = self._identity(pid)
        self._states[who] = CudaState.RUNNING
        self._on[who], self._needs[who] = tuple(devices) or self.devices, need

    def end(self, pid: int) -> None:
        """It has exited."""
        self._states.pop(self._identity(pid), None)

    def on(self, pid: int) -> tuple[str, ...]:
        """The devices a process has, or had when it was saved."""
        return self._on[self._identity(pid)]

    def used(self, device: str) -> int:
        """Bytes in use on a device."""
        there = (who for who, state in self._states.items() if state in (CudaState.RUNNING, CudaState.LOCKED))
        return sum(self._needs[who] for who in there if device in self._on[who])

    def state(self, pid: int) -> CudaState | None:
        return self._states.get(self._identity(pid))

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._enter("lock", pid, CudaState.RUNNING)
        if pid in self.stuck:
            raise CudaError("cuCheckpointProcessLock", "CUDA_ERROR_NOT_READY")
        self._become(pid, CudaState.LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._enter("checkpoint", pid, CudaState.LOCKED)
        if pid in self.unsavable:
            self._become(pid, CudaState.FAILED)
            raise CudaError("cuCheckpointProcessCheckpoint", "CUDA_ERROR_NOT_SUPPORTED")
        if pid in self.host_full:
            raise CudaError("cuCheckpointProcessCheckpoint", "CUDA_ERROR_OUT_OF_MEMORY")
        self._become(pid, CudaState.CHECKPOINTED)

    def restore(self, pid: int, pairs: Mapping[str, str]) -> None:
        self._enter("restore", pid, CudaState.CHECKPOINTED)
        had = self._on[self._identity(pid)]
        if pairs and (self.version < MOVES or not set(had) <= set(pairs)):
            raise CudaError("cuCheckpointProcessRestore", INVALID)
        gets = tuple(pairs.get(device, device) for device in had)
        if pid in self.broken or not set(gets) <= set(self.devices) or len(set(pairs.values())) < len(pairs):
            raise CudaError("cuCheckpointProcessRestore", INVALID)
        with self._mutex:
            need = self._needs[self._identity(pid)]
            if self.memory and any(self.used(device) + need > self.memory for device in gets):
                raise CudaError("cuCheckpointProcessRestore", "CUDA_ERROR_OUT_OF_MEMORY")
            self._on[self._identity(pid)] = gets
            self._become(pid, CudaState.LOCKED)

    def unlock(self, pid: int) -> None:
        self._enter("unlock", pid, CudaState.LOCKED)
        self._become(pid, CudaState.RUNNING)

    def _enter(self, call: str, pid: int, state: CudaState) -> None:
        self.calls.append((call, pid))
        name = f"cuCheckpointProcess{call.capitalize()}"
        found = self.state(pid)
        if found is None:
            raise CudaError(name, INVALID)
        if found is not state:
            raise CudaError(name, ILLEGAL)

    def _become(self, pid: int, state: CudaState) -> None:
        self._states[self._identity(pid)] = state
