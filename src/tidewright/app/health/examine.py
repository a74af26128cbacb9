"""Every check of a state directory in order, and the repairs of what they found."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from ...base.errors import DiskFull, TideError, UsageError
from ...live.journal import doctor
from ...live.journal.doctor import Report
from ...live.journal.store import DATABASE
from ..start import controller_pid
from .clocks import check_clocks
from .disk_use import check_disk
from .finding import BAD, NOTE, OK, Finding, Repair, Step
from .leftovers import check_leftovers
from .machine import check_machine
from .messages import check_notifications
from .modes import check_modes, exposure
from .options import check_settings
from .processes import check_controller, check_sockets
from .removed import check_removed


def examine(state: Path, step: Step = lambda text: None) -> tuple[list[Finding], Report | None]:
    """Every finding, and the journal's report when there is one and no controller is writing it."""
    try:
        there = _is_there(state)
        exposed = exposure(state) if there else None
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else error.message
        advice = f"chmod u+rwx {state}, or" if _is_mine(state) else "run tide as its owner, or"
        advice += " choose another directory with --state"
        return [Finding("state", BAD, f"{state} cannot be looked at: {why}", advice)], None
    removed = check_removed(state)
    if not there:
        return [Finding("state", NOTE, f"{state} does not exist yet", "tide up makes it"), *removed], None
    if exposed is not None:
        return [exposed], None
    pid = controller_pid(state)
    findings = [
        check_modes(state),
        check_disk(state, step),
        *check_settings(state, pid is not None),
        *check_clocks(state),
    ]
    findings += check_sockets(state)
    about, nodes = check_controller(state, pid)
    step("looking at this machine")
    findings += [*about, *check_machine(pid, nodes), *check_notifications(state, pid is not None)]
    findings += [*check_leftovers(state, pid is not None, step), *removed]
    step("reading the journal")
    finding, report = _journal(state, pid)
    return [*findings, finding], report


def _is_there(state: Path) -> bool:
    """Whether there is such a directory. Raises OSError where that cannot be found out, or it cannot be read."""
    try:
        handle = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    os.close(handle)
    if not os.access(state, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(state))
    return True


def _is_mine(state: Path) -> bool:
    try:
        return state.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _journal(state: Path, pid: int | None) -> tuple[Finding, Report | None]:
    if not (state / DATABASE).exists():
        return Finding("journal", NOTE, "none yet", "tide up begins it"), None
    if pid is not None:
        text = "in use; it was verified when the controller started. tide down, then tide doctor reads all of it"
        return Finding("journal", OK, text), None
    try:
        report = doctor.doctor(state)
    except DiskFull as error:
        return Finding("journal", NOTE, f"not looked at: {error.message}", error.remedy), None
    return Finding("journal", OK if report.sound else BAD, "\n".join(report.lines)), report


def mend(findings: Iterable[Finding]) -> list[Repair]:
    """Repair what can be repaired with safety."""
    repairs = []
    for finding in sorted(findings, key=lambda one: not one.frees):
        if finding.mend is not None:
            try:
                repairs.append(Repair(finding, True, finding.mend()))
            except (OSError, TideError) as error:
                repairs.append(Repair(finding, False, _in_words(error)))
    return repairs


def _in_words(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def repair(state: Path) -> tuple[Report, Path]:
    """Put a sound copy of the journal in place of a damaged one; returns its report and where the original is kept."""
    return doctor.repair(state)
