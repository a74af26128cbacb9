"""The shim: starts one rank, outlives agent and controller, waits for every process of the rank, writes its exit file.

Run as ``python -I -S shim.py DIR``; DIR holds ``spec.json``. Writes there ``started``, ``error`` (the rank never ran)
and ``exit``; a free lock file with neither ``exit`` nor ``error`` means that the shim was killed.
It imports nothing of the package, so that it starts in milliseconds and an upgrade cannot break a running one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any


def sibling(name: str) -> Any:
    """A file beside this one, by its path: this runs without any package."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    module = ModuleType(name)
    module.__file__ = path
    SourceFileLoader(name, path).exec_module(module)
    return module


if TYPE_CHECKING:
    from . import account, child, oom
else:
    child, oom = sibling("child"), sibling("oom")
    account = child.account

LEFTOVER_GRACE_S = 5.0
"""Longest that processes left by a rank's main process may keep its devices; batch systems kill them at once."""
ROOM = 512
"""Bytes that every file of ours has at least."""
USER_ERRNO = frozenset(
    {
        errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.E2BIG, errno.ELOOP,
        errno.ENAMETOOLONG, errno.EINVAL,
    }
)  # fmt: skip
"""Failures to start a program that no other try will mend."""


def write_whole(directory: str, name: str, content: dict[str, object]) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary, text = os.path.join(directory, f".{name}"), json.dumps(content).ljust(ROOM).encode()
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:  # not cut first: room that was allocated before would be freed
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(directory, name))
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reserve_space(directory: str, name: str) -> None:
    """Reserve disk space for ``name``: how a rank ended must be reported on a full disk, too, or it never ends."""
    with open(os.path.join(directory, f".{name}"), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(b" " * ROOM)
        file.flush()
        os.fsync(file.fileno())


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
    identity = {"pid": os.getpid(), "start": child.start_time(os.getpid())}
    reserve_space(directory, "exit")
    write_whole(directory, "shim", dict(identity))
    return True


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


def begin_log(spec: dict[str, Any]) -> int:
    """The rank's log, open. One that its user chose is opened with the rights of the rank. Raises OSError."""
    who = spec.get("account")
    if spec["own_log"]:
        with account.acting_as(who):
            handle: int = child.open_log(spec["log"], spec["umask"], spec["fresh_log"])
        return handle
    root = os.path.dirname(os.path.dirname(os.path.dirname(spec["log"])))  # ROOT/logs/JOB/LOG
    handle = child.open_log(spec["log"], child.PRIVATE, spec["fresh_log"], below=root)
    account.hand_over(handle, who)
    return handle


def supervise(directory: str, ready: int) -> None:
    """The life of a shim, after daemonising. ``ready`` is closed when the rank runs or never will."""
    child.prctl(child.PR_SET_CHILD_SUBREAPER, 1)
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    try:
        log = begin_log(spec)
    except OSError as error:
        what = "it is a pipe without a reader" if error.errno == errno.ENXIO else error.strerror
        text = f"cannot write the log {spec['log']}: {what}"
        write_surely(directory, "error", {"fault": "user" if spec["own_log"] else "world", "error": text})
        return
    grace_s = min(LEFTOVER_GRACE_S, spec["grace_us"] / 1e6)
    rank, killed_before = sandboxed if spec.get("box") else bare, oom.kills()
    if (end := rank(spec, directory, log, grace_s, ready)) is None:
        return
    pid, status, ended = end
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    note = oom.verdict(killed_before, pid, code == -signal.SIGKILL) if code else ""
    record = {"code": max(code, 0), "signal": max(-code, 0), "ended": ended, "note": note}
    if code and spec.get("memory_group") and oom.passed(spec["memory_group"]):
        record["memory_limit"] = spec["memory"]
    # Nothing in a namespace can kill its init; for want of memory the kernel can, and then the rank is to blame.
    write_surely(directory, "exit", {**record, "outside": status is None and not note})


def bare(
    spec: dict[str, Any], directory: str, log: int, grace_s: float, ready: int
) -> tuple[int, int | None, float] | None:
    """A rank among all other processes: pid, wait status and when it ended, with all it left gone; None: never ran."""
    pid, failed = child.spawn(spec, log, tied=True)
    os.close(log)
    if failed:
        os.waitpid(pid, 0)
        write_surely(directory, "error", failure(failed, spec))
        return None
    write_surely(directory, "started", {"pid": pid, "start": child.start_time(pid), "at": time.time()})
    os.close(ready)
    status = child.reap(pid)
    ended = time.time()
    child.clear_away(grace_s)
    return pid, status, ended


def sandboxed(
    spec: dict[str, Any], directory: str, log: int, grace_s: float, ready: int
) -> tuple[int, int | None, float] | None:
    """Like ``bare``, for a rank with namespaces of its own: init does the waiting, and killing init ends them all. The status is
    None where init was killed."""
    init = sibling("init")
    try:
        pid, speaking, life = init.start(spec, directory, grace_s, log)
    except OSError as error:
        write_surely(directory, "error", {"fault": "world", "error": f"cannot make namespaces: {error.strerror}"})
        return None
    os.close(log)
    with os.fdopen(speaking, encoding="utf-8") as lines:
        word, _, rest = lines.readline().strip().partition(" ")
        if word != "ready":
            os.waitpid(pid, 0)
            write_surely(directory, "error", unstarted(word, rest, spec))
            return None
        main = init.main_of(pid)
        record = {"pid": main, "start": child.start_time(main), "init": pid, "at": time.time()}
        write_surely(directory, "started", record)
        os.close(ready)
        os.write(life, b".")
        word, _, rest = lines.readline().strip().partition(" ")
    ended = time.time()
    os.waitpid(pid, 0)
    return main, int(rest) if word == "ended" else None, ended


def unstarted(word: str, rest: str, spec: dict[str, Any]) -> dict[str, object]:
    """The error file of a sandboxed rank by init's last line."""
    if word == "failed":
        return failure(rest, spec)
    if word == "error":
        record: dict[str, object] = json.loads(rest)
        return record
    return {"fault": "world", "error": "the rank's init was killed before it could start anything"}


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
