"""Keeps a local agent alive: starts it detached, and again when it has died. It outlives the controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...base.backoff import pause_s
from ...wire.holder import AGENT_LOCK, holder
from ...wire.state_files import make_private, open_own

log = logging.getLogger(__name__)
_MODULE = b"tidewright.agent"
PAUSES_S = (0.2, 10.0)
"""Between two looks at an agent that is not connected: the first, and the longest."""


@dataclass(frozen=True)
class LocalAgent:
    """An agent of this machine: its state directory, and the command line that starts it there, with a soft limit of
    ``open_files`` (0: this process's own), because the controller raises its own (wire.connections)."""

    state: Path
    argv: list[str]
    open_files: int = 0

    @property
    def socket(self) -> Path:
        """Where it answers."""
        return self.state / "agent.sock"


class AgentSupervisor:
    """Supervises one agent; the agent's own lock on its state directory makes a second supervisor harmless."""

    def __init__(self, agent: LocalAgent, lost: Callable[[], str] = lambda: "") -> None:
        """``lost``: why none may be started any more; empty while it may."""
        self.agent, self._lost = agent, lost
        self._state = agent.state
        limited = ["/bin/sh", "-c", 'ulimit -Sn "$0" && exec "$@"', str(agent.open_files)] if agent.open_files else []
        self._argv = [*limited, *agent.argv]
        self._child: subprocess.Popen[bytes] | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._connected = False

    def connected(self, alive: bool) -> None:
        """Note whether the agent answers, as the fabric reports it."""
        self._connected = alive
        if not alive:
            self._wanted.set()

    async def run(self) -> None:
        """Until cancelled: sleep while the agent is connected, else start one if none runs."""
        await self._replace_outdated()
        tries = 0
        while True:
            await self._wanted.wait()
            if self._connected:
                self._wanted.clear()
                tries = 0
                continue
            if not self.running() and not self._lost():
                try:
                    self._start()
                except OSError as error:
                    log.error("the agent cannot be started: %s; tried again", error)
            await asyncio.sleep(pause_s(tries, PAUSES_S))
            tries += 1

    async def _replace_outdated(self) -> None:
        """Stop an agent of an earlier start that has other options (slots, cores, images) than those given now."""
        words = self._words()
        # Not with the shell that sets its limit: an agent has taken that one's place.
        if words and words[1:] != [os.fsencode(word) for word in self.agent.argv[1:]]:
            log.info("the agent runs with other options than those given now; it is started anew, its ranks run on")
            await self.stop()

    def running(self) -> bool:
        """Whether an agent process is there, ours or an earlier controller's."""
        if self._child is not None and self._child.poll() is None:
            return True
        return self.pid() is not None

    def pid(self) -> int | None:
        """The agent's pid, if the process in ``agent.pid`` is one (pids are reused)."""
        return self._recorded() if self._words() else None

    def _recorded(self) -> int | None:
        signed = holder(self._state / AGENT_LOCK)
        if signed is not None:  # on a full disk it may have no pid file
            return signed.pid
        try:
            return int((self._state / "agent.pid").read_text())
        except (OSError, ValueError):
            return None

    def _words(self) -> list[bytes]:
        """The command line of the agent that runs; empty when none does."""
        return self._command_line(self._recorded())

    def _command_line(self, pid: int | None) -> list[bytes]:
        """Of a process that names this state directory; empty for any other, and for one that has ended."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            return []
        mine = os.fsencode(self._state) in words or os.fsencode(self._state.resolve()) in words
        return words if mine else []

    def _start(self) -> None:
        """In a session of its own, with only its log; nothing of the controller's is inherited."""
        log.info("starting the agent: %s", " ".join(self._argv))
        make_private(self._state)
        with os.fdopen(open_own(self._state / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as out:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
            )

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Ask the agent to end, also one that is still starting, perhaps for an earlier controller; its ranks run on."""
        asked: set[int] = set()
        end = asyncio.get_running_loop().time() + timeout_s
        while living := self._processes():
            for pid in living - asked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
            asked |= living
            if asyncio.get_running_loop().time() >= end:
                return
            await asyncio.sleep(0.05)

    def _processes(self) -> set[int]:
        """Whatever serves this state directory, or is about to: an agent takes its lock only after a moment."""
        found = {pid} if (pid := self.pid()) is not None else set()
        if self._child is not None and self._child.poll() is None:
            found.add(self._child.pid)
        running = map(int, filter(str.isdigit, os.listdir("/proc")))
        return found | {pid for pid in running if _MODULE in self._command_line(pid)}
