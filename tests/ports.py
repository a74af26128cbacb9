"""A port for a server of a test."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that connections of others are given (ip(7), ip_local_port_range): none of them takes it in between."""


def free_port() -> int:
    """One of loopback that is free now, and that another test is unlikely to have chosen as well."""
    dice = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", dice.randrange(FIRST, LAST)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
