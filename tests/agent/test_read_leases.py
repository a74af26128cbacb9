"""Storing an image waits for nodes that copy it because its job resumes there, up to a limit."""

from __future__ import annotations

import threading
import time

import pytest

from tidewright.agent.checkpointing import image_leases
from tidewright.agent.checkpointing.image_leases import ReadLeases

KEY, OTHER = (7, 1), (8, 1)


def waited(leases: ReadLeases, grace_s: float = 0.0, longest_s: float = 30.0) -> threading.Thread:
    thread = threading.Thread(target=leases.wait, args=(KEY, grace_s, longest_s), daemon=True)
    thread.start()
    return thread


def test_nobody_waits_without_readers() -> None:
    leases = ReadLeases()
    leases.begin(OTHER)
    began = time.monotonic()
    waited(leases).join(30)
    assert time.monotonic() - began < 30


def test_the_last_reader_ends_the_wait() -> None:
    leases = ReadLeases()
    leases.begin(KEY)
    leases.begin(KEY)
    thread = waited(leases)
    leases.end(KEY)
    thread.join(0.05)
    assert thread.is_alive(), "one still reads"
    leases.end(KEY)
    thread.join(30)
    assert not thread.is_alive()


def test_a_reader_within_the_grace_is_waited_for() -> None:
    leases = ReadLeases()
    thread = waited(leases, grace_s=20.0)
    thread.join(0.05)
    assert thread.is_alive(), "a reader may be about to come"
    leases.begin(KEY)
    leases.end(KEY)
    assert thread.is_alive(), "and another file of it"


def test_unless_told_otherwise_a_wait_grants_the_usual_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_leases, "GRACE_S", 20.0)
    thread = threading.Thread(target=ReadLeases().wait, args=(KEY,), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()


def test_a_reader_that_never_ends_is_not_waited_for_for_ever() -> None:
    leases = ReadLeases()
    leases.begin(KEY)
    thread = waited(leases, longest_s=0.05)
    thread.join(30)
    assert not thread.is_alive()
    leases.end(KEY)
    waited(leases).join(30)
