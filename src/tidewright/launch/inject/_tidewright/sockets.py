"""The sockets that this process has open. No torch here."""

from __future__ import annotations

import os


def sockets():
    """The sockets this process has open, by the kernel's names for them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
