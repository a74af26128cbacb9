"""One rank as its directory tells it: which shim has it, which process it is, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ...base.atomic import write_atomically
from ...base.units import format_bytes
from ...checkpoint.cgroup import remove
from ...checkpoint.limits import set_idle
from ...checkpoint.processes import alive, members, send
from ...checkpoint.protocol import RankHandle
from ...launch import shim as shim_module
from ...launch.environment import MARK
from ..machine.outcomes import RankOutcome
from .accounts import Account

LEAST_NICE, USUAL_NICE = "19", "0"
"""Of a session's scheduling group (sched(7), "The autogroup feature"): weights of 15 and 1024."""
SWEEP_S = 5.0
"""How long killing is repeated; what survives it hangs in the kernel and is tried again by the safety poll."""
CLAIM_S = 10.0
"""How long a shim may take from its start to its first file."""


class Spec(Struct, frozen=True, kw_only=True):
    """``spec.json``: everything the shim needs."""

    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    log: str
    own_log: bool
    """Whether its user chose the log's path."""
    fresh_log: bool = False
    """Whether what is in the log goes: a user's file is begun anew by the first attempt (sbatch(1), --open-mode)."""
    cpus: tuple[int, ...]
    cgroups: tuple[str, ...]
    limits: tuple[str, ...] = ()
    """Groups that limit its CPUs and memory, entered like ``cgroups``, which are for freezing."""
    memory: int = 0
    """Bytes that ``memory_group`` limits it to."""
    memory_group: str = ""
    late: tuple[tuple[str, str], ...] = ()
    """Files to be written once it is restored, and with what (checkpoint.limits)."""
    idle: bool = False
    """It runs by the scheduling policy SCHED_IDLE, in CPU time that nothing else wants."""
    grace_us: int
    umask: int = 0o022
    open_files: int = 0
    """Its soft limit of open files; 0: the agent's."""
    rank_dir: dict[str, str] | None = field(default=None, name="box")  # as shims of earlier versions read it
    """What is mounted where the rank looks for us (launch.surroundings); None: it has no namespaces of its own."""
    no_aslr: bool = False
    """Addresses are the same in every rank, so that replicas share pages of their images."""
    account: Account | None = None
    """Whom it runs as; None: as its agent."""
    restore: dict[str, Any] | None = None
    """Images to come back from instead of starting ``command``."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Every group that is its own, each once."""
        return tuple(dict.fromkeys((*self.cgroups, *self.limits)))


class Identity(Struct, frozen=True):
    """A process: its pid and its start in clock ticks after boot."""

    pid: int
    start: int
    init: int = 0
    """For a rank with namespaces: host pid of its first process."""


class ExitFile(Struct, frozen=True):
    """``exit``: written by the shim when everything of the rank is gone; ``ended`` is wall-clock seconds."""

    code: int
    signal: int
    ended: float
    note: str = ""
    """What else is known of the cause."""
    outside: bool = False
    """Init was killed, which nothing in the rank's namespaces can do."""
    memory_limit: int = 0
    """The limit of memory in bytes for which the kernel killed a process of it; 0: it killed none."""


def read(path: Path, kind: type[Struct]) -> Struct | None:
    """A record, or None when it is not there or is damaged (a power cut before our fsync)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _outcome(code: int, ended: ExitFile) -> RankOutcome:
    limit = ended.memory_limit
    note = f"out of memory: passed its limit of {format_bytes(limit)} (--mem)" if limit else ended.note
    return RankOutcome(code, ended=ended.ended, note=note, outside=ended.outside, memory_limit=limit)


class Rank:
    """A rank on this node. ``generation``: how often the ranks had come back from images when this one was made."""

    def __init__(self, directory: Path, number: int, mark: str, generation: int = 0) -> None:
        self.directory = directory
        self.number = number
        self.generation = generation
        self.shim: Identity | None = None
        self.main: Identity | None = None
        self.pidfd: int | None = None
        spec = read(directory / "spec.json", Spec)
        self.spec = spec if isinstance(spec, Spec) else None
        # What its processes bear: one that another version, or the agent of a copied directory, has started bears another.
        self.mark = self.spec.env.get(MARK, mark) if self.spec is not None else mark

    @property
    def handle(self) -> RankHandle:
        """The rank for drivers and sweeps; pid 0 while its main process is not known."""
        main = self.main or Identity(0, 0)
        return RankHandle(
            rank=self.number,
            pid=main.pid,
            start=main.start,
            shim=self.shim.pid if self.shim_alive() and self.shim else 0,
            init=main.init,
            marker="" if self.sandboxed else f"{MARK}={self.mark}",
            cgroups=self.spec.cgroups if self.spec else (),
        )

    @property
    def sandboxed(self) -> bool:
        """Whether it has namespaces of its own: nothing of it can leave them, and marks of its past mean nothing."""
        return self.spec is not None and self.spec.rank_dir is not None

    @property
    def owner(self) -> int | None:
        """The user it runs as; None: as this agent."""
        return self.spec.account.uid if self.spec is not None and self.spec.account is not None else None

    def shim_alive(self) -> bool:
        return self.shim is not None and alive(self.shim.pid, self.shim.start)

    def look(self) -> None:
        """Read what the shim has written since."""
        shim, main = read(self.directory / "shim", Identity), read(self.directory / "started", Identity)
        self.shim = shim if isinstance(shim, Identity) else None
        self.main = main if isinstance(main, Identity) else None

    def ending(self) -> RankOutcome | None:
        """How the rank ended by its files; None while its shim lives. A dead shim without a record is ``lost``."""
        living = self.shim_alive()  # asked first: the exit file is older than the shim's death
        if isinstance(ended := read(self.directory / "exit", ExitFile), ExitFile):
            code = 128 + ended.signal if ended.signal else ended.code
            return None if living else _outcome(code, ended)
        if isinstance(failed := read(self.directory / "error", RankOutcome), RankOutcome):
            return None if living else RankOutcome(127, error=failed.error, fault=failed.fault, image=failed.image)
        if living or self.shim is None:
            return None
        return RankOutcome(128 + signal.SIGKILL, lost=True)

    async def spawn(self) -> None:
        """Start the shim, unless one was started before; returns once the rank runs, has failed, or its shim died."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", shim_module.__file__, str(self.directory)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        await process.wait()
        await self.settled()

    async def settled(self) -> None:
        """Wait for a shim started earlier, by an agent that died, to say how it went."""
        deadline = time.monotonic() + CLAIM_S
        while time.monotonic() < deadline:
            self.look()
            if self.main is not None or self.ending() is not None:
                return
            await asyncio.sleep(0.02)

    def not_started(self, why: str) -> RankOutcome:
        """Bar every future shim: the rank is not wanted any more. How it ended."""
        path = self.directory / "error"
        if not path.exists():
            with contextlib.suppress(OSError):  # a full disk; the launch has failed either way
                write_atomically(path, msgspec.json.encode({"fault": "world", "error": why}))
        return RankOutcome(127, error=why, fault="world")

    def sweep(self) -> bool:
        """Kill everything of the rank but its shim; blocks. False: something did not die in time."""
        deadline, handle = time.monotonic() + SWEEP_S, self.handle
        while found := members(handle):
            send(found, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def end(self) -> None:
        """Kill everything of the rank, its shim first, which then says nothing of it; blocks."""
        self.look()
        if self.shim is not None and self.shim_alive():
            send([self.shim.pid], signal.SIGKILL)
        self.sweep()

    def set_idle(self, idle: bool) -> None:
        """Of a rank for idle CPU time: have it run in that, or like others. Where sessions have scheduling groups of their own,
        SCHED_IDLE counts within one only, so its session weighs less, too; what has no groups at all stays at SCHED_IDLE, which
        to leave takes a privilege (sched(7))."""
        if self.spec is None or not self.spec.idle:
            return
        set_idle(self.spec.limits, idle)
        if self.main is not None and alive(self.main.pid, self.main.start):
            with contextlib.suppress(OSError):
                Path(f"/proc/{self.main.pid}/autogroup").write_text(LEAST_NICE if idle else USUAL_NICE)

    def terminate(self) -> None:
        """SIGTERM to everything of the rank but its shim, and SIGCONT, without which a stopped process never receives it."""
        found = members(self.handle)
        send(found, signal.SIGTERM)
        send(found, signal.SIGCONT)

    def tidy(self) -> bool:
        """Remove the rank's groups; False while something is still in them."""
        return remove(self.spec.groups) if self.spec else True

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
