"""The first process of a rank with namespaces of its own: makes its surroundings, starts or restores it, waits for all.

It is PID 1 there: whatever the rank leaves behind comes to it, and everything dies with it. It dies with the shim, stays
out of the rank's freezer group, is no part of an image, and speaks to the shim in lines over a pipe: ``ready``,
``failed PART ERRNO``, ``error JSON``, ``ended WAITSTATUS``. Standard library only, loaded by path like the shim.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn


def by_path(*parts: str) -> Any:
    """A file by its place relative to this one: this runs without any package."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), *parts)
    module = ModuleType(parts[-1].removesuffix(".py"))
    module.__file__ = path
    SourceFileLoader(module.__name__, path).exec_module(module)
    return module


if TYPE_CHECKING:
    from . import account, child
else:
    child = by_path("child.py")
    account = child.account
file_rollback = by_path("..", "checkpoint", "files", "file_rollback.py")

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWTIME = 0x00020000, 0x20000000, 0x00000080
"""linux/sched.h"""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
"""linux/mount.h"""
INSIDE = "/run/tidewright"
OUTPUT = f"{INSIDE}/out"
"""Where a rank's output goes, as it sees it: the same wherever it is restored and whatever its log is called there."""
MAIN = 100
"""The pid of a rank's main process, the same everywhere."""
APART, SPAN = 1009, 20_000
"""Pids of other processes begin so far apart from rank to rank, within the least pid_max that kernels have by default (32768)."""
GAP = 1000
"""Pids left unused after those of an image."""
VERDICT, VERDICT_POLL_S = "verdict", 0.002


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2); raises OSError naming the target."""
    texts = [text.encode() if text else None for text in (source, target, kind)]
    try:
        child.call("mount", *texts, flags, data.encode() if data else None)
    except OSError as error:
        raise OSError(error.errno, f"mount {target}: {os.strerror(error.errno or 0)}") from error


def enter_sandbox(mounts: dict[str, str], path: str, log: int) -> None:
    """Mount what the rank sees of Tidewright, in a mount namespace of its own. Raises OSError.

    ``path`` is that of ``log``, its open output, and must still lead there: a mount needs a file found in this namespace.
    Mounts made later on the host still arrive (slave); none of ours travels back.
    """
    child.call("unshare", CLONE_NEWNS)
    mount("", "/", "", MS_REC | MS_SLAVE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    handles = {name: os.open(path, os.O_PATH) for name, path in mounts.items()}
    os.makedirs(INSIDE, mode=0o755, exist_ok=True)
    output = os.open(path, os.O_PATH)
    if not os.path.samestat(os.fstat(output), os.fstat(log)):
        raise OSError(errno.ESTALE, "it is another file by now", path)
    os.close(log)
    mount("tidewright", INSIDE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name, handle in handles.items():
        os.mkdir(f"{INSIDE}/{name}")
        bind(handle, f"{INSIDE}/{name}", readonly=name == "lib")
    os.close(os.open(OUTPUT, os.O_WRONLY | os.O_CREAT, 0o600))
    bind(output, OUTPUT)


def bind(handle: int, target: str, readonly: bool = False) -> None:
    """Show an open file or directory at ``target`` as well; closes the handle."""
    mount(f"/proc/self/fd/{handle}", target, "", MS_BIND)
    os.close(handle)
    if readonly:
        mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY)


def next_pid(number: int) -> None:
    """Have the kernel give ``number`` to the next process of this namespace. Raises OSError."""
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
        file.write(str(number - 1))


class InitFailed(Exception):
    """What goes into the rank's error file."""

    def __init__(self, error: str, *, image: bool = False) -> None:
        super().__init__(error)
        self.record = {"fault": "world", "error": error, **({"image": True} if image else {})}


def begin(spec: dict[str, Any]) -> tuple[int, str]:
    """Start the rank's program; its pid and what failed, as ``child.spawn`` has it."""
    next_pid(MAIN)
    log = child.open_log(OUTPUT, child.PRIVATE, False)
    pid, failed = child.spawn(spec, log, tied=False)
    os.close(log)
    if pid != MAIN:
        raise InitFailed(f"the rank's main process got pid {pid} in place of {MAIN}")
    # Programs take host and pid for a name that no other process of the job has: torchrun does.
    next_pid(MAIN + 1 + int(spec["env"].get("RANK", 0)) * APART % SPAN)
    return pid, failed


def keep_time(meta: dict[str, Any]) -> None:
    """Let the clocks that never jump go on where they stood, here, on another host, or after a boot. Raises OSError.

    For processes started from now on (time_namespaces(7)); kernels without it (before 5.6) leave clocks as they are.
    """
    if not os.path.exists("/proc/self/ns/time"):
        return
    child.call("unshare", CLONE_NEWTIME)
    now = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
        for name, clock in now.items():
            seconds, rest = divmod(meta["clocks"][name] - time.clock_gettime_ns(clock), 10**9)
            file.write(f"{name} {seconds} {rest}\n")


def restore(spec: dict[str, Any], directory: str) -> tuple[int, list[str]]:
    """Restore the rank from its image; its pid, and files that no process needs afterwards.

    Raises Failed and OSError, with nothing of the rank left running.
    """
    order = spec["restore"]
    images = order["images"]
    if order.get("judged"):
        await_verdict(directory, order["timeout_s"])
    deadline = time.monotonic() + order["timeout_s"]
    try:
        meta = file_rollback.read_meta(images)
    except file_rollback.Damaged as error:
        raise InitFailed(f"the image in {images} is damaged: {error}", image=True) from error
    with account.acting_as(spec.get("account")):
        differences = file_rollback.roll_back(meta, images)
    if differences:
        raise InitFailed("cannot be restored here: " + "; ".join(differences))
    keep_time(meta)
    next_pid(unused_pid(images))
    criu = os.fork()
    if criu == 0:
        run_criu(spec, images, directory)
    if (code := wait_within(criu, deadline)) != 0:
        with contextlib.suppress(ProcessLookupError):  # nothing came back at all
            os.kill(-1, signal.SIGKILL)
        why = file_rollback.complaint(os.path.join(directory, "restore.log")) or "it gives no reason"
        slow = f"it was not done after {order['timeout_s']:.0f} s and was killed"
        raise InitFailed(f"CRIU cannot restore {images}: {why if code is not None else slow}")
    if excess := account.excess(spec.get("account"), others()):
        os.kill(-1, signal.SIGKILL)
        raise InitFailed(f"the image in {images} is refused: {excess}")
    try:
        for path, text in spec.get("late") or ():
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
    except OSError:
        os.kill(-1, signal.SIGKILL)
        raise
    os.kill(-1, signal.SIGCONT)  # all at once: none runs before all may
    return int(meta["pid"]), file_rollback.lent(meta)


def others() -> list[int]:
    """Every process of this namespace but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def as_root(path: str) -> Any:
    """Open a file of an image, which ranks may not read, in the middle of acting as another account."""
    with account.as_root():
        return open(path, "rb")


file_rollback.open_copy = as_root


def await_verdict(directory: str, patience_s: float) -> None:
    """Wait until it is known that the image is whole and of this host: that is found out while this process is made.

    ``verdict`` in ``directory`` says what is against it, as an error file does; an empty object: nothing. Raises Failed.
    """
    path, deadline = os.path.join(directory, VERDICT), time.monotonic() + patience_s
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise InitFailed(
                f"the agent has not reported within {patience_s:.0f} s whether the image is whole (has it died?)"
            )
        time.sleep(VERDICT_POLL_S)
    with open(path, encoding="utf-8") as file:
        said = json.load(file)
    if said.get("error"):
        raise InitFailed(said["error"], image=bool(said.get("image")))


def unused_pid(images: str) -> int:
    """A pid beyond those of an image: CRIU and its helpers come there, and after them what the rank starts anew.

    The gap is for numbers that live on as those of sessions and groups whose leaders have ended.
    """
    names = [name.removeprefix("core-").removesuffix(".img") for name in os.listdir(images)]
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        most = int(file.read())
    return min(max((int(name) for name in names if name.isdecimal()), default=MAIN) + GAP, most - GAP)


def run_criu(spec: dict[str, Any], images: str, directory: str) -> NoReturn:
    """In the child: what CRIU restores is born as CRIU itself is (group, cores, personality).

    Layouts come from the image; what restored processes start anew gets a random one (inject/_tidewright/layout).
    """
    try:
        child.plain_signals()  # CRIU ends helpers of its own by SIGTERM, which a shim ignores
        child.confine({**spec, "no_aslr": False, "idle": False})  # images hold each thread's scheduling policy
        command = [*spec["restore"]["criu"], *arguments(images, directory)]
        os.execve(command[0], command, {**os.environ, "CRIU_LIBS_DIR": no_plugins(directory)})
    except OSError as error:
        with open(os.path.join(directory, "restore.log"), "a", encoding="utf-8") as file:
            file.write(f"Error (shim): {error}\n")
    finally:
        os._exit(127)


def no_plugins(directory: str) -> str:
    """An empty directory for CRIU to load plugins from: its own for CUDA would wake a process before it is known which
    devices it gets."""
    path = os.path.join(directory, "plugins")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def arguments(images: str, directory: str) -> list[str]:
    """CRIU's for a restore. Its log and its statistics go to the rank's directory: images may be read-only and shared.

    It leaves all stopped: it lets processes go one by one, and fails when one of them ends another before its turn.
    """
    return [
        *("restore", "--images-dir", images, "--work-dir", directory, "--log-file", "restore.log", "-v1"),
        *("--restore-detached", "--manage-cgroups=ignore", "--tcp-established", "--network-lock", "skip"),
        *("--file-locks", "--leave-stopped"),
    ]


def wait_within(pid: int, deadline: float) -> int | None:
    """The exit code of a child (negative: signal), None when it has not ended by ``deadline`` (monotonic seconds)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        signal.sigtimedwait([signal.SIGCHLD], left)


def live(
    spec: dict[str, Any], directory: str, grace_s: float, report: Callable[[str], None], life: int, log: int
) -> None:
    """The life of init once it is a process of its own namespace."""
    enter_sandbox(spec["box"], spec["log"], log)
    lent: list[str] = []
    if spec.get("restore"):
        (pid, lent), failed = restore(spec, directory), ""
    else:
        pid, failed = begin(spec)
    if failed:
        report(f"failed {failed}")
        return
    report("ready")
    os.read(life, 1)  # the shim has seen the main process: now it may disappear
    status = child.reap(pid)
    report(f"ended {status}")
    child.clear_away(grace_s)
    file_rollback.put_away(lent)


def run(spec: dict[str, Any], directory: str, grace_s: float, writing: int, life: int, log: int) -> NoReturn:
    """In the forked process. ``life`` is a pipe whose other end only the shim has."""

    def report(line: str) -> None:
        os.write(writing, line.encode() + b"\n")

    try:
        child.prctl(child.PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([life], [], [], 0)[0]:
            os._exit(137)  # the shim died before the death signal was armed
        live(spec, directory, grace_s, report, life, log)
    except InitFailed as error:
        report(f"error {json.dumps(error.record)}")
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        report(f"error {json.dumps({'fault': 'world', 'error': f'cannot prepare the rank: {what}'})}")
    except BaseException as error:
        report(f"error {json.dumps({'fault': 'world', 'error': f'cannot prepare the rank: {error!r}'})}")
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(0)


def keep_only(*wanted: int) -> None:
    """Close what was inherited from the shim: readers of the other ends must not wait for this process."""
    edges = [2, *sorted(wanted), os.sysconf("SC_OPEN_MAX")]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)


def start(spec: dict[str, Any], directory: str, grace_s: float, log: int) -> tuple[int, int, int]:
    """Fork init into a new pid namespace: its host pid, the pipe it speaks over, and the one its life hangs on.

    A byte into the latter lets it wait for the rank's end. Raises OSError. Every later child of this process would be
    born there, too; a shim has none.
    """
    reading, writing = os.pipe()
    life, held = os.pipe()
    child.call("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        keep_only(writing, life, log)
        run(spec, directory, grace_s, writing, life, log)
    os.close(writing)
    os.close(life)
    return pid, reading, held


def main_of(init: int) -> int:
    """The host's number of the rank's main process: the child of ``init`` that leads a session. Raises OSError."""
    try:
        with open(f"/proc/{init}/task/{init}/children", encoding="ascii") as file:
            candidates = [int(text) for text in file.read().split()]
    except FileNotFoundError:
        candidates = [int(name) for name in os.listdir("/proc") if name.isdecimal() and parent(int(name)) == init]
    for pid in candidates:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            inner = next(line.split()[1:] for line in file if line.startswith("NSpid:"))
        if inner[-1] == str(MAIN):
            return pid
    raise ProcessLookupError(f"init {init} has no main process")


def parent(pid: int) -> int:
    """The parent of a process, 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
