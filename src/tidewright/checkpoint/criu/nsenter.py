"""Runs CRIU among the processes of one rank: joins the rank's namespaces, so that these are no part of the image.

Run as ``python -I -S nsenter.py INIT MAIN START WRITTEN ANSWER COMMAND...``: host pids of the rank's init and main process,
the latter's start in clock ticks, and two pipes. When the image is written, and the rank still stands still under CRIU's
ptrace, a byte goes into WRITTEN; then CRIU waits for a line from ANSWER: with ``keep`` it goes on as its options say, with
anything else, or when the other end is closed, it undoes all it did and the rank runs on. Ends as the command does. It
outlives the process that started it: a CRIU that is killed may leave a task with a trap in its code, and so is let finish.
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from typing import Any

NAMESPACES = ("pid", "time", "mnt")
"""Joined in this order: the files that name the others are found through the mounts of the host."""
GONE, FAILED = 125, 126
"""Exit codes of our own: the rank is not there any more; its namespaces cannot be joined."""
HOOK = "/run/tidewright/hook"
"""In the rank's own small file system, as programs can be started from there whatever the state directory lies on."""
WRITTEN, ANSWER, KEEP = 3, 4, "keep"
SCRIPT = f"""#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
echo >/proc/$PPID/fd/{WRITTEN}
read -r answer </proc/$PPID/fd/{ANSWER} && [ "$answer" = {KEEP} ]
"""
"""What CRIU calls at each of its stages (criu(8), --action-script). It leaves the script none of its descriptors, so
that two pipes to us are found among CRIU's own."""

CAP_SYS_RESOURCE, CAPABILITY_VERSION = 24, 0x20080522
PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 47, 2
"""linux/capability.h, linux/prctl.h"""

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
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


def fields(pid: str) -> dict[str, list[str]]:
    """Numbers in a process's status, by name."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return {name: rest.split() for name, _, rest in (line.partition(":") for line in file)}


def borrow(owner: dict[str, list[str]], command: list[str]) -> list[str]:
    """Let CRIU ask for the limits of a process of another user, which takes CAP_SYS_RESOURCE or the same ids (prlimit(2)).

    Root in a container may lack it: there CRIU gets the ids of the rank, and keeps all rights of root as ambient ones
    (capabilities(7)). A process without these cannot look into it. Returns the command to run then. Raises OSError.
    """
    uid, gid = int(owner["Uid"][0]), int(owner["Gid"][0])
    rights = int(fields("self")["CapEff"][0], 16)
    if os.geteuid() != 0 or uid == 0 or rights >> CAP_SYS_RESOURCE & 1:
        return command
    call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    halves = [rights & 0xFFFFFFFF, rights >> 32]
    call("capset", header, (ctypes.c_uint32 * 6)(*(half for half in halves for _ in range(3))))
    for number in (number for number in range(64) if rights >> number & 1):
        call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)
    return [*command, "--unprivileged"]


def make_hook() -> None:
    """Put the script in its place, whole or not at all. Raises OSError."""
    draft = f"{HOOK}.{os.getpid()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="ascii") as file:
        file.write(SCRIPT)
    os.rename(draft, HOOK)


def execute(command: list[str], written: int, answer: int, owner: dict[str, list[str]]) -> None:
    """In the child: become CRIU; never returns."""
    try:
        for number, pipe in ((WRITTEN, os.dup(written)), (ANSWER, os.dup(answer))):
            os.dup2(pipe, number)
        command = borrow(owner, command)
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def wait(pid: int, done: int, words: int, written: int, answer: int) -> int:
    """Carry words between the script and the process that started us until CRIU ends; its wait status.

    ``done`` and ``words`` are our ends of the script's pipes, ``written`` and ``answer`` those of the caller.
    """
    gone, poll = os.pidfd_open(pid), select.poll()
    for pipe in (gone, done, answer):
        poll.register(pipe, select.POLLIN)
    while True:
        ready = [number for number, _ in poll.poll()]
        if done in ready:
            if os.read(done, 1):
                write_pipe(written, b"\n")
            else:  # CRIU has closed its end, and is about to be gone
                poll.unregister(done)
        if answer in ready:
            poll.unregister(answer)
            write_pipe(words, os.read(answer, 64) or b"no\n")
        if gone in ready:
            return os.waitpid(pid, 0)[1]


def write_pipe(pipe: int, word: bytes) -> None:
    """Write to a pipe whose reader may have ended."""
    try:  # noqa: SIM105 - contextlib takes milliseconds to import, while a job is kept waiting
        os.write(pipe, word)
    except BrokenPipeError:
        pass


def run(init: str, main: str, start: str, pipes: tuple[int, int], command: list[str]) -> int:
    """Join, run, wait."""
    try:
        if start_of(main) != start:
            return GONE
        owner = fields(main)
        join(init, main)
        make_hook()
    except FileNotFoundError:
        return GONE
    except OSError as error:
        print(f"cannot work in the rank's namespaces: {error}", file=sys.stderr)
        return FAILED
    (done, asking), (hearing, words) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        execute(command, asking, hearing, owner)
    os.close(asking)
    os.close(hearing)
    status = wait(pid, done, words, *pipes)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    _, init, main, start, written, answer, *command = sys.argv
    sys.exit(run(init, main, start, (int(written), int(answer)), command))
