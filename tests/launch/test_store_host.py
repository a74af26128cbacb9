"""One process of a machine hosts a store; those that come later are clients, as at a port that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidewright.launch
from tidewright.launch.inject._tidewright.rendezvous import store_host

INJECT = Path(tidewright.launch.__file__).parent / "inject"
DEAD = """\
import sys
sys.path.insert(0, sys.argv[1])
from _tidewright.rendezvous import store_host
held = store_host.bound(sys.argv[2])
print("bound", flush=True)
sys.stdin.read()
"""


class Keys:
    """A store with its keys, and how often it was emptied."""

    def __init__(self, keys: dict[str, str], name: str) -> None:
        self.keys, self.name, self.host, self.port, self.begun = keys, name, "127.0.0.1", 29500, 0

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.keys.get(key, "") == expected:
            self.keys[key] = desired
        return self.keys[key].encode()

    def get(self, key: str) -> bytes:
        return self.keys[key].encode()

    def begin(self, host: str) -> None:
        self.begun += 1
        self.keys.clear()
        self.keys[store_host.KEY] = host


@pytest.fixture
def name() -> str:
    return f"tcp/127.0.0.1:29500/{os.urandom(8).hex()}"


def test_a_second_host_fails_while_the_first_lives_and_follows_it_when_it_has_ended(name: str) -> None:
    other = os.urandom(16).hex()
    argv = [sys.executable, "-I", "-S", "-c", DEAD, str(INJECT), other]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "bound\n"
        store, claims = Keys({store_host.KEY: other, "left": "over"}, name), Keys({store_host.KEY: other}, "host")
        with pytest.raises(RuntimeError, match=r"port 29500 of .* is in use"):
            store_host.host(store, claims)
        assert not store.begun and store.keys["left"] == "over"
        first.communicate()
    store_host.host(store, claims)
    assert store.begun == 1 and "left" not in store.keys
    assert store.keys[store_host.KEY] == claims.keys[store_host.KEY] != other


def test_a_process_that_hosts_a_store_may_ask_for_it_again(name: str) -> None:
    store, claims = Keys({}, name), Keys({}, "host")
    store_host.host(store, claims)
    store_host.host(store, claims)
    assert store.begun == 1
