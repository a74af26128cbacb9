"""Gangs on several nodes: a later cut waits for a node that is not done with an image of the ranks that run on."""

from __future__ import annotations

import asyncio

import pytest

from tidewright.agent.depot import Depot
from tidewright.agent.gang import Gangs
from tidewright.base.errors import WorldError
from tidewright.wire.agent import Peer


async def until_held(gangs: Gangs, serial: int | None) -> bool:
    """Whether the node lets its ranks be held for a cut of that number at once."""
    args = {"job": 1, "attempt": 0, **({} if serial is None else {"serial": serial})}
    held = asyncio.create_task(gangs.handlers()["hold"](args))
    done, _ = await asyncio.wait([held], timeout=0.1)
    held.cancel()
    return bool(done)


def test_a_node_that_takes_an_image_is_held_for_that_image_only() -> None:
    """Letting its ranks go afterwards would let them go from the later cut, too, of which nobody would know."""

    async def body() -> None:
        gangs = Gangs("b", "token", lambda key: {})
        with gangs.imaging((1, 0), 5):
            assert await until_held(gangs, 5), "the cut that the image itself is taken at"
            assert await until_held(gangs, None), "a leader of an earlier version does not say for what"
            assert not await until_held(gangs, 6)
            waiting = asyncio.create_task(gangs.handlers()["hold"]({"job": 1, "attempt": 0, "serial": 6}))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 10)

    asyncio.run(body())


async def refused(gangs: Gangs, peers: tuple[Peer, ...]) -> str:
    """Why the cut that a node waits for does not take place."""
    with pytest.raises(WorldError) as caught:
        await asyncio.wait_for(gangs.still((1, 0), 6, peers), 10)
    return str(caught.value)


def test_a_leader_that_refuses_tells_those_who_wait_for_its_word() -> None:
    async def body() -> None:
        leader, follower = Gangs("a", "token", lambda key: {}), Gangs("b", "token", lambda key: {})
        depot = Depot("token", follower.handlers())
        await depot.open("127.0.0.1")
        peers = tuple(Peer(node=name, address="127.0.0.1", port=depot.port) for name in "ab")
        waiting = asyncio.create_task(refused(follower, peers))
        await leader.refuse((1, 0), 6, peers, "rank 0 has opened a terminal")
        assert await waiting == "rank 0 has opened a terminal"
        await depot.close()

    asyncio.run(body())


def test_who_is_to_end_waits_for_no_word() -> None:
    async def body() -> None:
        gangs = Gangs("b", "token", lambda key: {})
        peers = tuple(Peer(node=name, address="127.0.0.1", port=1) for name in "ab")
        waiting = asyncio.create_task(refused(gangs, peers))
        await asyncio.sleep(0.01)
        gangs.give_up((1, 1), "another attempt")
        gangs.give_up((1, 0), "it is to end")
        assert await waiting == "it is to end"

    asyncio.run(body())
