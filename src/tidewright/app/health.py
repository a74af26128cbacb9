"""What ``tide doctor`` looks at: the state directory, the processes that should run on it, and the journal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DiskFull, TideError
from ..base.units import format_bytes, format_duration
from ..live.controller.clock import difference_us
from ..live.controller.disk_space import free_bytes, largest
from ..live.controller.loop import CLOCK_TOLERANCE_US
from ..live.journal import doctor
from ..live.journal.doctor import Report as Report
from ..live.journal.store import DATABASE
from ..wire.client import Client
from ..wire.state_files import tampering
from . import remembered
from .settings import NAME, load_settings
from .start import controller_pid

LARGE_FILE = 2**30
"""Files of the state directory from this size on are named, however much is free."""
LOW_DISK = 256 * 2**20
"""Bytes free below which the journal is in danger."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``level`` is ok, note or bad."""

    what: str
    level: str
    text: str


def examine(state: Path) -> tuple[list[Finding], Report | None]:
    """Every finding, and the journal's report when there is one and no controller is writing it."""
    if not state.is_dir():
        return [Finding("state", "note", f"{state} does not exist yet; tide up makes it")], None
    if why := tampering(state):
        return [Finding("state", "bad", f"{why[0]}\n{why[1]}; nothing else is looked at before")], None
    pid = controller_pid(state)
    findings = [_directory(state), _disk(state), _config(state), *_clock(state), *_controller(state, pid)]
    if not (state / DATABASE).exists():
        return [*findings, Finding("journal", "note", "none yet; tide up begins it")], None
    if pid is not None:
        text = "in use; it was verified when the controller started. tide down, then tide doctor reads all of it"
        return [*findings, Finding("journal", "ok", text)], None
    try:
        report = doctor.doctor(state)
    except DiskFull as error:
        return [*findings, Finding("journal", "note", f"not looked at: {error.message}")], None
    findings.append(Finding("journal", "ok" if report.sound else "bad", "\n".join(report.lines)))
    return findings, report


def repair(state: Path) -> tuple[Report, Path]:
    """Put a sound copy of the journal in place of a damaged one; returns its report and where the original is kept."""
    return doctor.repair(state)


def _directory(state: Path) -> Finding:
    mode = state.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding("state", "bad", f"{state} is open to others (mode {mode:o}); chmod 700 {state}")
    if not os.access(state, os.W_OK):
        return Finding("state", "bad", f"{state} cannot be written")
    return Finding("state", "ok", str(state))


def _disk(state: Path) -> Finding:
    free = free_bytes(state)
    found = [
        f"{path} takes {format_bytes(size)}" for size, path in largest(state) if size >= LARGE_FILE or free < LOW_DISK
    ]
    low = "bad" if free <= LOW_DISK else "ok"
    return Finding("disk", low, "\n".join([f"{format_bytes(free)} free", *found]))


def _clock(state: Path) -> list[Finding]:
    ahead = difference_us(state)
    if ahead is None:
        return []
    if abs(ahead) < CLOCK_TOLERANCE_US:
        return [Finding("clock", "ok", "the engine's time agrees with this machine's clock")]
    where = "ahead of" if ahead > 0 else "behind"
    ahead_by = (
        f"the engine's time is {format_duration(abs(ahead))} {where} this machine's clock, which was set meanwhile"
    )
    text = f"{ahead_by}\nthe journal keeps the engine's time; what tide shows is corrected by the difference"
    return [Finding("clock", "note", text)]


def _config(state: Path) -> Finding:
    try:
        settings, kept = load_settings(state), remembered.recall(state)
    except TideError as error:
        return Finding("settings", "bad", str(error))
    source = NAME if (state / NAME).exists() else "defaults"
    earlier = "".join(f", {text}" for text in remembered.inherited(kept, {}))
    policy = f"policy {settings.policy}"
    return Finding(
        "settings", "ok", f"{source} ({policy})" + (f"; from earlier starts{earlier[1:]}" if earlier else "")
    )


def _controller(state: Path, pid: int | None) -> list[Finding]:
    if pid is None:
        return [
            Finding("controller", "note", "not running; jobs of an earlier run go on without it. tide up starts it")
        ]
    try:
        client = Client(state, timeout=5.0)
        info, nodes = client.info(), client.nodes().nodes
    except TideError as error:
        return [Finding("controller", "bad", f"pid {pid} holds the directory but does not answer: {error.args[0]}")]
    agent = Finding("agent", "ok" if info.agent == "connected" else "bad", info.agent or "unknown")
    lacking = dict.fromkeys(node.unlimited for node in nodes if node.unlimited)
    limits = [Finding("limits", "note", f"what ranks ask for of their hosts: {text}") for text in lacking]
    running = Finding("controller", "ok", f"pid {pid}, version {info.version}, turn {info.turn}")
    return [running, agent, *limits, *(Finding("notice", "note", notice) for notice in info.notices)]
