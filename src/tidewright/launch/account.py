"""The unix account that a rank runs as, where its agent is root: assumed permanently, or for one access to the file system.

``account`` is ``{"name", "uid", "gid", "groups", "home"}`` as in ``spec.json``; None: the agent's own account. Standard
library only; loaded by the path of the file that needs it, never as part of a package.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import stat
from collections.abc import Iterator
from typing import Any

Account = dict[str, Any]

PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 23, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
"""linux/prctl.h"""
MOST_CAPABILITIES = 64
KEYCTL_JOIN_SESSION_KEYRING = 1
SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
"""keyctl(2); the C library has no function for it."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    result: int = _libc.prctl(option, *given)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
    return result


def become(account: Account) -> None:
    """Be this account from now on, with no way back: no capability, none of root's groups and keys, and no program that
    gives more rights when it is run. Raises OSError.

    Clears the death signal (prctl(2), PR_SET_PDEATHSIG): who wants one arms it afterwards.
    """
    for number in range(MOST_CAPABILITIES):
        try:
            if _prctl(PR_CAPBSET_READ, number):
                _prctl(PR_CAPBSET_DROP, number)
        except OSError:
            break  # beyond the last one that this kernel knows
    with contextlib.suppress(OSError):  # before Linux 4.3 there are none
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    if (keyctl := SYS_KEYCTL.get(platform.machine())) is not None:
        _libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0)
    os.setgroups(account["groups"])
    os.setresgid(account["gid"], account["gid"], account["gid"])
    os.setresuid(account["uid"], account["uid"], account["uid"])
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


@contextlib.contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Reach files with the rights of this account only. For processes of one thread. Raises OSError."""
    if account is None or os.geteuid() != 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(account["groups"])
    os.setegid(account["gid"])
    os.seteuid(account["uid"])
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def hand_over(handle: int, account: Account | None) -> None:
    """Make an open file the account's. Raises OSError."""
    if account is not None and os.geteuid() == 0:
        os.fchown(handle, account["uid"], account["gid"])


def excess(account: Account | None, pids: list[int]) -> str:
    """What stopped processes that were restored as root have beyond the rights of ``account``; empty: nothing.

    CRIU opens files by their names, as root: by now these may lead to files that the account could never open.
    """
    if account is None:
        return ""
    for pid in pids:
        if why := _credentials(account, pid):
            return why
        with acting_as(account):
            held = [_reached(account, number, path, flags) for number, path, flags in _held(pid)]
        if why := next((each for each in held if each), ""):
            return f"process {pid} {why}"
    return ""


def _credentials(account: Account, pid: int) -> str:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    uids, gids = set(fields["Uid"].split()), set(fields["Gid"].split())
    groups = set(fields["Groups"].split())
    if uids != {str(account["uid"])} or gids != {str(account["gid"])}:
        return f"it was taken of a process of user {min(uids)}, and jobs run as {account['name']} here now"
    if not groups <= {str(each) for each in (account["gid"], *account["groups"])}:
        return f"it was taken of a process with groups that {account['name']} is not in"
    if any(int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")) or fields.get("NoNewPrivs", "1") != "1":
        return "it was taken of a process with rights that jobs do not have here now"
    return ""


def _held(pid: int) -> Iterator[tuple[int, str, int]]:
    """Each file that a process has open or mapped: a descriptor of ours, closed when the next one is asked for, its path,
    and the mode of the link in /proc."""
    with as_root():
        places = [
            f"/proc/{pid}/{kind}/{name}" for kind in ("fd", "map_files") for name in os.listdir(f"/proc/{pid}/{kind}")
        ]
    for place in [*places, f"/proc/{pid}/cwd", f"/proc/{pid}/root"]:
        with as_root():
            link, path = os.lstat(place).st_mode, os.readlink(place)
            handle = os.open(place, os.O_PATH) if path.startswith("/") else -1
        if handle >= 0:
            try:
                yield handle, path, link
            finally:
                os.close(handle)


@contextlib.contextmanager
def as_root() -> Iterator[None]:
    """Within ``acting_as``: with root's rights for a moment."""
    _, before, saved = os.getresuid()
    if saved == 0:
        os.seteuid(0)
    try:
        yield
    finally:
        if saved == 0:
            os.seteuid(before)


def _reached(account: Account, handle: int, path: str, link: int) -> str:
    """Why the account could not have opened this itself; empty when it could. ``link``: the mode of the link in /proc,
    which tells reading from writing (proc(5))."""
    now = os.fstat(handle)
    if now.st_uid == account["uid"] or now.st_nlink == 0:
        return ""  # a file without a name was made by CRIU, out of the image
    wanted = (os.R_OK if link & stat.S_IRUSR else 0) | (os.W_OK if link & stat.S_IWUSR else 0)
    try:
        again = os.open(path, os.O_PATH)
    except OSError as error:
        return f"has {path} open, which {account['name']} cannot reach: {error.strerror}"
    try:
        same = os.path.samestat(os.fstat(again), now)
        wanted = os.X_OK if stat.S_ISDIR(now.st_mode) else wanted
        allowed = os.access(f"/proc/self/fd/{again}", wanted, effective_ids=True)
    finally:
        os.close(again)
    return "" if same and allowed else f"has {path} open, which {account['name']} may not"
