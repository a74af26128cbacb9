"""Ports at which the ranks of a gang meet. A rank binds its port seconds after the port was chosen.

So it is none that the kernel gives to whoever asks for any (ip(7), ip_local_port_range): those are taken all the time,
and a program that finds its port taken ends as if it had a fault of its own.
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
"""Where torchrun meets by default: left to those whom users start themselves."""


class PortAllocator:
    """Each port once, in a circle that begins anywhere: other controllers of this machine take theirs from it, too."""

    def __init__(self, given_away: range | None = None) -> None:
        theirs = given_away if given_away is not None else kernels_own()
        below, above = _without(range(FIRST, LAST), theirs)
        self._endpoints = [port for part in (below, above) for rest in _without(part, TORCH) for port in rest]
        self._next = random.SystemRandom().randrange(len(self._endpoints)) if self._endpoints else 0

    def take(self, name: str = "") -> int:
        """A port that nobody uses now on this machine (and, beyond it, by chance); the same again for the same ``name``, as
        long as nobody does. Raises WorldError: there is none."""
        at = crc32(name.encode()) if name else self._next
        for step in range(len(self._endpoints)):
            place = (at + step) % len(self._endpoints)
            if not name:
                self._next = place + 1
            if _free(self._endpoints[place]):
                return self._endpoints[place]
        return _any()


def kernels_own() -> range:
    """The ports that the kernel gives away."""
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
    """Where the kernel gives away every port: one of those."""
    with socket.socket() as probe:
        try:
            probe.bind(("", 0))
        except OSError as error:
            raise WorldError(f"this machine has no free port left: {error.strerror}") from error
        port: int = probe.getsockname()[1]
        return port
