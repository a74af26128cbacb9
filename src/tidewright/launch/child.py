"""From fork to exec, and what is left when a rank's main process has ended: shared by the shim and a sandboxed rank's init.

Standard library only; loaded by the path of the file that needs it, never as part of a package.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
PRIVATE = 0o077
"""The umask of logs that lie in the state directory."""
ADDR_NO_RANDOMIZE = 0x0040000
"""linux/personality.h"""

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """prctl(2); raises OSError."""
    call("prctl", option, value, 0, 0, 0)


def call(name: str, *arguments: Any) -> int:
    """A function of the C library that says -1 and errno when it fails; raises OSError then."""
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def start_time(pid: int) -> int:
    """Clock ticks after boot at which ``pid`` started: with the pid, a process's identity (proc(5), field 22)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def confine(spec: dict[str, Any]) -> None:
    """Put this process where the rank belongs: groups, cores, address layout, scheduling policy. Raises OSError."""
    for group in dict.fromkeys((*spec["cgroups"], *spec.get("limits", ()))):
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    if spec.get("no_aslr"):
        call("personality", ADDR_NO_RANDOMIZE)
    if spec.get("idle"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def sibling(name: str) -> Any:
    """A file beside this one, by its path: this runs without any package."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    module = ModuleType(name)
    module.__file__ = path
    SourceFileLoader(name, path).exec_module(module)
    return module


if TYPE_CHECKING:
    from . import account
else:
    account = sibling("account")


def settle(spec: dict[str, Any], parent: int) -> None:
    """What the forked child does before exec: session, cgroups and cores, death with ``parent``. Raises OSError.

    ``parent`` 0: it dies with its namespace, and a death signal would be part of its image.
    """
    os.setsid()
    die_with(parent)
    confine(spec)


def die_with(parent: int) -> None:
    """Arm the death signal; ``parent`` 0: none."""
    if parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(137)  # the parent died before the death signal was armed


def plain_signals() -> None:
    """No signal ignored, none blocked: what a program expects that is started anew."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become(spec: dict[str, Any], parent: int, log: int) -> NoReturn:
    """The user's part: files, signals, account, directory, program. Raises OSError, never returns."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    plain_signals()
    os.umask(spec["umask"])
    if spec.get("open_files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (spec["open_files"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if spec.get("account"):
        account.become(spec["account"])
        die_with(parent)  # another user's process has none
    os.chdir(spec["workdir"])
    os.execvpe(spec["command"][0], spec["command"], spec["env"])


def child(spec: dict[str, Any], parent: int, log: int, writing: int) -> NoReturn:
    """The forked child: becomes the rank, or says over the pipe which part failed with which errno."""
    part = "settle"
    try:
        settle(spec, parent)
        part = "become"
        become(spec, parent, log)
    except OSError as error:
        os.write(writing, f"{part} {error.errno or errno.EIO}".encode())
    except BaseException:
        os.write(writing, f"{part} {errno.EINVAL}".encode())
    finally:
        os._exit(127)


def spawn(spec: dict[str, Any], log: int, *, tied: bool) -> tuple[int, str]:
    """Fork the rank. Returns its pid, and "part errno" when its program could not be started.

    ``tied``: the rank dies with this process by a death signal.
    """
    reading, writing = os.pipe()
    parent = os.getpid() if tied else 0
    pid = os.fork()
    if pid == 0:
        child(spec, parent, log, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pid, pipe.read().decode()


def children() -> list[int]:
    """Direct children now; orphans of the rank are re-parented here."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def signal_all(number: int) -> None:
    """Signal every direct child."""
    for pid in children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(rank: int) -> int:
    """Wait until the rank's main process ends; its wait status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == rank:
            return status


def clear_away(grace_s: float) -> None:
    """End what the main process left behind, so that devices are free when the exit file appears."""
    deadline = time.monotonic() + grace_s
    signal_all(signal.SIGTERM)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                signal_all(signal.SIGKILL)
            time.sleep(0.02)


def open_log(path: str, umask: int, fresh: bool, below: str = "") -> int:
    """The rank's log for appending, emptied if ``fresh``; only the rank writes to it (a checkpoint depends on its size).

    Its directory is made, but not ``below``. Opened without waiting: a named pipe without a reader is an error, not a rank that
    never starts nor ends.
    """
    before = os.umask(umask)
    try:
        folder = os.path.dirname(path) or "."
        if not below or os.path.isdir(below):
            os.makedirs(folder, exist_ok=True)
        empty = os.O_TRUNC if fresh else 0
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | empty, 0o644)
    finally:
        os.umask(before)
    os.set_blocking(log, True)
    return log
