"""Device memory of running CUDA processes into host memory and back, by the driver itself (570 and later).

The driver knows four steps, each from one state to the next: lock (RUNNING to LOCKED: no more CUDA calls get through),
checkpoint (to CHECKPOINTED: memory is copied to the host, the device is released), restore (to LOCKED, on the same
devices or others), unlock (to RUNNING). Source: CUDA Driver API, "CUDA Checkpointing". Knows nothing of CRIU and jobs.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol

from ...base.errors import WorldError
from ...base.units import SECOND, format_duration
from ..verdict import DriverVerdict

CHECKPOINTS, MOVES = 12_080, 13_000
"""cuDriverGetVersion of the first drivers that checkpoint (570) and that restore onto other devices (580). Bindings of
the same versions are the first that know these calls."""
LOCK_US = 10 * SECOND
"""How long a process may take to end the CUDA calls it is in. Ranks stand still by then: it is milliseconds."""
AT_ONCE = 16
"""Processes copied side by side; a node has at most as many devices."""


class CudaState(enum.IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


class CudaError(Exception):
    """A driver call that did not succeed: its name and the name of the CUresult."""

    def __init__(self, call: str, result: str) -> None:
        super().__init__(f"{call}: {result}")
        self.call, self.result = call, result


class DeviceStateLost(WorldError):
    """The driver could not bring these processes back: they can only be ended, and restored from an earlier image."""

    def __init__(self, message: str, pids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.pids = pids


class CudaApi(Protocol):
    """The driver calls, for one process each; they block. Raise CudaError and change nothing when refused."""

    version: int
    """As cuDriverGetVersion counts: 1000 x major + 10 x minor."""

    def state(self, pid: int) -> CudaState | None:
        """None for a process that does not use CUDA."""
        ...

    def lock(self, pid: int, timeout_ms: int) -> None: ...

    def checkpoint(self, pid: int) -> None: ...

    def restore(self, pid: int, pairs: Mapping[str, str]) -> None:
        """``pairs``: UUID of each device it had to that of the one it gets; empty: the same devices."""
        ...

    def unlock(self, pid: int) -> None: ...


def open_api() -> CudaApi:
    """The driver of this machine. Raises WorldError, in one line, without bindings, driver or device."""
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise WorldError("no CUDA bindings; install them with: pip install 'tidewright[cuda]'") from error
    try:
        return BindingsApi(driver)
    except CudaError as error:
        raise WorldError(f"no usable CUDA device ({error})") from error
    except (RuntimeError, OSError) as error:
        raise WorldError("no NVIDIA driver on this machine") from error


class BindingsApi:
    """``driver`` is the module cuda.bindings.driver (cuda-bindings 12.8 and later)."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        # Restoring needs cuInit here or persistence mode; without it GetState could not tell us from a bystander.
        self._call("cuInit", 0)
        version = int(self._call("cuDriverGetVersion")[0])
        self.version = min(version, self._known(driver))

    @staticmethod
    def _known(driver: Any) -> int:
        """The newest version that the bindings have the calls for, as far as that matters here."""
        if not hasattr(driver, "cuCheckpointProcessLock"):
            return 0
        return sys.maxsize if hasattr(driver, "CUcheckpointGpuPair") else CHECKPOINTS

    def _call(self, name: str, *args: Any) -> tuple[Any, ...]:
        result, *values = getattr(self._driver, name)(*args)
        if int(result) != 0:
            raise CudaError(name, getattr(result, "name", str(result)))
        return tuple(values)

    def state(self, pid: int) -> CudaState | None:
        try:
            return CudaState(int(self._call("cuCheckpointProcessGetState", pid)[0]))
        except CudaError as error:
            if error.result in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED"):
                return None
            raise
        except ValueError:
            return None  # bindings 12 read the state before they look at the result, and find anything there

    def lock(self, pid: int, timeout_ms: int) -> None:
        args = self._driver.CUcheckpointLockArgs()
        args.timeoutMs = timeout_ms
        self._call("cuCheckpointProcessLock", pid, args)

    def checkpoint(self, pid: int) -> None:
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: Mapping[str, str]) -> None:
        self._call("cuCheckpointProcessRestore", pid, self._restore_args(pairs) if pairs else None)

    def _restore_args(self, pairs: Mapping[str, str]) -> Any:
        made = []
        for old, new in pairs.items():
            pair = self._driver.CUcheckpointGpuPair()
            pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
            made.append(pair)
        args = self._driver.CUcheckpointRestoreArgs()
        args.gpuPairs, args.gpuPairsCount = made, len(made)
        return args

    def _uuid(self, text: str) -> Any:
        """The bindings offer no way to set the 16 bytes but their address."""
        made = self._driver.CUuuid()
        ctypes.memmove(int(made.getPtr()), uuid_bytes(text), 16)
        return made

    def unlock(self, pid: int) -> None:
        self._call("cuCheckpointProcessUnlock", pid, None)


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``. Raises WorldError for a part of a device (MIG)."""
    if text.startswith("MIG-"):
        raise WorldError(f"{text}: the driver does not checkpoint processes on a part of a device")
    try:
        return uuid.UUID(text.removeprefix("GPU-")).bytes
    except ValueError as error:
        raise WorldError(f"{text!r} is not the UUID of a device") from error


def pairing(wanted: Mapping[str, str], before: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """The pairs for a restore that puts each device of ``wanted`` onto its value; empty when nothing moves.

    ``before`` are the devices of the node where the process was saved, ``now`` those of this one. On the same node all
    devices get a partner, as the driver's migration examples do it: a device whose place is taken gets a free one.
    Raises WorldError for a device that is not there or taken twice.
    """
    strange = sorted(set(wanted) - set(before)) + sorted(set(wanted.values()) - set(now))
    if strange:
        raise WorldError(f"no device {strange[0]} here: nothing can be moved from or to it")
    if len(set(wanted.values())) < len(wanted):
        raise WorldError("two devices of one process cannot become one")
    if all(old == new for old, new in wanted.items()):
        return {}
    if set(before) != set(now):
        return dict(wanted)
    rest = [device for device in before if device not in wanted]
    room = [device for device in now if device not in wanted.values()]
    stay = {device: device for device in rest if device in room}
    moved = [device for device in rest if device not in stay]
    left = [device for device in room if device not in stay]
    return {**wanted, **stay, **dict(zip(moved, left, strict=True))}


def why(error: CudaError) -> str:
    """A refusal in words."""
    known = {
        "CUDA_ERROR_NOT_READY": "it did not come out of its CUDA calls in time",
        "CUDA_ERROR_TIMEOUT": "it did not come out of its CUDA calls in time",
        "CUDA_ERROR_OUT_OF_MEMORY": "there is not enough memory",
        "CUDA_ERROR_NOT_SUPPORTED": "it uses what the driver cannot save (unified or shared memory, MPS, MIG)",
        "CUDA_ERROR_ILLEGAL_STATE": "it is in another state than we left it in",
        "CUDA_ERROR_INVALID_VALUE": "the driver does not accept the devices, or the process is gone",
    }
    return f"{known.get(error.result, 'the driver refused')} ({error.call}: {error.result})"


class CudaCheckpoint:
    """Device memory of several processes, all out or all in. Processes without CUDA are left alone."""

    def __init__(self, api: CudaApi, *, lock_us: int = LOCK_US) -> None:
        self._api, self._lock_us = api, lock_us

    def can(self) -> DriverVerdict:
        """Whether the driver does this at all."""
        if not self._api.version:
            return DriverVerdict(
                False, "the CUDA bindings are too old; install others with: pip install 'tidewright[cuda]'"
            )
        if self._api.version < CHECKPOINTS:
            major, minor = self._api.version // 1000, self._api.version % 1000 // 10
            return DriverVerdict(
                False, f"the NVIDIA driver is too old to save device memory (CUDA {major}.{minor}, needs 570)"
            )
        return DriverVerdict(True)

    def users(self, pids: Iterable[int]) -> list[int]:
        """Those of ``pids`` that use CUDA. Raises WorldError."""
        return [pid for pid in pids if self._state(pid) is not None]

    def _state(self, pid: int) -> CudaState | None:
        try:
            return self._api.state(pid)
        except CudaError as error:
            raise WorldError(f"process {pid}: {why(error)}") from error

    def suspend(self, pids: Iterable[int]) -> None:
        """All processes release their devices. No effect on those that have already.

        Raises WorldError with all of them as before, DeviceStateLost when that state could not be restored.
        """
        mine = [pid for pid in self.users(pids) if self._state(pid) is not CudaState.CHECKPOINTED]
        try:
            self._each(mine, CudaState.RUNNING, lambda pid: self._api.lock(pid, max(1, self._lock_us // 1000)))
            self._each(mine, CudaState.LOCKED, self._api.checkpoint)
        except WorldError as error:
            self._back(mine, str(error))
            raise WorldError(f"device memory not saved: {error}; all run on") from error
        self._expect(mine, CudaState.CHECKPOINTED)

    def resume(self, pids: Iterable[int], pairs: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """All processes get their devices back, or those that ``pairs`` (by pid) gives. No effect on those that run already.

        Raises WorldError with all of them without devices as before, DeviceStateLost when one cannot be restored.
        """
        mine, pairs = self.users(pids), pairs or {}
        if any(pairs.values()):
            self._must_move()
        asleep = [pid for pid in mine if self._state(pid) is CudaState.CHECKPOINTED]
        try:
            self._each(asleep, CudaState.CHECKPOINTED, lambda pid: self._api.restore(pid, pairs.get(pid, {})))
        except WorldError as error:
            self._each(asleep, CudaState.LOCKED, self._api.checkpoint)
            self._lost(mine, str(error))
            raise WorldError(f"device memory not restored: {error}") from error
        self._each(mine, CudaState.LOCKED, self._api.unlock)
        self._expect(mine, CudaState.RUNNING)

    def move(self, pids: Iterable[int], pairs: Mapping[int, Mapping[str, str]]) -> None:
        """Assign other devices to suspended processes, which stay suspended: for those that get theirs in time slices.

        One at a time, as there may not be room for two. Raises as ``resume`` does.
        """
        due = [pid for pid in self.users(pids) if pairs.get(pid) and self._state(pid) is CudaState.CHECKPOINTED]
        if due:
            self._must_move()
        for pid in due:
            try:
                self._each([pid], CudaState.CHECKPOINTED, lambda pid: self._api.restore(pid, pairs[pid]))
                self._each([pid], CudaState.LOCKED, self._api.checkpoint)
            except WorldError as error:
                self._lost(due, str(error))
                raise WorldError(f"device memory not moved: {error}") from error

    def _must_move(self) -> None:
        if self._api.version < MOVES:
            raise WorldError("the NVIDIA driver is too old to restore onto other devices (needs 580)")

    def _back(self, pids: list[int], because: str) -> None:
        """Undo, as far as each has come; a process that ended meanwhile needs nothing."""
        try:
            self._each(pids, CudaState.CHECKPOINTED, lambda pid: self._api.restore(pid, {}))
            self._each(pids, CudaState.LOCKED, self._api.unlock)
        except WorldError as error:
            still = tuple(pid for pid in pids if self._state(pid) is not CudaState.RUNNING)
            raise DeviceStateLost(f"{because}; and not undone: {error}", still) from error
        self._lost(pids, because)

    def _lost(self, pids: list[int], because: str) -> None:
        lost = tuple(pid for pid in pids if self._state(pid) is CudaState.FAILED)
        if lost:
            raise DeviceStateLost(f"{because}; the driver has lost process {', '.join(map(str, lost))}", lost)

    def _expect(self, pids: list[int], state: CudaState) -> None:
        for pid in pids:
            found = self._state(pid)
            if found is not None and found is not state:
                raise DeviceStateLost(f"process {pid} is {found.name}, not {state.name}", (pid,))

    def _each(self, pids: list[int], state: CudaState, act: Callable[[int], None]) -> None:
        """Act on all that are in ``state``, side by side, and wait for all. Raises WorldError for the first failure."""
        due = [pid for pid in pids if self._state(pid) is state]
        if not due:
            return
        with ThreadPoolExecutor(min(len(due), AT_ONCE)) as pool:
            tried = [(pid, pool.submit(act, pid)) for pid in due]
        for pid, outcome in tried:
            error = outcome.exception()
            if isinstance(error, CudaError):
                took = f" within {format_duration(self._lock_us)}" if "in time" in why(error) else ""
                raise WorldError(f"process {pid}{took}: {why(error)}") from error
            if error is not None:
                raise error
