"""Keeping jobs to their share of a device's memory: who is over it is warned, and ended when he goes on.

The rules are those of ``devices.excess``; here they meet the node's attempts and what the device backend tells of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ...base.errors import WorldError
from ...checkpoint.processes import grouped, members
from ...devices.excess import ExcessStep, Place, Rules, Watchdog
from ...devices.protocol import Backend
from ...wire.agent import LaunchArgs
from ...wire.own_file import open_regular
from ..machine.events import Event, Evicted, NoticeGiven
from .attempt import Attempt

log = logging.getLogger(__name__)
MIB = 2**20
LOOK_S = 5.0
COUNTED_ONLY = "counted, not enforced: CPU slots share the memory of their host"


def enforcement(args: LaunchArgs, kind: str, rules: Rules) -> str:
    """What keeps an attempt on devices of this kind to its share, in words; empty for one without a share."""
    if not args.gpu_memory:
        return ""
    if kind == "cpu":
        return COUNTED_ONLY
    watched = {"evict": "; the agent warns, then evicts", "warn": "; the agent warns"}.get(rules.action, "")
    return f"limited in PyTorch and JAX, for each process{watched}"


class MemoryGuard:
    """Looks at every attempt with a share. ``look`` every few seconds, in the agent's event loop; ``feed`` lets the
    machine know."""

    def __init__(
        self,
        backend: Backend,
        feed: Callable[[Event], None],
        attempts: Mapping[tuple[int, int], Attempt],
        rules: Rules,
    ) -> None:
        self.rules = rules
        self._backend, self._feed, self._attempts = backend, feed, attempts
        self._watchdog, self._last_error = Watchdog(rules), ""

    async def watch(self) -> None:
        """Look again and again; apart from the agent's own work, as a driver may hang."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the memory in use on the devices cannot be looked at")
            await asyncio.sleep(LOOK_S)

    async def look(self, now_s: float | None = None) -> None:
        """Once. ``now_s``: monotonic seconds."""
        sharing = {name(attempt): attempt for attempt in self._attempts.values() if _watched(attempt)}
        if self.rules.action == "off" or not sharing or self._backend.name == "cpu":
            return
        try:
            used = await asyncio.to_thread(self._used, list(sharing.values()))
        except WorldError as error:
            if self._last_error != str(error):
                self._last_error = str(error)
                log.warning("the use of the devices' memory is not known: %s", error)
            return
        self._last_error = ""
        allowed = {
            (key, device): attempt.args.gpu_memory // MIB
            for key, attempt in sharing.items()
            for device in _devices(attempt)
        }
        for step in self._watchdog.look(time.monotonic() if now_s is None else now_s, used, allowed):
            self._take(step, sharing[step.uid])

    def _used(self, attempts: list[Attempt]) -> dict[Place, int]:
        """MiB by attempt and device. Blocks."""
        whose = {pid: name(attempt) for attempt in attempts for pid in _processes(attempt)}
        used: Counter[Place] = Counter()
        for load in self._backend.usage():
            for pid, held in load.held.items():
                if pid in whose:
                    used[whose[pid], load.index] += held
        return {place: -(-held // MIB) for place, held in used.items()}

    def _take(self, step: ExcessStep, attempt: Attempt) -> None:
        text = f"it uses {step.used_mib} MiB of device {step.gpu} and asked for {step.allowed_mib} MiB"
        if step.kind == "calm":
            self._notify(attempt, f"it is within its {step.allowed_mib} MiB of device {step.gpu} again")
        elif step.kind == "warn":
            threat = f"; it is evicted in {self.rules.grace_s:.0f}s" if self.rules.action == "evict" else ""
            self._notify(attempt, f"{text}{threat}: ask for more (--gpu-mem), or have it take less")
        else:
            self._feed(Evicted(attempt.key, f"evicted: {text}"))

    def _notify(self, attempt: Attempt, text: str) -> None:
        """Into the job's history, and into the log of its first rank here, where its user looks."""
        log.warning("job %d attempt %d: %s", *attempt.key, text)
        first = attempt.ranks[0]
        with contextlib.suppress(OSError):
            handle = open_regular(attempt.log_of(first), first.owner, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(handle, "w") as file:
                file.write(f"tidewright: {text}\n")
        self._feed(NoticeGiven(attempt.key, text))


def name(attempt: Attempt) -> str:
    """Of an attempt, as a holder of memory."""
    return "{}.{}".format(*attempt.key)


def _watched(attempt: Attempt) -> bool:
    return bool(attempt.args.gpu_memory) and attempt.record.phase == "running" and not attempt.record.ending


def _devices(attempt: Attempt) -> tuple[int, ...]:
    return tuple(dict.fromkeys(device for devices in attempt.record.devices.values() for device in devices))


def _processes(attempt: Attempt) -> list[int]:
    return [pid for rank in attempt.living() for pid in grouped(rank.handle.cgroups) or members(rank.handle)]
