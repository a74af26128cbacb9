"""Turns of several ranks on one device: who computes now, and who waits until it may.

The wrapper calls ``give_up`` before a rank waits for others, ``take`` before it computes on, ``park`` before it stands
still, ``reset`` when reach.json was written anew. They cost next to nothing where nobody shares. There are three ways to
share, which reach.json may name under ``turns``:

* ``os``: the kernel shares the cores (CPU slots). Nothing is locked: it always has a runnable rank to run.
* ``lock``: one rank at a time holds the device's file (GPUs whose memory holds all ranks).
* ``swap``: the agent moves device memory in and out and says whose turn it is (GPUs whose memory does not).

A turn is a matter of speed, never of results. A wait for one ends after ``PATIENCE_S`` at the latest, and the rank then
computes beside the others; so nobody can be kept waiting for ever by a process that was stopped with a turn in hand.
Files are open only during a turn: an image of a rank that waits holds none. Standard library only, Python 3.9.
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
"""Longest wait for a turn. Well under the 10 minutes after which NCCL gives up a collective."""
SHORTEST_NAP_S, LONGEST_NAP_S, NAP_SHARE = 100e-6, 1e-3, 128
"""A nap between two looks is this share of the time waited so far: late by less than 1 %, and few looks."""

WAYS = ("os", "lock", "swap")


class LockTurn:
    """Holds one file per device, taken in the order of their numbers so that no two ranks wait for each other.

    Each file has a door: whoever waits for the file waits in the door, and who comes back must pass it first. Without
    it, a rank that gives up for an instant would always be back before the one that waits has woken.
    """

    def __init__(self, directory: str, devices: Iterable[int], patience_s: float = PATIENCE_S) -> None:
        self._paths = [os.path.join(directory, str(device)) for device in sorted(set(devices))]
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        self._held: list[int] = []
        self._over = False
        self.overdrawn = 0
        """Turns not waited for to the end."""

    @property
    def held(self) -> bool:
        """Whether this rank has its turn."""
        return bool(self._held)

    def take(self) -> bool:
        """Wait for the turn; at once when it is held already. Whether it is had: patience may run out."""
        with self._mutex:
            if not self._held and not self._over:
                self._held = self._enter_all()
                self.overdrawn += not self._held
            return bool(self._held)

    def _enter_all(self) -> list[int]:
        """All files, or none."""
        until = time.monotonic() + self._patience_s
        got: list[int] = []
        for path in self._paths:
            file = self._enter(path, until)
            if file is None:
                _close(got)
                return []
            got.append(file)
        return got

    def _enter(self, path: str, until: float) -> int | None:
        """The file behind its door, locked; None when ``until`` passes first, or turns are over."""
        door = self._locked(path + ".door", until)
        if door is None:
            return None
        try:
            return self._locked(path, until)
        finally:
            os.close(door)

    def _locked(self, path: str, until: float) -> int | None:
        """A descriptor of ``path`` with an exclusive flock(2), which ends with the last process that has it open."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _await(lambda: _try(file), until, lambda: self._over):
            return file
        os.close(file)
        return None

    def give_up(self) -> None:
        """Let others have it. Harmless without a turn."""
        if self._held:
            held, self._held = self._held, []
            try:
                _drain()
            finally:
                _close(held)

    def end(self) -> None:
        """No more turns: whoever waits for one, in another thread, goes on without. No file is open afterwards."""
        self._over = True
        with self._mutex:
            self.give_up()

    def forget(self) -> None:
        """In a forked child: the turn is the parent's, and must end with it."""
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


class SwapTurn:
    """Asks for turns in the box and waits for the agent's word there; the agent swaps device memory meanwhile.

    Computing without the turn does no harm: the driver holds back the CUDA calls of a process that is swapped out.
    """

    def __init__(self, box: str, patience_s: float = PATIENCE_S) -> None:
        self._wants, self._turn = os.path.join(box, "wants"), os.path.join(box, "turn")
        self._patience_s = patience_s
        self._asked = self._over = False
        self.overdrawn = 0

    @property
    def held(self) -> bool:
        """Whether the agent says that it is this rank's turn, and the rank has use for it."""
        return self._asked and _says(self._turn)

    def take(self) -> bool:
        """Ask, and wait. Whether it is had: patience may run out."""
        if not self._asked and not self._over:
            self._asked = True
            _say(self._wants, b"1")
        had = _await(lambda: _says(self._turn), time.monotonic() + self._patience_s, lambda: self._over)
        self.overdrawn += not had
        return had

    def give_up(self) -> None:
        """Tell the agent that others may have the device."""
        if self._asked:
            self._asked = False
            try:
                _drain()
            finally:
                _say(self._wants, b"0")

    def end(self) -> None:
        """No more turns: whoever waits for one, in another thread, goes on without."""
        self._over = True
        self.give_up()

    def forget(self) -> None:
        """In a forked child: the parent speaks for the rank."""
        self._asked = False


def _say(path: str, word: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, word, 0)
    finally:
        os.close(file)


def _says(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(1) == b"1"
    return False


def _await(ready: Callable[[], bool], until: float, over: Callable[[], bool]) -> bool:
    """Look again and again: True when ``ready()``, False when ``over()`` or after ``until`` (monotonic seconds)."""
    began = time.monotonic()
    while over() or not ready():
        now = time.monotonic()
        if now >= until or over():
            return False
        time.sleep(min(max((now - began) / NAP_SHARE, SHORTEST_NAP_S), LONGEST_NAP_S))
    return True


def _drain() -> None:
    """A turn on a GPU ends when its work is done, not when it was queued."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


_turn: LockTurn | SwapTurn | None = None
_task = -1
"""The backward pass (autograd's graph task) that ends with a hand-over already."""


def active() -> bool:
    """Whether turns are taken at all."""
    return _turn is not None


def take() -> None:
    """Before computing: wait for the turn."""
    if _turn is not None:
        _turn.take()


def give_up() -> None:
    """Before waiting for other ranks: end the turn."""
    if _turn is not None:
        _turn.give_up()


def park() -> None:
    """Before standing still: no turns until ``reset``, also for a thread that waits for one now, and no file open."""
    global _turn
    turn, _turn = _turn, None
    if turn is not None:
        turn.end()


def after_backward(wait: Callable[[], object]) -> bool:
    """Make the running backward pass end with one hand-over: give up, ``wait()`` for its collectives, take.

    To be called with the first collective of a pass (later calls of the same pass change nothing). The callback is
    queued before DDP's own, which waits in C++ where no turn could be given up; collectives issued until then overlap
    with computing as ever. False outside a backward pass and without turns: then whoever waits hands over.
    """
    global _task
    if _turn is None:
        return False
    import torch

    task = torch._C._current_graph_task_id()
    if task < 0:
        return False
    if task != _task:
        _task = task
        torch.autograd.Variable._execution_engine.queue_callback(lambda: hand_over(wait))
    return True


def hand_over(wait: Callable[[], object]) -> None:
    """Wait for others without a turn. The turn is back afterwards, also when the wait failed."""
    give_up()
    try:
        wait()
    finally:
        take()


def way_of(reach: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Which of WAYS this rank shares its devices in, ``""`` when it has them alone."""
    if int(reach.get("share", 1)) <= 1 or not reach.get("devices"):
        return ""
    named = reach.get("turns", "")
    if named in WAYS:
        return str(named)
    return "lock" if environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1") else "os"


def reset(reach: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """End the turn, and share from now on as reach.json (or ``reach``, its content) says. Takes no turn."""
    global _turn
    park()
    _turn = _make(_read(environ) if reach is None else reach, environ)


def _make(reach: Mapping[str, Any], environ: Mapping[str, str]) -> LockTurn | SwapTurn | None:
    way = way_of(reach, environ)
    slots, box = environ.get("TIDE_SLOTS", ""), environ.get("TIDE_BOX", "")
    if way == "lock" and os.path.isdir(slots):
        return LockTurn(slots, reach["devices"])
    if way == "swap" and os.path.isdir(box):
        return SwapTurn(box)
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
    global _turn
    turn, _turn = _turn, None
    if turn is not None:
        turn.forget()


os.register_at_fork(after_in_child=_forked)
