"""What this machine's kernel offers: CRIU, control groups, tracing, namespaces, limits of processes."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from ...base.control_groups import Hierarchy, hierarchies
from ...wire.nodes import NodeView
from ..criu import find
from .finding import NOTE, OK, Finding

PROC = Path("/proc")
FEW_FILES, FEW_PROCESSES = 4096, 1024
"""Hard limits below these: a controller needs one file for each connection and rank, a job one process for each worker."""
WANTED = ("cpu", "memory", "freezer")
NO_TRACING = 3
"""Documentation/admin-guide/LSM/Yama.rst, ptrace_scope: no process may be traced."""


def check_machine(pid: int | None, nodes: tuple[NodeView, ...]) -> list[Finding]:
    """``pid``: the controller's, whose limits count; ``nodes``: what it knows of full images."""
    return [*check_images(nodes), check_groups(), check_kernel(), check_limits(pid)]


def check_images(nodes: tuple[NodeView, ...]) -> list[Finding]:
    """Whether jobs can be imaged whole: what the nodes say, else whether there is a CRIU that an agent would use."""
    if not nodes:
        criu = find()
        if criu.where:
            return [Finding("criu", OK, f"{criu.where}, version {criu.version}")]
        return [_without(f"no full images: {criu.why}")]
    able = [f"{node.name} (CRIU {node.criu})" if node.criu else node.name for node in nodes if node.full]
    found = [Finding("criu", OK, f"full images on {', '.join(able)}")] if able else []
    unable: dict[str, list[str]] = {}
    for node in nodes:
        if not node.full:
            unable.setdefault(node.full_why or "not known yet", []).append(node.name)
    return [*found, *(_without(f"no full images on {', '.join(names)}: {why}") for why, names in unable.items())]


def _without(text: str) -> Finding:
    return Finding(
        "criu", NOTE, text, "jobs there are frozen or save themselves; tide setup criu gets a CRIU, root runs it"
    )


def check_groups(proc: Path = PROC) -> Finding:
    """The version of control groups, and which controllers can be had."""
    trees = hierarchies((proc / "self/cgroup").read_text(), (proc / "self/mounts").read_text())
    have = {name for tree in trees for name in _controllers(tree)}
    versions = " and ".join(f"v{version}" for version in sorted({tree.version for tree in trees})) or "none mounted"
    text = f"{versions}; controllers: {', '.join(name for name in sorted(have) if '=' not in name) or 'none'}"
    missing = [name for name in WANTED if name not in have]
    if not missing:
        return Finding("cgroups", OK, text)
    advice = "enable them for this user (systemd: Delegate=yes); without, CPUs and memory of jobs are not limited"
    return Finding("cgroups", NOTE, f"{text}; not here: {', '.join(missing)}", advice)


def _controllers(tree: Hierarchy) -> tuple[str, ...]:
    """The freezer of version 2 is no controller: every group has it."""
    if tree.version == 1:
        return tree.controllers
    with contextlib.suppress(OSError):
        return (*(tree.group / "cgroup.controllers").read_text().split(), "freezer")
    return ()


def check_kernel(proc: Path = PROC) -> Finding:
    """Its release, and whether it lets processes be traced and users make namespaces."""
    scope = _number(proc / "sys/kernel/yama/ptrace_scope", 0)
    spaces = _number(proc / "sys/user/max_user_namespaces", 1)
    allowed = spaces > 0 and _number(proc / "sys/kernel/unprivileged_userns_clone", 1) > 0
    allowed = allowed and _number(proc / "sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 0
    text = f"Linux {platform.release()}; ptrace scope {scope}; user namespaces {'allowed' if allowed else 'restricted'}"
    if scope >= NO_TRACING:
        advice = "full images need tracing: sysctl kernel.yama.ptrace_scope=1 takes a reboot once it is 3"
        return Finding("kernel", NOTE, f"{text}: no process may be traced", advice)
    return Finding("kernel", OK, text)


def check_limits(pid: int | None, proc: Path = PROC) -> Finding:
    """Open files and processes, of the controller or, without one, of this shell."""
    limits = _limits(proc / (str(pid) if pid and pid > 0 else "self") / "limits")
    files, processes = limits.get("Max open files", -1), limits.get("Max processes", -1)
    where = f"of the controller (pid {pid})" if pid else "of this shell"
    text = f"{where}: {_shown(files)} open files, {_shown(processes)} processes at most"
    few = [f"ulimit -n {FEW_FILES}"] * (0 <= files < FEW_FILES)
    if os.geteuid() != 0:  # the limit of processes does not bind root (setrlimit(2))
        few += [f"ulimit -u {FEW_PROCESSES}"] * (0 <= processes < FEW_PROCESSES)
    if not few:
        return Finding("ulimits", OK, text)
    return Finding("ulimits", NOTE, text, f"raise them before tide up: {'; '.join(few)} (limits.conf(5), LimitNOFILE=)")


def _limits(path: Path) -> dict[str, int]:
    """Hard limits by name (proc_pid_limits(5)); -1: unlimited. Nothing for a process that has ended."""
    with contextlib.suppress(OSError):
        rows = [(line[:26].strip(), line[47:68].strip()) for line in path.read_text().splitlines()[1:]]
        return {name: int(hard) if hard.isdecimal() else -1 for name, hard in rows}
    return {}


def _shown(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise
