"""Which agents a controller has on this machine: one, several with cores of their own, or some that others started.

They are remembered in STATE/agents.json, because jobs live on them: a later ``tide up`` finds the same ones.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..base.errors import UsageError
from ..base.ids import valid_name
from ..live.controller.lock import write_whole

FILE = "agents.json"
CLUSTER_TOKEN = "cluster.token"
"""By it the agents of one controller know each other; readable by its owner only."""
MOST_HOSTS = 16
_HOST = re.compile(r"(?P<name>[^=:]+)(?:=(?P<slots>\d{0,3}))?(?::(?P<cores>[\d,-]+))?")
_CORES = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


class Host(Struct, frozen=True, omit_defaults=True):
    """One agent on cores of its own, as if it were a machine. ``slots`` 0: one per core; no ``cores``: all of them."""

    name: str
    slots: int = 0
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As ``parse_host`` reads it."""
        cores = ":" + ",".join(map(str, self.cores)) if self.cores else ""
        return f"{self.name}={self.slots or ''}{cores}"


class Agents(Struct, frozen=True, omit_defaults=True):
    """``hosts`` are supervised by the controller, those behind ``sockets`` elsewhere; neither: the usual one."""

    hosts: tuple[Host, ...] = ()
    sockets: tuple[str, ...] = ()


def parse_host(text: str) -> Host:
    """``NAME``, ``NAME=SLOTS`` or ``NAME=SLOTS:CORES`` with cores as in ``0-1,4``. Raises UsageError."""
    match = _HOST.fullmatch(text)
    if match is None or not valid_name(match["name"]):
        raise UsageError(f"not a host: {text!r}", "write it like east=2:0-1 (name, slots, cores)")
    slots = int(match["slots"] or 0)
    if slots > 64:
        raise UsageError(f"host {match['name']}: {slots} slots; 64 at most", "give fewer")
    return Host(match["name"], slots, _cores(match["cores"]) if match["cores"] else ())


def _cores(text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _CORES.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"not a list of cores: {text!r}", "write it like 0-3 or 0,2")
        found.update(dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1)))
    missing = sorted(set(found) - os.sched_getaffinity(0))
    if missing:
        raise UsageError(f"this machine has no core {missing[0]} for us", f"cores: {sorted(os.sched_getaffinity(0))}")
    return tuple(sorted(found))


def even_hosts(number: int, slots: int) -> tuple[Host, ...]:
    """``number`` hosts, the cores dealt out evenly in contiguous runs; more hosts than cores share them.

    One host is none: the usual agent, without a directory or a name of its own.
    """
    if number == 1:
        return ()
    cores = sorted(os.sched_getaffinity(0))
    hosts = []
    for at in range(number):
        first, last = at * len(cores) // number, (at + 1) * len(cores) // number
        mine = tuple(cores[first:last]) or (cores[at % len(cores)],)
        hosts.append(Host(f"host-{at + 1}", slots or len(mine), mine))
    return tuple(hosts)


def chosen(hosts: Sequence[str], number: int, sockets: Sequence[str], slots: int) -> Agents | None:
    """The agents asked for on a command line; None when nothing was. Raises UsageError for contradictions."""
    if hosts and number:
        raise UsageError("--hosts and --host exclude each other", "give a number, or each host by name")
    if number > MOST_HOSTS:
        raise UsageError(f"{number} hosts; {MOST_HOSTS} at most on one machine", "give fewer")
    if not (hosts or number or sockets):
        return None
    named = tuple(parse_host(text) for text in hosts) or even_hosts(number or 1, slots)
    names = [host.name for host in named]
    if len(set(names)) < len(names):
        raise UsageError("two hosts of one name", "give each its own")
    return Agents(named, tuple(str(Path(path).absolute()) for path in dict.fromkeys(sockets)))


def resized(agents: Agents, slots: int) -> Agents:
    """The same agents, each host with ``slots`` slots (0: as it was)."""
    return replace(agents, hosts=tuple(replace(host, slots=slots) for host in agents.hosts)) if slots else agents


def recall(state: Path) -> Agents:
    """The agents of the last start; the usual one when none were chosen. Raises UsageError for an unreadable file."""
    path = state / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Agents)
    except FileNotFoundError:
        return Agents()
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is unreadable: {error}", "delete it, and name the hosts again") from None


def remember(state: Path, agents: Agents) -> None:
    """Keep them for the next start."""
    if agents == Agents():
        (state / FILE).unlink(missing_ok=True)
        return
    write_whole(state / FILE, msgspec.json.encode(agents).decode())


def cluster_token(state: Path) -> Path:
    """The file with the token that agents show each other; made on first use."""
    path = state / CLUSTER_TOKEN
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(32) + "\n")
    return path
