"""Time slices of several ranks on one device: which rank computes now, and which ranks wait.

The wrapper calls ``release`` before a rank waits for others, ``acquire`` before it computes on, ``quiesce`` before it stands
still, ``reset`` when reach.json was written anew. They cost next to nothing on a device of one rank. There are three share
modes, which reach.json may name under ``turns``:

* ``os``: the kernel shares the cores (CPU slots). Nothing is locked: it always has a runnable rank to run.
* ``lock``: one rank at a time holds the device's file (GPUs whose memory holds all ranks).
* ``swap``: the agent moves device memory in and out and grants the time slices (GPUs whose memory does not).

A time slice is a matter of speed, never of results. A wait for one ends after ``PATIENCE_S`` at the latest, and the rank then
computes beside the others; so a process that is stopped during its slice blocks no other rank for longer.
Files are open only during a slice: an image of a rank that waits has none open. Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

PATIENCE_S = 30.0
"""Longest wait for a time slice. Well under the 10 minutes after which NCCL gives up a collective."""
SHORTEST_NAP_S, LONGEST_NAP_S, NAP_SHARE = 100e-6, 1e-3, 128
"""A nap between two looks is this share of the time waited so far: late by less than 1 %, and few looks."""

SHARE_MODES = ("os", "lock", "swap")

QUEUE_SUFFIX = ".door"
"""Of the file of a device's queue: the name that ranks of older images lock, too."""


class LockShare:
    """Locks one file per device, in the order of their numbers so that no two ranks wait for each other.

    Each file has a queue, a second lock: the next rank waits for the file with the queue locked, and a rank that comes back
    locks the queue first. Without it, a rank that releases for an instant would always be back before the waiting one wakes.
    """

    def __init__(self, directory: str, devices: Iterable[int], patience_s: float = PATIENCE_S) -> None:
        self._paths = [os.path.join(directory, str(device)) for device in sorted(set(devices))]
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        self._held: list[int] = []
        self._finished = False
        self.timeouts = 0
        """Waits for a time slice that ended without one."""

    @property
    def held(self) -> bool:
        """Whether this rank has the time slice."""
        return bool(self._held)

    def acquire(self) -> bool:
        """Wait for the time slice; at once when it is held already. False when ``patience_s`` ends first."""
        with self._mutex:
            if not self._held and not self._finished:
                self._held = self._lock_devices()
                self.timeouts += not self._held
            return bool(self._held)

    def _lock_devices(self) -> list[int]:
        """All files, or none."""
        until = time.monotonic() + self._patience_s
        locked: list[int] = []
        for path in self._paths:
            file = self._lock_device(path, until)
            if file is None:
                _close(locked)
                return []
            locked.append(file)
        return locked

    def _lock_device(self, path: str, until: float) -> int | None:
        """The file, locked by way of its queue; None when ``until`` passes first, or sharing has ended."""
        queue = self._locked(path + QUEUE_SUFFIX, until)
        if queue is None:
            return None
        try:
            return self._locked(path, until)
        finally:
            os.close(queue)

    def _locked(self, path: str, until: float) -> int | None:
        """A descriptor of ``path`` with an exclusive flock(2), which ends with the last process that has it open."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _await(lambda: _try(file), until, lambda: self._finished):
            return file
        os.close(file)
        return None

    def release(self) -> None:
        """End the time slice. No effect without one."""
        if self._held:
            held, self._held = self._held, []
            try:
                _drain()
            finally:
                _close(held)

    def end(self) -> None:
        """End sharing: a thread that waits for a time slice goes on without one. No file is open afterwards."""
        self._finished = True
        with self._mutex:
            self.release()

    def forget(self) -> None:
        """In a forked child: the time slice is the parent's, and must end with it."""
        self._mutex = threading.Lock()
        held, self._held = self._held, []
        for file in held:
            os.close(file)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(files: list[int]) -> None:
    """Unlocked first: a child in the middle of a fork may have the file open for another instant."""
    for file in reversed(files):
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


class SwapShare:
    """Requests time slices in the rank directory, where the agent grants them; it swaps device memory meanwhile.

    Computing without a time slice does no harm: the driver holds back the CUDA calls of a process that is swapped out.
    """

    def __init__(self, rank_dir: str, patience_s: float = PATIENCE_S) -> None:
        self._wants, self._granted = os.path.join(rank_dir, "wants"), os.path.join(rank_dir, "turn")
        self._patience_s = patience_s
        self._requested = self._finished = False
        self.timeouts = 0

    @property
    def held(self) -> bool:
        """Whether the agent has granted the time slice, and the rank still requests it."""
        return self._requested and _reads_one(self._granted)

    def acquire(self) -> bool:
        """Request the time slice, and wait. False when ``patience_s`` ends first."""
        if not self._requested and not self._finished:
            self._requested = True
            _write_byte(self._wants, b"1")
        granted = _await(lambda: _reads_one(self._granted), time.monotonic() + self._patience_s, lambda: self._finished)
        self.timeouts += not granted
        return granted

    def release(self) -> None:
        """End the request: the agent may grant the device to others."""
        if self._requested:
            self._requested = False
            try:
                _drain()
            finally:
                _write_byte(self._wants, b"0")

    def end(self) -> None:
        """End sharing: a thread that waits for a time slice goes on without one."""
        self._finished = True
        self.release()

    def forget(self) -> None:
        """In a forked child: requests are the parent's."""
        self._requested = False


def _write_byte(path: str, word: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, word, 0)
    finally:
        os.close(file)


def _reads_one(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(1) == b"1"
    return False


def _await(ready: Callable[[], bool], until: float, finished: Callable[[], bool]) -> bool:
    """Look again and again: True when ``ready()``, False when ``finished()`` or after ``until`` (monotonic seconds)."""
    began = time.monotonic()
    while finished() or not ready():
        now = time.monotonic()
        if now >= until or finished():
            return False
        time.sleep(min(max((now - began) / NAP_SHARE, SHORTEST_NAP_S), LONGEST_NAP_S))
    return True


def _drain() -> None:
    """A time slice on a GPU ends when its work is done, not when it was queued."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


_share: LockShare | SwapShare | None = None
_task = -1
"""The backward pass (autograd's graph task) that ends with a release already."""


def active() -> bool:
    """Whether this rank shares its devices by time slices."""
    return _share is not None


def acquire() -> None:
    """Before computing: wait for the time slice."""
    if _share is not None:
        _share.acquire()


def release() -> None:
    """Before waiting for other ranks: end the time slice."""
    if _share is not None:
        _share.release()


def quiesce() -> None:
    """Before standing still: no time slices until ``reset``, also for a thread that waits for one, and no file open."""
    global _share
    share, _share = _share, None
    if share is not None:
        share.end()


def after_backward(wait: Callable[[], object]) -> bool:
    """Make the running backward pass end with one release: release, ``wait()`` for its collectives, acquire.

    To be called with the first collective of a pass (later calls of the same pass change nothing). The callback is
    queued before DDP's own, which waits in C++ where no time slice could be released; collectives issued until then overlap
    with computing as ever. False outside a backward pass and without time slices: then the caller uses ``release_while``.
    """
    global _task
    if _share is None:
        return False
    import torch

    task = torch._C._current_graph_task_id()
    if task < 0:
        return False
    if task != _task:
        _task = task
        torch.autograd.Variable._execution_engine.queue_callback(lambda: release_while(wait))
    return True


def release_while(wait: Callable[[], object]) -> None:
    """Wait for others without the time slice. It is acquired again afterwards, also when the wait failed."""
    release()
    try:
        wait()
    finally:
        acquire()


def share_mode_of(reach: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Which of SHARE_MODES this rank shares its devices in, ``""`` when it has them alone."""
    if int(reach.get("share", 1)) <= 1 or not reach.get("devices"):
        return ""
    named = reach.get("turns", "")
    if named in SHARE_MODES:
        return str(named)
    return "lock" if environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1") else "os"


def reset(reach: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Release, and share from now on as reach.json (or ``reach``, its content) says. Acquires nothing."""
    global _share
    quiesce()
    _share = _make(_read(environ) if reach is None else reach, environ)


def _make(reach: Mapping[str, Any], environ: Mapping[str, str]) -> LockShare | SwapShare | None:
    share_mode = share_mode_of(reach, environ)
    slots, rank_dir = environ.get("TIDE_SLOTS", ""), environ.get("TIDE_BOX", "")
    if share_mode == "lock" and os.path.isdir(slots):
        return LockShare(slots, reach["devices"])
    if share_mode == "swap" and os.path.isdir(rank_dir):
        return SwapShare(rank_dir)
    return None


def _read(environ: Mapping[str, str]) -> dict[str, Any]:
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(environ.get("TIDE_BOX", ""), "reach.json")) as file,
    ):
        found = json.load(file)
        if isinstance(found, dict):
            return found
    return {}


def _forked() -> None:
    global _share
    share, _share = _share, None
    if share is not None:
        share.forget()


os.register_at_fork(after_in_child=_forked)
