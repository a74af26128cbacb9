"""Starting a controller as a process of its own, and finding out whether one runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DiskFull, TideError, Unreachable, UsageError
from ..live.controller.agent_supervisor import AgentSupervisor, LocalAgent
from ..live.controller.disk_space import LEAST_BYTES, free_bytes, fullness, is_full
from ..live.controller.lock import LOCK, running_pid
from ..live.journal.store import FREE_SOME
from ..wire.api import Info
from ..wire.client import Client
from ..wire.holder import age_s, end, holder
from ..wire.state_files import make_private, open_own, refuse_foreign
from .hosts import recall

LOG = "controller.log"
START_LIMIT_S = 60.0
"""Longest wait for a controller's first answer: a journal of 10^7 turns opens in 2 s, its history is verified later."""
STOP_LIMIT_S = 30.0
OTHER_LIMIT_S = 10.0
"""How long the controller of a directory that was replaced may take to see that and end."""
_POLL_S = 0.05
_TAIL_LINES = 12


def controller_pid(state: Path) -> int | None:
    """The pid of the controller that holds the directory's lock; None when none does, whatever pid files say.

    Raises UsageError for a directory that others can tamper with: their pid is not to be acted on.
    """
    refuse_foreign(state)
    try:
        file = open_own(state / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return running_pid(state) or -1
    else:
        return None
    finally:
        os.close(file)


def arguments(state: Path, **options: object) -> list[str]:
    """The command line of a controller; what is None or empty is left to earlier starts and config.yaml. Lists repeat their
    option, True stands for an option without a value."""
    argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state)]
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        for one in values:
            argv += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
    return argv


class AlreadyHeld(UsageError):
    """The controller ``pid`` took the directory while another one was being started; -1: it is not known which."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"a controller already runs (pid {pid})", "use it as it is, or stop it with tide down")
        self.pid = pid


@dataclass(frozen=True)
class Starting:
    """A controller on its way up; what it says stands in controller.log from ``log_from`` on."""

    process: subprocess.Popen[bytes]
    log_from: int


def start_detached(state: Path, argv: list[str]) -> Starting:
    """Start a controller that outlives this process and its terminal. Raises UsageError for an unusable directory."""
    try:
        make_private(state)
        log = open_own(state / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        if is_full(error) and state.is_dir():
            raise DiskFull(fullness(state), FREE_SOME) from None
        raise UsageError(
            f"cannot use {state} as state directory: {error.strerror}", "give another one with --state or TIDE_STATE"
        ) from None
    try:
        size = os.fstat(log).st_size
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", close_fds=True
        )
        return Starting(process, size)
    finally:
        os.close(log)


def wait_until_up(client: Client, state: Path, starting: Starting, on_poll: Callable[[], None]) -> Info:
    """The controller's first answer with its agent connected (or why not). ``on_poll`` is called at every look.

    What another process answers does not count: it serves a directory of the same path that was removed, and is about to end.
    Raises AlreadyHeld when another start has been faster, and UsageError with the end of controller.log when the process ends
    first or does not answer in time.
    """
    deadline = time.monotonic() + START_LIMIT_S
    info: Info | None = None
    other = 0
    agent_by = 0.0
    while time.monotonic() < deadline:
        if starting.process.poll() is not None:
            if (pid := controller_pid(state)) is not None:
                raise AlreadyHeld(pid)
            tail = log_tail(state, starting.log_from)
            if state.is_dir() and free_bytes(state) < LEAST_BYTES:
                raise DiskFull(f"the controller cannot start: {fullness(state)}", FREE_SOME)
            raise UsageError(f"the controller ended at once:\n{tail}", f"the whole log is {state / LOG}")
        try:
            info = client.info()
        except TideError:
            info = None
        if info is not None and info.pid != starting.process.pid:
            other, info = info.pid, None
            client.close()  # a kept connection would go on to the same one
        if info is not None:
            agent_by = agent_by or time.monotonic() + START_LIMIT_S / 4
            if info.agent == "connected" or time.monotonic() > agent_by:
                return info
        on_poll()
        time.sleep(_POLL_S)
    if other:
        raise another_answers(state, other, starting.process.pid)
    raise UsageError(
        f"the controller (pid {starting.process.pid}) does not answer after {START_LIMIT_S:.0f} s:\n"
        + log_tail(state, starting.log_from),
        f"it may still be starting; look at {state / LOG}, or stop it with tide down",
    )


def answer_of(client: Client, state: Path, pid: int) -> Info:
    """What the controller ``pid``, which holds the directory's lock, says of itself; one just started is waited for,
    and its agent. Raises Unreachable, and UsageError when another one answers, and goes on doing so. ``pid`` -1: not known."""
    until, agent_by = 0.0, time.monotonic() + START_LIMIT_S / 4
    while True:
        try:
            info = client.info()
        except Unreachable:
            if not _starting(state):
                raise
        else:
            if pid in (info.pid, -1):
                if info.agent == "connected" or time.monotonic() > agent_by or not _starting(state):
                    return info
            else:
                until = until or time.monotonic() + OTHER_LIMIT_S
                if time.monotonic() > until:
                    raise another_answers(state, info.pid, pid)
        client.close()
        time.sleep(_POLL_S)
        pid = controller_pid(state) or pid  # its pid file may have been that of an earlier one


def _starting(state: Path) -> bool:
    """Whether a process holds the lock for too short a time to have to answer already."""
    found = holder(state / LOCK)
    return found is not None and age_s(found) < START_LIMIT_S


def another_answers(state: Path, other: int, pid: int) -> UsageError:
    """The error of a socket that is another controller's."""
    return UsageError(
        f"the controller that answers in {state} (pid {other}) is not the one that holds its lock (pid {pid}): it serves a "
        "directory of that name that was removed or replaced",
        f"end it with kill {other} (jobs run on), then call tide up again",
    )


def wait_until_down(state: Path, on_poll: Callable[[], None]) -> bool:
    """Whether the controller has released the directory within STOP_LIMIT_S."""
    deadline = time.monotonic() + STOP_LIMIT_S
    while controller_pid(state) is not None:
        if time.monotonic() > deadline:
            return False
        on_poll()
        time.sleep(_POLL_S)
    return True


def end_by_pid(state: Path) -> int:
    """Ask the controller to end where it does not answer: by a signal to the process that holds the directory's lock, and
    no other. Returns its pid. Raises UsageError when that process is not known."""
    found = holder(state / LOCK)
    if found is None or not end(found):
        raise UsageError(
            f"the controller of {state} does not answer, and its lock file does not say which process it is",
            f"find it with: fuser {state / LOCK}; ending it, even with kill -9, harms neither the journal nor jobs",
        )
    return found.pid


def agents_left(state: Path) -> list[int]:
    """Pids of the agents of this machine that run without a controller, in ascending order."""
    return sorted(pid for agent in _agents(state) if (pid := agent.pid()) is not None)


def end_agents(state: Path) -> None:
    """Ask the agents of this machine that a controller has left behind to end; their ranks run on."""

    async def every() -> None:
        await asyncio.gather(*(agent.stop() for agent in _agents(state)))

    asyncio.run(every())


def _agents(state: Path) -> list[AgentSupervisor]:
    """Those that the controller of the directory starts on this machine."""
    agents = recall(state)
    folders = [state / "hosts" / host.name for host in agents.hosts] or [state] * (not agents.sockets)
    return [AgentSupervisor(LocalAgent(folder, [])) for folder in folders]


def log_tail(state: Path, start: int, name: str = LOG, lines: int = _TAIL_LINES) -> str:
    """The last lines of the controller's (or another) log after byte ``start``, indented."""
    try:
        found = (state / name).read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return "  (it wrote no log)"
    return "\n".join(f"  {line}" for line in found[-lines:]) or "  (its log is empty)"
