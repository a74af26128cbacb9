"""Gangs on several nodes: a later cut waits for a node that is not done with an image of the ranks that run on."""

from __future__ import annotations

import asyncio

from tidewright.agent.gang import Gangs


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
