"""Rounds of ranks that are restored from an image: dead ranks are not counted."""

from __future__ import annotations

from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

WORLD = b"w/control"


def gather(server: RendezvousServer, rank: int, name: bytes) -> int | None:
    """The number of the round that ``rank`` ends in; None while others are missing."""
    answer = server._machine.store("1").apply(fr.GATHER, WORLD, [str(rank).encode(), b"2", name]).answer
    return None if answer is None else fr.to_number(answer[0])


def test_a_rank_that_was_let_go_before_the_dump_is_not_there_afterwards() -> None:
    server = RendezvousServer(None)
    server.open_job("1", "token")
    assert gather(server, 0, b"a0") is None and gather(server, 1, b"a1") == 1 and gather(server, 0, b"a0") == 1
    assert gather(server, 1, b"b1") is None, "its node released it while the other node was still dumping"
    image = server.dump("1")
    assert gather(server, 0, b"b0") == 2
    server.load("1", image)
    assert gather(server, 0, b"c0") is None, "the round would have ended with a rank that is dead"
    assert gather(server, 1, b"c1") == 2 and gather(server, 0, b"c0") == 2
