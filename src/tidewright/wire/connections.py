"""Which connections a listener keeps: so many in all, so many of one peer, and the oldest silent one goes for a new one.

Pure bookkeeping, without sockets: the controller's HTTP listeners, the agents' peer servers and the rendezvous server use it.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ..base.errors import WorldError

OPEN_FILES = 65_536
"""Open files a daemon asks for where the hard limit allows more; RLIMIT_NOFILE may be 2**30, and some tools walk to it."""


class TooManyConnections(WorldError):
    """There is no room for another connection, and none that has asked for nothing yet."""


@dataclass(frozen=True)
class Limits:
    """``total`` connections at once, ``each`` of one peer. Seconds: ``header_s`` until a request (or a greeting) is there
    in full, ``body_s`` for its body, longer by a second per ``body_rate`` bytes that have come (as mod_reqtimeout of
    Apache httpd: "header=20-40,MinRate=500 body=20,MinRate=500")."""

    total: int = 1024
    each: int = 256
    header_s: float = 10.0
    body_s: float = 20.0
    body_rate: int = 16 * 1024


class Connections:
    """The open connections of one listener. ``close`` functions must not call back before they return."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[Hashable, tuple[Hashable, Callable[[], object]]] = {}
        self._silent: dict[Hashable, dict[Hashable, None]] = {}
        """Peer to its connections on which no request is complete, oldest first."""
        self._per_peer: dict[Hashable, int] = {}
        self.rejected = 0
        """Connections refused, or closed in favour of newer ones, since the start."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, key: Hashable, peer: Hashable, close: Callable[[], object]) -> None:
        """Count a new connection. Where there is no room, the oldest silent one of the same peer (or, when the total is
        reached, of the peer with the most of them) is closed for it. Raises TooManyConnections when there is none."""
        if self._per_peer.get(peer, 0) >= self.limits.each:
            self._evict(peer)
        elif len(self._open) >= self.limits.total:
            self._evict(max(self._silent, key=lambda one: len(self._silent[one]), default=peer))
        self._open[key] = (peer, close)
        self._per_peer[peer] = self._per_peer.get(peer, 0) + 1
        self.silent(key)

    def _evict(self, peer: Hashable) -> None:
        self.rejected += 1
        oldest = next(iter(self._silent.get(peer, ())), None)
        if oldest is None:
            raise TooManyConnections("too many connections")
        close = self._open[oldest][1]
        self.closed(oldest)
        close()

    def silent(self, key: Hashable) -> None:
        """The connection waits for a request."""
        if key in self._open:
            self._silent.setdefault(self._open[key][0], {})[key] = None

    def busy(self, key: Hashable) -> None:
        """A request has come on it: it is not closed in favour of another one."""
        if key in self._open:
            self._forget_silent(key, self._open[key][0])

    def closed(self, key: Hashable) -> None:
        """The connection is gone; more than once does no harm."""
        if key not in self._open:
            return
        peer, _ = self._open.pop(key)
        self._forget_silent(key, peer)
        self._per_peer[peer] -= 1
        if not self._per_peer[peer]:
            del self._per_peer[peer]

    def _forget_silent(self, key: Hashable, peer: Hashable) -> None:
        waiting = self._silent.get(peer, {})
        waiting.pop(key, None)
        if not waiting:
            self._silent.pop(peer, None)


def peer_of(sock: socket.socket, address: Any) -> Hashable:
    """Who counts as one peer: a user on a unix socket, an IPv4 address, an IPv6 network of 64 bits."""
    if sock.family == socket.AF_UNIX:
        size = 12  # struct ucred of unix(7): pid, uid, gid
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)[4:8], "little")
    if sock.family == socket.AF_INET6:
        host = ipaddress.IPv6Address(address[0].partition("%")[0])
        return str(host.ipv4_mapped or ipaddress.ip_network((host, 64), strict=False))
    return str(address[0])


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most OPEN_FILES. Returns the soft limit found, 0 when it was
    high enough: programs started from here should get that one (select(2) does not work above 1024)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def room_for(share: float, most: int) -> int:
    """How many connections a listener may hold, given its share of this process's open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(8, min(most, int(soft * share)))
