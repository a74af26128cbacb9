"""The store that torch gets: a ``dist.Store`` whose keys are kept by the agent, so that no rank hosts anything.

``TidewrightStore`` serves the process groups of one world; ``Listening`` takes the place of ``TCPStore``, whose first
argument, a host and a port, becomes a mere name.
"""

from __future__ import annotations

import datetime
import socket

import torch.distributed as dist

from . import page as pg
from .process_control import control
from .rendezvous import frames, store_host
from .rendezvous.client import Late, link

LATE = getattr(dist, "DistStoreError", RuntimeError)
DEFAULT_TIMEOUT = datetime.timedelta(seconds=300)
"""As torch's Store::kDefaultTimeout."""


_alive = []
"""Stores that torch may have put behind a PrefixStore: C++ does not keep the Python part of them."""


def _raw(value):
    return value.encode() if isinstance(value, str) else bytes(value)


class TidewrightStore(dist.Store):
    """Keys below ``name``. Waiting reads wait at the agent, and survive a cut."""

    depends = True
    """Whether a read of it waits for what another rank's program does."""

    def __init__(self, name, timeout=DEFAULT_TIMEOUT):
        super().__init__()
        control.attach()
        if self.depends:
            _alive.append(self)
        self.name = name
        self._world = name.encode()
        self._late = timeout

    @property
    def timeout(self):
        """How long a read waits for its key."""
        return self._late

    def set_timeout(self, timeout):
        """As torch's Store."""
        self._late = timeout

    def clone(self):
        """As torch's Store: the same keys."""
        return TidewrightStore(self.name, self._late)

    def _ask(self, code, *parts):
        return link.ask(code, self._world, parts)

    def _await(self, code, keys, timeout=None):
        wait_s = (self._late if timeout is None else timeout).total_seconds()
        if self.depends:
            control.words[pg.STORE_WAIT] = 1
        try:
            return link.ask(code, self._world, [_raw(key) for key in keys], wait_s=wait_s)
        except Late:
            names = ", ".join(key if isinstance(key, str) else repr(key) for key in keys)
            raise LATE(f"wait timeout after {wait_s * 1000:.0f}ms, keys: {names}") from None
        finally:
            if self.depends:
                control.words[pg.STORE_WAIT] = min(1, link.waiting)

    def set(self, key, value):
        """As torch's Store."""
        self._ask(frames.SET, _raw(key), _raw(value))

    def get(self, key):
        """As torch's Store: waits for the key."""
        return self._await(frames.GET, [key])[0]

    def add(self, key, value):
        """As torch's Store."""
        return frames.to_number(self._ask(frames.ADD, _raw(key), frames.number(value))[0])

    def check(self, keys):
        """As torch's Store."""
        return bool(frames.to_number(self._ask(frames.CHECK, *[_raw(key) for key in keys])[0]))

    def compare_set(self, key, expected, desired):
        """As torch's Store."""
        return self._ask(frames.CAS, _raw(key), _raw(expected), _raw(desired))[0]

    def delete_key(self, key):
        """As torch's Store."""
        return bool(frames.to_number(self._ask(frames.DELETE, _raw(key))[0]))

    def wait(self, keys, timeout=None):
        """As torch's Store."""
        self._await(frames.WAIT, keys, timeout)

    def num_keys(self):
        """As torch's Store."""
        return frames.to_number(self._ask(frames.COUNT)[0])

    def append(self, key, value):
        """As torch's Store."""
        self._ask(frames.APPEND, _raw(key), _raw(value))

    def multi_get(self, keys):
        """As torch's Store: waits for all of them."""
        return self._await(frames.MGET, keys)

    def multi_set(self, keys, values):
        """As torch's Store."""
        self._ask(frames.MSET, *[_raw(part) for index, key in enumerate(keys) for part in (key, values[index])])

    def list_keys(self):
        """As torch's Store."""
        return [key.decode() for key in self._ask(frames.KEYS)]

    def queue_push(self, key, value):
        """As torch's Store."""
        self._ask(frames.PUSH, _raw(key), _raw(value))

    def queue_pop(self, key, block=True):
        """As torch's Store."""
        if block:
            return self._await(frames.POP, [key])[0]
        if not self.queue_len(key):
            raise LATE(f"queue {key} is empty")
        return self._await(frames.POP, [key], datetime.timedelta(milliseconds=1))[0]

    def queue_len(self, key):
        """As torch's Store."""
        return frames.to_number(self._ask(frames.DEPTH, _raw(key))[0])

    def has_extended_api(self):
        """As torch's Store: append, multi_get and multi_set are there."""
        return True


class Listening(TidewrightStore):
    """What a program gets that asks for a ``TCPStore``: no port is opened, host and port only name the keys."""

    def __init__(
        self, host_name, port=0, world_size=None, is_master=False, timeout=DEFAULT_TIMEOUT, wait_for_workers=True,
        multi_tenant=False, master_listen_fd=None, use_libuv=None,
    ):  # fmt: skip
        self.host = host_name
        self.port = port or _free_port()
        self._master = is_master
        super().__init__(f"tcp/{host_name}:{self.port}", timeout)
        if is_master and multi_tenant:
            store_host.host(self, TidewrightStore(f"host/{self.name}", timeout))
        elif is_master:
            self.begin("1")
        else:
            self._await(frames.WAIT, [store_host.KEY])
        if world_size and world_size > 0 and wait_for_workers:
            self._gather(world_size)

    def begin(self, host):
        """Without keys but that of its host."""
        link.ask(frames.NEW, self._world, [store_host.KEY.encode(), host.encode()])

    def _gather(self, size):
        if self.add("tidewright/workers", 1) == size:
            self.set("tidewright/complete", b"1")
        if self._master:
            self.wait(["tidewright/complete"])

    @property
    def libuvBackend(self):  # noqa: N802
        """As TCPStore."""
        return False


def _free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]
