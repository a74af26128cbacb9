"""Which process hosts a ``TCPStore``: of several that would on one machine, all but the first fail, as at a port that is in use.

torchrun relies on it: agents that share a machine all try to host the store of their rendezvous, and fall back to being clients.
"""

import os
import socket

KEY = "tidewright/master"
_held = {}
"""Stores that this process hosts: the sockets by which others see that it lives."""


def host(store):
    """Become the host of ``store``; its keys are then empty. Raises RuntimeError when another process on this machine is."""
    if store.name in _held:
        return
    mine = os.urandom(16).hex()
    _held[store.name] = _bound(mine)
    found = store.compare_set(KEY, "", mine).decode()
    if found != mine and _lives(found):
        _held.pop(store.name).close()
        raise RuntimeError(f"The server socket has failed to listen: port {store.port} of {store.host} is in use")
    store.begin(mine)


def _bound(name):
    """A socket that keeps a name in use for as long as this process lives, also in an image of it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"\0tidewright/store/{name}")
    return made


def _lives(name):
    try:
        _bound(name).close()
    except OSError:
        return True
    return False
