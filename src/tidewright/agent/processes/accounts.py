"""Which unix account ranks run as: a name or a number, looked up on this node, and what that gives a rank."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ...base.errors import UsageError
from ...wire.agent import LaunchArgs

_NUMBERS = re.compile(r"(\d{1,10})(?::(\d{1,10}))?")
_HIGHEST = 2**32 - 2
"""The last number is "no change" to setresuid(2)."""


class Account(Struct, frozen=True):
    """As in the ``spec.json`` of a rank (launch.account)."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def lookup(text: str) -> Account:
    """The account of that name or number; a number needs no entry in /etc/passwd. Raises UsageError, for root too."""
    found = _by_number(text) if _NUMBERS.fullmatch(text) else _by_name(text)
    if found.uid == 0 or found.gid == 0 or 0 in found.groups:
        raise UsageError(
            f"--jobs-as {text}: that is root, or in its group", "name an account without rights, for jobs only"
        )
    return found


def _by_name(text: str) -> Account:
    try:
        entry = pwd.getpwnam(text)
    except (KeyError, ValueError) as error:
        raise UsageError(f"--jobs-as {text}: there is no such user here", "create it, or give a number") from error
    groups = tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir or "/")


def _by_number(text: str) -> Account:
    first, _, second = text.partition(":")
    uid, gid = int(first), int(second or first)
    if max(uid, gid) > _HIGHEST:
        raise UsageError(f"--jobs-as {text}: no user has such a number", f"{_HIGHEST} is the highest")
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(first, uid, gid, (gid,), "/")
    known = _by_name(entry.pw_name)
    return replace(known, gid=gid, groups=(gid,)) if second else known


def account_of(args: LaunchArgs) -> Account | None:
    """Whom the ranks are to run as; None when it is who runs the agent. Raises UsageError."""
    if not args.run_as:
        return None
    found = lookup(args.run_as)
    if os.geteuid() == 0:
        return found
    if os.geteuid() != found.uid:
        raise UsageError(
            f"jobs are to run as {found.name}, and the agent of this node is neither that user nor root",
            "start the agent as root, or leave out --jobs-as",
        )
    return None


def with_account_env(args: LaunchArgs) -> LaunchArgs:
    """The request with the account's HOME, USER and LOGNAME in place of the submitter's. Raises UsageError."""
    account = account_of(args)
    if account is None:
        return args
    return replace(args, env={**args.env, "HOME": account.home, "USER": account.name, "LOGNAME": account.name})


def hand_over(account: Account | None, *paths: Path) -> None:
    """Make files and directories the account's, never what a link leads to. Raises OSError."""
    for path in paths if account is not None else ():
        assert account is not None
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def slots_of(slots: Path, account: Account | None) -> Path:
    """Where ranks of this account lock devices, apart from those of others. Raises OSError."""
    if account is None:
        return slots
    own = slots / f"user-{account.uid}"
    own.mkdir(mode=0o700, exist_ok=True)
    hand_over(account, own)
    return own
