"""Which process hosts a ``TCPStore``: of several that would on one machine, all but the first fail, as at a port that is in use.

torchrun relies on it: agents that share a machine all try to host the store of their rendezvous, and fall back to being clients.
"""

import os
import socket
import time

KEY = "tidewright/master"
POLL_S = 0.01
_held = {}
"""Stores that this process hosts: the sockets by which others see that it lives."""


def host(store, claims):
    """Become the host of ``store``, whose keys are then empty. ``claims``: a store of its own that says who hosts it. Raises
    RuntimeError when another process on this machine does, once that has emptied it."""
    if store.name in _held:
        return
    mine = os.urandom(16).hex()
    _held[store.name] = bound(mine)
    found = claims.compare_set(KEY, "", mine).decode()
    while found != mine and not _lives(found):
        found = claims.compare_set(KEY, found, mine).decode()
    if found == mine:
        store.begin(mine)
        return
    _held.pop(store.name).close()
    while bytes(store.get(KEY)).decode() != found and _lives(found):
        time.sleep(POLL_S)
    raise RuntimeError(f"The server socket has failed to listen: port {store.port} of {store.host} is in use")


def bound(name):
    """A socket that keeps a name in use for as long as this process lives, also in an image of it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"\0tidewright/store/{name}")
    return made


def _lives(name):
    try:
        bound(name).close()
    except OSError:
        return True
    return False
