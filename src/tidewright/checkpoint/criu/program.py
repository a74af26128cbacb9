"""Finding CRIU: the system's when it is new enough and works here, else the one in a private prefix."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

LEAST, LEAST_SINCE_6_16 = (4, 1), (4, 2)
"""Oldest versions that serve. Linux 6.16 took away socket options that CRIU 4.1 asks every socket for (criu, number 2705)."""
CHECK_S = 20
ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
VARIABLE = "TIDEWRIGHT_CRIU"


class Criu(NamedTuple):
    """A CRIU that works here. ``command`` is the beginning of its command line."""

    command: tuple[str, ...]
    version: str


def default_prefix() -> Path:
    """Where a private CRIU is unpacked; ``TIDEWRIGHT_CRIU`` names another place."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".local/share/tidewright/criu")


def prefix_command(prefix: Path) -> tuple[str, ...]:
    """How a program of a private prefix is started: by the prefix's own loader, with none of the host's libraries.

    ``--inhibit-cache``: the host's ld.so.cache names the host's libraries.
    """
    machine = platform.machine()
    libraries = f"{prefix}/usr/lib/{machine}-linux-gnu"
    loader = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}.get(machine, "ld.so")
    path = f"{libraries}:{prefix}/lib/{machine}-linux-gnu"
    return (f"{libraries}/{loader}", "--inhibit-cache", "--library-path", path, f"{prefix}/usr/sbin/criu")


def parse_version(text: str) -> tuple[int, ...]:
    """(4, 1, 1) of "Version: 4.1.1"; empty when there is none."""
    found = re.search(r"Version:\s*(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def least(kernel: str | None = None) -> tuple[int, int]:
    """The oldest CRIU that can save everything it should under a kernel release (this host's by default)."""
    found = re.match(r"(\d+)\.(\d+)", kernel or platform.release())
    new = found is not None and (int(found[1]), int(found[2])) >= (6, 16)
    return LEAST_SINCE_6_16 if new else LEAST


def _run(command: tuple[str, ...], *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [*command, *arguments],
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CHECK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def examine(command: tuple[str, ...], *, check: bool = True) -> Criu | str:
    """The CRIU behind a command, or why it is of no use here. Without ``check`` its version is all that is asked."""
    code, text = _run(command, "--version")
    version = parse_version(text)
    if code or not version:
        return f"{command[-1]} does not start: {text.strip() or f'exit code {code}'}"
    named = ".".join(map(str, version))
    if version < (oldest := least()):
        return f"{command[-1]} is version {named}; this kernel needs {'.'.join(map(str, oldest))} or later"
    code, text = _run(command, "check") if check else (0, "")
    if code:
        errors = [line.partition("Error ")[2] or line for line in text.splitlines() if "Error" in line]
        return f"{command[-1]} does not work here: {errors[0] if errors else text.strip()}"
    return Criu(command, named)


def find_criu(prefix: Path | None = None) -> Criu | str:
    """The CRIU to use, or why there is none, in a sentence. A prefix that is named is not second to the system's."""
    if os.geteuid() != 0:
        return "full images need root: the agent runs as an ordinary user"
    system = shutil.which("criu", path=ENVIRON["PATH"])
    private = prefix_command(prefix or default_prefix())
    commands = [private] if Path(private[0]).exists() else []
    if system and prefix is None and not os.environ.get(VARIABLE):
        commands.insert(0, (system,))
    elif system:
        commands.append((system,))
    tried = [examine(command) for command in commands]
    for each in tried:
        if isinstance(each, Criu):
            return each
    return "; ".join(map(str, tried)) or "there is no CRIU; tide setup criu gets one"
