"""Sockets that tie a rank to its host, or that an image does not keep: what /proc says of those that its processes hold.

Seen with CRIU 4.2. UDP comes back with its addresses, and so cannot on a host that has others. Raw and ICMP sockets come
back, but without their addresses: they then hear what is not for them. Packet sockets know their interface by a number
that is another one's elsewhere. What waits in a UDP socket to be read is lost, as UDP may lose it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..processes import PROC

LISTEN, CLOSED = "0A", "07"
"""include/net/tcp_states.h, as /proc/net/tcp prints them."""
TABLES = {
    "TCP": ("tcp", "tcp6"),
    "UDP": ("udp", "udp6", "udplite", "udplite6"),
    "raw": ("raw", "raw6"),
    "ICMP": ("icmp", "icmp6"),
}
"""Kinds of sockets with addresses to their files in /proc/PID/net."""
NAME = "system.sockprotoname"
"""The extended attribute by which the kernel tells a socket's protocol (net/socket.c)."""
KEPT = frozenset({
    "TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6", "PING", "PINGv6", "PACKET", "UNIX",
    "UNIX-STREAM", "NETLINK",
})  # fmt: skip
"""Protocols that CRIU saves (criu/sockets.c, criu/sk-inet.c), as the kernel spells them."""
NO_INTERFACE, LOOPBACK = "0", "1"
"""Numbers of interfaces that mean the same on every host (LOOPBACK_IFINDEX, include/net/flow.h)."""

Why = tuple[str, str]
"""A socket's inode, and what is said of who holds it."""


class Held(NamedTuple):
    """A socket in a process's hands; ``kind`` is the kernel's name of its protocol, empty where it tells none."""

    pid: int
    kind: str


class Connection(NamedTuple):
    """One line of /proc/net/tcp or its like: both ends as (address, port)."""

    local: tuple[str, int]
    remote: tuple[str, int]
    state: str


Table = dict[str, Connection]
"""By inode."""


def ties(pids: Iterable[int], *, tcp: bool) -> list[tuple[int, str]]:
    """Who holds what cannot be taken along, and in which words; all of ``pids`` live in one network namespace.

    ``tcp``: whether TCP is looked at, too. Between the rank's own processes it is fine, and so is listening on every
    address or on loopback.
    """
    held = _held(pids)
    tables = {kind: _mine(held, kind) for kind in TABLES if held}
    found = list(_unknown(held)) + list(_packets(held))
    for kind, table in tables.items():
        if kind == "UDP":
            found += _udp(table)
        elif kind != "TCP":
            found += _forgotten(table, kind)
        elif tcp:
            found += _tcp(table)
    return [(held[inode].pid, why) for inode, why in found]


def _held(pids: Iterable[int]) -> dict[str, Held]:
    """By inode."""
    found: dict[str, Held] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in (PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if (target := os.readlink(entry)).startswith("socket:"):
                        found[target[8:-1]] = Held(pid, _kind(entry))
    return found


def _kind(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return os.getxattr(entry, NAME).rstrip(b"\0").decode()
    return ""


def _mine(held: dict[str, Held], kind: str) -> Table:
    pid = next(iter(held.values())).pid
    return {inode: each for inode, each in connections(pid, TABLES[kind]).items() if inode in held}


def _unknown(held: dict[str, Held]) -> Iterator[Why]:
    for inode, each in held.items():
        if each.kind and each.kind not in KEPT:
            yield inode, f"uses a socket of the kind {each.kind.removeprefix('AF_')}"


def _tcp(table: Table) -> Iterator[Why]:
    ends = {(each.local, each.remote) for each in table.values()}
    served = {each.local[1] for each in table.values() if each.state == LISTEN}
    for inode, each in table.items():
        if each.state == LISTEN:
            if not _anywhere(each.local[0]):
                yield inode, f"listens on {each.local[0]}, which is an address of this host alone"
        elif each.state != CLOSED and (each.remote, each.local) not in ends and not _comes_again(each, served):
            yield inode, f"has a connection to {_place(each.remote)}"


def _comes_again(each: Connection, served: set[int]) -> bool:
    """Whether this is a client's connection, over loopback, to a port that the rank itself listens on (a notebook's
    kernel). It ends with the save: its client finds it reset, and connects again when the restored rank listens."""
    return each.local[1] in served and ipaddress.ip_address(each.local[0]).is_loopback


def _udp(table: Table) -> Iterator[Why]:
    """A peer is the rank's own if one of its sockets is bound to that port there, or there and everywhere."""
    bound = {each.local for each in table.values()}
    for inode, each in table.items():
        address, port = each.remote
        if port and not _anywhere(address):
            yield inode, f"has a UDP connection to {_place(each.remote)}"
        elif port and not bound & {(address, port), ("0.0.0.0", port), ("::", port)}:
            yield inode, f"has a UDP connection to {_place(each.remote)}, outside the job"
        elif ipaddress.ip_address(each.local[0]).is_multicast:
            yield inode, f"listens to the group {each.local[0]}, and an image keeps no membership of groups"
        elif not _anywhere(each.local[0]):
            yield inode, f"has bound a UDP socket to {each.local[0]}, which is an address of this host alone"


def _forgotten(table: Table, kind: str) -> Iterator[Why]:
    """Where these have a port, it is a protocol's or a chosen number, and tells nothing."""
    for inode, each in table.items():
        for address in (each.remote[0], each.local[0]):
            if not ipaddress.ip_address(address).is_unspecified:
                yield inode, f"has tied a socket for {kind} packets to {address}, which an image does not keep"
                break


def _packets(held: dict[str, Held]) -> Iterator[Why]:
    """proc(5), net/packet: the interface is the fifth column, the inode the last."""
    for each in list(held.values())[:1]:
        for line in _lines(each.pid, "packet"):
            fields = line.split()
            if fields[-1] in held and fields[4] not in (NO_INTERFACE, LOOPBACK):
                yield fields[-1], f"listens to packets on interface {fields[4]} of this host"


def _anywhere(address: str) -> bool:
    """Whether every host has this address."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_unspecified or parsed.is_loopback


def _place(end: tuple[str, int]) -> str:
    return f"{end[0]} port {end[1]}"


def connections(pid: int, names: Iterable[str]) -> Table:
    """Sockets of a process's network namespace in these files of /proc/PID/net, by inode."""
    found = {}
    for name in names:
        for line in _lines(pid, name):
            fields = line.split()
            found[fields[9]] = Connection(_end(fields[1]), _end(fields[2]), fields[3])
    return found


def _lines(pid: int, name: str) -> list[str]:
    """Without the heading. Kernels without a protocol have no file for it."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
    return []


def _end(text: str) -> tuple[str, int]:
    """("127.0.0.1", 80) of "0100007F:0050"; IPv4 in IPv6 as IPv4, so that both ends of a connection look alike."""
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    parsed = ipaddress.ip_address(b"".join(words))
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed), int(port, 16)
