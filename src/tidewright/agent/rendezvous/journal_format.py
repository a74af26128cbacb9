"""A job's journal as bytes: a snapshot of its store, then the operations that have changed it since."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

import msgspec

from ...launch.inject._tidewright.rendezvous import frames as fr
from .store import KeyValueStore, decode, encode


def snapshot(store: KeyValueStore) -> bytes:
    """What a journal begins with. It may be longer than a frame."""
    text = encode(store)
    return fr.HEAD.pack(len(text)) + text


def record(code: int, world: bytes, parts: Sequence[bytes]) -> bytes:
    """One operation."""
    found: bytes = fr.pack(code, [world, *parts])
    return found


def replay(text: bytes) -> KeyValueStore:
    """The store of a journal, up to the first record that is not whole: the agent was killed while it wrote it, before it
    answered the request."""
    store = KeyValueStore()
    with contextlib.suppress(ValueError, IndexError, KeyError, TypeError, struct.error, msgspec.DecodeError):
        (size,) = fr.HEAD.unpack(text[:4])
        store = decode(text[4 : 4 + size])
        at = 4 + size
        while at < len(text):
            size = fr.length(text[at : at + 4])
            at += 4
            if at + size > len(text):
                break  # cut off between two parts it would look like a shorter operation
            code, parts = fr.unpack(text[at : at + size])
            store.apply(code, parts[0], parts[1:])
            at += size
    return store
