"""The shim: starts one rank, outlives agent and controller, waits for every process of the rank, writes its exit file.

Run as ``python -I -S shim.py DIR``; DIR holds ``spec.json``. Writes there ``started``, ``error`` (the rank never ran)
and ``exit``; whoever finds the lock file free and neither ``exit`` nor ``error`` knows that the shim was killed.
It imports nothing of the package, so that it starts in milliseconds and an upgrade cannot break a running one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
LEFTOVER_GRACE_S = 5.0
"""Longest that processes left by a rank's main process may keep its devices; batch systems kill them at once."""
PRIVATE = 0o077
"""The umask of logs that lie in the state directory."""
USER_ERRNO = frozenset(
    {
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.E2BIG, errno.ELOOP,
        errno.ENAMETOOLONG, errno.EINVAL,
    }
)  # fmt: skip
"""Failures to start a program that no other try will mend."""

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """prctl(2); raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def start_time(pid: int) -> int:
    """Clock ticks after boot at which ``pid`` started: with the pid, a process's identity (proc(5), field 22)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_whole(directory: str, name: str, content: dict[str, object]) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = os.path.join(directory, f".{name}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(directory, name))
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_surely(directory: str, name: str, content: dict[str, object]) -> None:
    """Like ``write_whole``, for what must not be lost: a full disk is waited out as long as the directory exists."""
    while os.path.isdir(directory):
        try:
            write_whole(directory, name, content)
            return
        except OSError:
            time.sleep(1)


def claim(directory: str) -> bool:
    """Become the only shim this rank ever has. False: another one is, or was."""
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if any(os.path.exists(os.path.join(directory, name)) for name in ("started", "exit", "error")):
        return False
    identity = {"pid": os.getpid(), "start": start_time(os.getpid())}
    write_whole(directory, "shim", dict(identity))
    return True


def settle(spec: dict[str, Any], shim: int) -> None:
    """In the child, the house's part: session, death with the shim, freezer group, cores. Raises OSError."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:
        os._exit(137)  # the shim died before the death signal was armed
    for group in spec["cgroups"]:
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])


def become(spec: dict[str, Any], log: int) -> NoReturn:
    """In the child, the user's part: files, signals, directory, program. Raises OSError, never returns."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(spec["umask"])
    os.chdir(spec["workdir"])
    os.execvpe(spec["command"][0], spec["command"], spec["env"])


def child(spec: dict[str, Any], shim: int, log: int, writing: int) -> NoReturn:
    """The forked child: becomes the rank, or says over the pipe which part failed with which errno."""
    part = "settle"
    try:
        settle(spec, shim)
        part = "become"
        become(spec, log)
    except OSError as error:
        os.write(writing, f"{part} {error.errno or errno.EIO}".encode())
    except BaseException:
        os.write(writing, f"{part} {errno.EINVAL}".encode())
    finally:
        os._exit(127)


def spawn(spec: dict[str, Any], log: int) -> tuple[int, str]:
    """Fork the rank. Returns its pid, and "part errno" when its program could not be started."""
    reading, writing = os.pipe()
    shim = os.getpid()
    pid = os.fork()
    if pid == 0:
        child(spec, shim, log, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pid, pipe.read().decode()


def failure(failed: str, spec: dict[str, Any]) -> dict[str, object]:
    """The error file of a rank that never ran: whose fault, and what, naming the path."""
    part, _, number = failed.partition(" ")
    code, text = int(number), os.strerror(int(number))
    if part == "settle":
        return {"fault": "world", "error": f"cannot prepare the rank: {text}"}
    fault = "user" if code in USER_ERRNO else "world"
    if not os.path.isdir(spec["workdir"]) or not os.access(spec["workdir"], os.X_OK):
        return {"fault": fault, "error": f"cannot enter the working directory {spec['workdir']}: {text}"}
    return {"fault": fault, "error": f"cannot run {spec['command'][0]}: {text}"}


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


def open_log(path: str, umask: int, fresh: bool) -> int:
    """The rank's log for appending, emptied if ``fresh``; only the rank writes to it (a checkpoint depends on its size).

    Opened without waiting: a named pipe that nobody reads is an error, not a rank that never starts nor ends.
    """
    before = os.umask(umask)
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        empty = os.O_TRUNC if fresh else 0
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | empty, 0o644)
    finally:
        os.umask(before)
    os.set_blocking(log, True)
    return log


def supervise(directory: str, ready: int) -> None:
    """The life of a shim, after daemonising. ``ready`` is closed when the rank runs or never will."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    try:
        log = open_log(spec["log"], spec["umask"] if spec["own_log"] else PRIVATE, spec["fresh_log"])
    except OSError as error:
        what = "it is a pipe that nobody reads" if error.errno == errno.ENXIO else error.strerror
        text = f"cannot write the log {spec['log']}: {what}"
        write_surely(directory, "error", {"fault": "user" if spec["own_log"] else "world", "error": text})
        return
    pid, failed = spawn(spec, log)
    os.close(log)
    if failed:
        os.waitpid(pid, 0)
        write_surely(directory, "error", failure(failed, spec))
        return
    write_surely(directory, "started", {"pid": pid, "start": start_time(pid), "at": time.time()})
    os.close(ready)
    status = reap(pid)
    ended = time.time()
    clear_away(min(LEFTOVER_GRACE_S, spec["grace_us"] / 1e6))
    code = os.waitstatus_to_exitcode(status)
    write_surely(directory, "exit", {"code": max(code, 0), "signal": max(-code, 0), "ended": ended})


def daemonise(directory: str) -> int | None:
    """Fork away. In the daemon: the descriptor to close when ready; in the caller: None, once that has happened."""
    reading, writing = os.pipe()
    if middle := os.fork():
        os.close(writing)
        os.waitpid(middle, 0)
        os.read(reading, 1)
        return None
    os.close(reading)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    errors = os.open(os.path.join(directory, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, target)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return writing


def main(directory: str) -> int:
    """Start the rank of ``directory`` unless it was started before; returns once it runs, has failed or is taken."""
    directory = os.path.abspath(directory)
    ready = daemonise(directory)
    if ready is not None and claim(directory):
        supervise(directory, ready)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
