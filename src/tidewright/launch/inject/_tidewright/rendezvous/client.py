"""The rank's end of the rendezvous store: plain sockets that can be dropped at any moment and are opened when needed.

A request that waits for keys is asked again after the connection was dropped; one that does not is never interrupted,
because ``drop`` waits for it first. Either is asked again when the store's agent died; it is carried out once. No
torch here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time

from .. import agent_endpoint
from . import frames

PATIENCE_S = 120.0
"""How long the store may be gone (its agent being started again) before a rank gives up."""


class Late(Exception):
    """The keys did not come in time."""


class Link:
    """This process's connections, one per thread that asks."""

    def __init__(self):
        self._cond = threading.Condition()
        self._sockets = {}
        self._busy = 0
        self._drops = 0
        self._shut = self._over = False
        self.waiting = 0
        """How many threads wait for a key that another rank must set."""
        self._name, self._numbers = os.urandom(8), itertools.count(1)
        """What this process calls itself, and its requests, where it matters that they are carried out once."""

    def ask(self, code, world, parts, wait_s=None, patience_s=PATIENCE_S):
        """Do one operation; ``wait_s``: how long its keys may be missing (None: it does not wait for
        keys, 0: without limit).

        Raises ``Late``, and ``OSError`` when the store cannot be reached for ``patience_s``.
        """
        code, parts = self._counted(code, parts)
        until = None if not wait_s else time.monotonic() + wait_s
        waits = wait_s is not None
        slept = 0.0
        while True:
            drops = self._begin(waits)
            try:
                left_ms = 0 if until is None else max(1, int((until - time.monotonic()) * 1000))
                return self._talk(code, [world, frames.number(left_ms), *parts])
            except Late:
                raise
            except OSError:
                self._forget()
                if drops == self._drops:
                    slept = _nap(slept, patience_s)
                elif wait_s:
                    until = time.monotonic() + wait_s  # standing still counts for nothing, and clocks differ
            except BaseException:
                self._forget()  # an answer may still be on its way
                raise
            finally:
                self._end(waits)

    def _counted(self, code, parts):
        if code not in frames.COUNTED:
            return code, parts
        name = self._name + frames.number(threading.get_ident())
        return frames.ONCE, [name, frames.number(next(self._numbers)), bytes((code,)), *parts]

    def drop(self):
        """Close everything; threads that ask stand still until ``reopen``."""
        with self._cond:
            self._shut = True
            self._drops += 1
            while self._busy:
                self._cond.wait()
            for found in self._sockets.values():
                _close(found)
            self._sockets = {}

    def end(self):
        """Close everything permanently; later requests raise."""
        self.drop()
        with self._cond:
            self._over = True
            self._cond.notify_all()

    def reopen(self):
        """Let them ask again, wherever reach.json says now."""
        with self._cond:
            self._shut = False
            self._cond.notify_all()

    def before_fork(self):
        """No connection is being made that is not noted yet."""
        self._cond.acquire()

    def after_fork(self):
        """In the parent."""
        self._cond.release()

    def forked(self):
        """In a forked child: the connections are the parent's. Closed without a word."""
        sockets, self._sockets = self._sockets, {}
        for found in sockets.values():
            found.close()
        self._cond = threading.Condition()
        self._name = os.urandom(8)
        self._busy = self.waiting = 0
        self._shut = False

    def _begin(self, waits):
        with self._cond:
            while self._shut and not self._over:
                self._cond.wait()
            if self._over:
                raise RuntimeError("this process is ending: it has left the rendezvous store")
            if waits:
                self.waiting += 1
            else:
                self._busy += 1
            return self._drops

    def _end(self, waits):
        with self._cond:
            if waits:
                self.waiting -= 1
            else:
                self._busy -= 1
            self._cond.notify_all()

    def _talk(self, code, parts):
        found = self._sockets.get(threading.get_ident()) or self._connect()
        found.sendall(frames.pack(code, parts))
        outcome, answer = _receive(found)
        if outcome == frames.LATE:
            raise Late()
        if outcome != frames.OK:
            raise RuntimeError("rendezvous store: " + b" ".join(answer).decode(errors="replace"))
        return answer

    def _connect(self):
        where = agent_endpoint.read()
        if not where:
            raise OSError("no reach.json")
        found = self._open(where["address"], int(where["port"]))
        _greet(found, where["token"].encode())
        found.settimeout(None)
        return found

    def _open(self, host, port):
        """A connection to the store, at the first of its addresses that answers."""
        failure = None
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found = self._noted(family, kind, protocol)
            try:
                found.settimeout(10)
                found.connect(place)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found
            except OSError as error:
                failure = error
                self._forget()
        raise failure or OSError("the rendezvous store has no address")

    def _noted(self, *kind):
        """A socket, known to ``drop`` and to a fork before it is connected."""
        with self._cond:
            if self._shut:
                raise OSError("standing still")
            found = self._sockets[threading.get_ident()] = socket.socket(*kind)
            return found

    def _forget(self):
        with self._cond:
            found = self._sockets.pop(threading.get_ident(), None)
            if found is not None:
                _close(found)


def _greet(found, ticket):
    """Show the store that we have the job's ticket, which is not sent, and have it show the same."""
    rank = os.urandom(frames.NONCE)
    found.sendall(frames.pack(frames.CHALLENGE, [rank]))
    outcome, store = _receive(found)
    if outcome == frames.OK and len(store) == 1:
        found.sendall(frames.pack(frames.PROVE, [frames.proof(b"rank", ticket, rank, store[0])]))
        outcome, proof = _receive(found)
        if outcome == frames.OK and proof == [frames.proof(b"store", ticket, rank, store[0])]:
            return
    raise OSError("the rendezvous store does not know this job")


def _nap(slept, patience_s):
    if slept >= patience_s:
        raise OSError(f"the rendezvous store has not answered for {patience_s:.0f} s")
    nap = min(0.5, max(0.005, slept / 4))
    time.sleep(nap)
    return slept + nap


def _receive(found):
    return frames.unpack(_exactly(found, frames.length(_exactly(found, 4))))


def _exactly(found, size):
    parts = bytearray()
    while len(parts) < size:
        some = found.recv(size - len(parts))
        if not some:
            raise OSError("the rendezvous store has hung up")
        parts += some
    return bytes(parts)


def _close(found):
    with contextlib.suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)
    found.close()


link = Link()
