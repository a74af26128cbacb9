"""Ports for the rendezvous of a gang's ranks. A rank binds its port seconds after the port was chosen.

So no ephemeral port is chosen (ip(7), ip_local_port_range): the kernel assigns those to any socket meanwhile,
and a program that finds its port in use fails as if by its own fault.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from zlib import crc32

from ...base.errors import WorldError

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST = 20_000, 65_535
"""Well-known services are below."""
TORCH = range(29_400, 29_600)
"""torchrun's default rendezvous ports, left to programs that users start themselves."""


class PortAllocator:
    """Each port once, in a circle that begins at a random port: other controllers of this machine draw from it, too."""

    def __init__(self, ephemeral: range | None = None) -> None:
        reserved = ephemeral if ephemeral is not None else ephemeral_ports()
        below, above = _without(range(FIRST, LAST), reserved)
        self._ports = [port for part in (below, above) for rest in _without(part, TORCH) for port in rest]
        self._next = random.SystemRandom().randrange(len(self._ports)) if self._ports else 0

    def take(self, name: str = "") -> int:
        """A port that is free on this machine (on others, by chance); the same one again for the same ``name``, as long as it
        is free. Raises WorldError when there is none."""
        at = crc32(name.encode()) if name else self._next
        for step in range(len(self._ports)):
            place = (at + step) % len(self._ports)
            if not name:
                self._next = place + 1
            if _free(self._ports[place]):
                return self._ports[place]
        return _any()


def ephemeral_ports() -> range:
    """The ports that the kernel assigns by itself."""
    first, last = RANGE.read_text().split()
    return range(int(first), int(last) + 1)


def _without(ports: range, hole: range) -> tuple[range, range]:
    """The ports before and after the hole: ranges, as asking for each of 45,000 ports would delay every start."""
    if not hole:
        return ports, range(0)
    return range(ports.start, min(ports.stop, hole.start)), range(max(ports.start, hole.stop), ports.stop)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _any() -> int:
    """Where every port is ephemeral: one of those."""
    with socket.socket() as probe:
        try:
            probe.bind(("", 0))
        except OSError as error:
            raise WorldError(f"this machine has no free port left: {error.strerror}") from error
        port: int = probe.getsockname()[1]
        return port
