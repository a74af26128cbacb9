"""Runs CRIU among the processes of one rank: joins the rank's namespaces, so that these are no part of the image.

Run as ``python -I -S enter.py INIT MAIN START COMMAND...``: host pids of the rank's init and main process, and the
latter's start in clock ticks. Ends as the command does. It outlives whoever started it: a CRIU that is killed may leave
a task with a trap in its code, and so is let finish. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys

NAMESPACES = ("pid", "time", "mnt")
"""Joined in this order: the files that name the others are found through the mounts of the host."""
GONE, FAILED = 125, 126
"""Exit codes of our own: the rank is not there any more; its namespaces cannot be joined."""

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int) -> None:
    """A function of the C library; raises OSError."""
    if getattr(_libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def start_of(pid: str) -> str:
    """When a process started, in clock ticks after boot (proc(5), field 22)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def join(init: str, main: str) -> None:
    """Join what the main process lives in. Raises OSError."""
    handles = []
    for name in NAMESPACES:
        path = f"/proc/{main if name == 'time' else init}/ns/{name}"
        same = not os.path.exists(path) or os.readlink(path) == os.readlink(f"/proc/self/ns/{name}")
        if not same:
            handles.append(os.open(path, os.O_RDONLY))
    for handle in handles:
        call("setns", handle, 0)
        os.close(handle)


def run(init: str, main: str, start: str, command: list[str]) -> int:
    """Join, run, wait."""
    try:
        if start_of(main) != start:
            return GONE
        join(init, main)
    except FileNotFoundError:
        return GONE
    except OSError as error:
        print(f"cannot join the rank's namespaces: {error}", file=sys.stderr)
        return FAILED
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(command[0], command)
        finally:
            os._exit(127)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
