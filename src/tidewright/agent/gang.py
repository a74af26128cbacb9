"""Making a gang stand still. The agent of its first node leads the cut; the others act as its hands, and wait for word.

The cut itself is ``checkpoint.barrier``; here it is only carried over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import WorldError
from ..base.units import SECOND
from ..checkpoint.barrier import LONGEST_STEP_US, UNHURRIED_STEP_US, Cuts, Pages, PageState, cut, release
from ..wire.agent import Peer
from .depot import DepotClient
from .pages import LocalPages

log = logging.getLogger(__name__)

CUT_US = 60 * SECOND
"""Longest hold of a gang whose ranks do not all come to a standstill; a step of training takes seconds at most."""
WORD_S = CUT_US / SECOND + 15
"""How long a node waits for the leader's word: a cut, and what the leader may have had to finish before."""
HOLD_S = 600.0
"""How long the leader waits for a node that has an image to finish before its ranks may be held once more."""

Key = tuple[int, int]
"""(job, attempt)"""


class Still(NamedTuple):
    """A gang at a standstill: how long it took, microseconds, and over how many ranks of a world."""

    hold_us: int
    ranks: int


class Gangs:
    """``boxes`` finds the boxes of a gang's ranks on this node, None for one that is not here."""

    def __init__(self, node: str, token: str, boxes: Callable[[Key], dict[int, Path] | None]) -> None:
        self._node, self._token, self._boxes = node, token, boxes
        self._words: dict[tuple[int, int, int], asyncio.Future[str]] = {}
        self._imaging: dict[Key, tuple[int, asyncio.Event]] = {}

    async def still(
        self, key: Key, serial: int, peers: tuple[Peer, ...], *, hurry: bool = True,
        then: Callable[[], None] = lambda: None,
    ) -> Still:  # fmt: skip
        """Bring the whole gang to a standstill; without ``hurry`` longer steps are trained to their end first. The leader
        does ``then`` before any node is told, and may let its ranks go. Raises WorldError, with all ranks running on."""
        if len(peers) > 1 and peers[0].node != self._node:
            return await self._follow(key, serial)
        others = [peer for peer in peers if peer.node != self._node]
        return await self._lead(key, serial, others, LONGEST_STEP_US if hurry else UNHURRIED_STEP_US, then)

    async def _lead(
        self, key: Key, serial: int, others: list[Peer], longest_step_us: int, then: Callable[[], None]
    ) -> Still:
        clients = [DepotClient(peer, self._token) for peer in others]
        parties: list[Pages] = [self._pages(key), *(PeerPages(client, key, serial) for client in clients)]
        why = "its leader failed"
        try:
            report = await asyncio.to_thread(cut, parties, timeout_us=CUT_US, longest_step_us=longest_step_us)
            await self._do(then, key)
            why = ""
            return Still(report.hold_us, report.ranks)
        except WorldError as error:
            why = str(error)
            raise
        finally:
            await asyncio.gather(*(asyncio.to_thread(self._send_word, client, key, serial, why) for client in clients))

    async def _do(self, then: Callable[[], None], key: Key) -> None:
        try:
            then()
        except Exception as error:
            await self.let_go(key)
            raise WorldError(f"what its ranks have left for each other cannot be kept: {error}") from error

    async def refuse(self, key: Key, serial: int, peers: tuple[Peer, ...], why: str) -> None:
        """There will be no cut of that number: other nodes, if this one would lead it, need not wait for word of it."""
        others = [peer for peer in peers if peer.node != self._node]
        if others and peers[0].node == self._node:
            clients = [DepotClient(peer, self._token) for peer in others]
            await asyncio.gather(*(asyncio.to_thread(self._send_word, client, key, serial, why) for client in clients))

    def give_up(self, key: Key, why: str) -> None:
        """Wait for no word on a gang any more: it is to end, and its leader may be dead."""
        for (job, attempt, _), word in self._words.items():
            if (job, attempt) == key and not word.done():
                word.set_result(why)

    @staticmethod
    def _send_word(client: DepotClient, key: Key, serial: int, why: str) -> None:
        with contextlib.suppress(WorldError):  # whoever hears nothing lets its ranks go by itself
            client.ask("word", {"job": key[0], "attempt": key[1], "serial": serial, "why": why})
        client.close()

    async def _follow(self, key: Key, serial: int) -> Still:
        loop = asyncio.get_running_loop()
        began = loop.time()
        word = self._word((*key, serial))
        try:
            why = await asyncio.wait_for(word, WORD_S)
        except TimeoutError:
            why = "no word from the node that leads the cut"
        finally:
            self._words.pop((*key, serial), None)
        if why:
            await self.let_go(key)
            raise WorldError(why)
        return Still(int((loop.time() - began) * SECOND), 0)

    def _word(self, key: tuple[int, int, int]) -> asyncio.Future[str]:
        if key not in self._words:
            self._words[key] = asyncio.get_running_loop().create_future()
        return self._words[key]

    async def let_go(self, key: Key) -> None:
        """Let the ranks of a gang on this node build their connections anew and run on."""
        await asyncio.to_thread(release, [self._pages(key)])

    def _pages(self, key: Key) -> LocalPages:
        return LocalPages(self._boxes(key) or {})

    def handlers(self) -> dict[str, Any]:
        """What a leader asks of this node, for its depot."""
        return {"hold": self._hold, "pages": self._read, "cuts": self._publish, "free": self._free, "word": self._hear}

    @contextlib.contextmanager
    def imaging(self, key: Key, serial: int) -> Iterator[None]:
        """While an image of a gang that runs on is taken on this node: no later cut may begin before its ranks are let
        go, which would let them go from that cut, too."""
        done = asyncio.Event()
        self._imaging[key] = serial, done
        try:
            yield
        finally:
            del self._imaging[key]
            done.set()

    async def _hold(self, args: dict[str, Any]) -> None:
        taking = self._imaging.get((int(args["job"]), int(args["attempt"])))
        if taking is not None and taking[0] != args.get("serial", taking[0]):
            await taking[1].wait()
        await asyncio.to_thread(self._known(args).hold)

    async def _read(self, args: dict[str, Any]) -> Any:
        return msgspec.to_builtins(await asyncio.to_thread(self._known(args).read))

    async def _publish(self, args: dict[str, Any]) -> None:
        await asyncio.to_thread(self._known(args).publish, msgspec.convert(args["cuts"], Cuts))

    async def _free(self, args: dict[str, Any]) -> None:
        await asyncio.to_thread(self._known(args).release)

    async def _hear(self, args: dict[str, Any]) -> None:
        word = self._word((int(args["job"]), int(args["attempt"]), int(args["serial"])))
        if not word.done():
            word.set_result(str(args["why"]))

    def _known(self, args: dict[str, Any]) -> LocalPages:
        boxes = self._boxes((int(args["job"]), int(args["attempt"])))
        if boxes is None:
            raise WorldError(f"job {args['job']} attempt {args['attempt']} is not on this node")
        return LocalPages(boxes)


class PeerPages:
    """The control pages of the ranks on another node."""

    def __init__(self, client: DepotClient, key: Key, serial: int) -> None:
        self._client, self._what = client, {"job": key[0], "attempt": key[1]}
        self._serial = serial

    def hold(self) -> None:
        self._client.ask("hold", {**self._what, "serial": self._serial}, HOLD_S)

    def read(self) -> list[PageState]:
        return msgspec.convert(self._client.ask("pages", self._what), list[PageState])

    def publish(self, cuts: Any) -> None:
        self._client.ask("cuts", {**self._what, "cuts": msgspec.to_builtins(cuts)})

    def release(self) -> None:
        self._client.ask("free", self._what)


def boxes_of(directories: Iterable[tuple[int, Path]]) -> dict[int, Path]:
    """The boxes below rank directories, by rank."""
    return {rank: directory / "box" for rank, directory in directories}
