"""The control pages of a gang's ranks, here and on other nodes. Who leads a cut, and what follows from it, is decided in
``machine.cuts``; the cut itself is ``checkpoint.cut.barrier``, and is only carried over the network here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from ...base.errors import WorldError
from ...checkpoint.cut.barrier import LONGEST_STEP_US, UNHURRIED_STEP_US, Cuts, Pages, PageState, cut, release
from ...wire.agent import Peer
from ..machine.actions import CutGang, SendCutResult
from ..machine.cuts import CUT_US
from ..peer_rpc import PeerClient
from .control_pages import LocalPages

HOLD_S = 600.0
"""How long the leader waits for a node that has an image to finish before its ranks may be held once more."""

Key = tuple[int, int]
"""(job, attempt)"""


class Gangs:
    """``rank_dirs`` finds the directories of a gang's ranks on this node, None for one that is not here; ``may_hold`` returns
    when another node may hold them for an image; ``decided`` gets the result of a cut that another node leads."""

    def __init__(
        self,
        token: str,
        rank_dirs: Callable[[Key], dict[int, Path] | None],
        may_hold: Callable[[Key, int | None], Awaitable[None]],
        decided: Callable[[Key, int, str], None],
    ) -> None:
        self._token, self._rank_dirs, self._may_hold, self._decided = token, rank_dirs, may_hold, decided
        self._led: dict[tuple[Key, int], list[PeerClient]] = {}
        """Connections of cuts that this node leads, until their result is sent: ranks stand still, and new ones take time."""
        self._held_for: dict[Key, int] = {}
        """The cut that a gang's ranks here were last held for: what its leader sends late of an earlier one is out of date."""
        self._changing: dict[Key, asyncio.Lock] = {}
        """Held while the ranks here are held or released: nothing comes in between the look and the act."""

    async def cut(self, key: Key, step: CutGang) -> int:
        """Lead a cut; microseconds from the request to the standstill. Raises WorldError, with all ranks running on."""
        clients = self._led[key, step.cut] = self._clients(step.others)
        self._held_for[key] = step.cut
        parties: list[Pages] = [self._pages(key), *(PeerPages(client, key, step.cut) for client in clients)]
        longest = LONGEST_STEP_US if step.hurry else UNHURRIED_STEP_US
        return (await asyncio.to_thread(cut, parties, timeout_us=CUT_US, longest_step_us=longest)).hold_us

    def _clients(self, peers: tuple[Peer, ...]) -> list[PeerClient]:
        return [PeerClient(peer, self._token) for peer in peers]

    async def send_result(self, key: Key, step: SendCutResult) -> None:
        """Send the result of a cut to the agents of the gang's other nodes."""
        clients = self._led.pop((key, step.cut), None) or self._clients(step.others)
        await asyncio.gather(*(asyncio.to_thread(self._send, client, key, step) for client in clients))

    @staticmethod
    def _send(client: PeerClient, key: Key, step: SendCutResult) -> None:
        with contextlib.suppress(WorldError):  # a node without a result releases its ranks by itself
            client.ask("word", {"job": key[0], "attempt": key[1], "serial": step.cut, "why": step.why})
        client.close()

    async def release(self, key: Key) -> None:
        """Release the ranks of a gang on this node: they rebuild their connections and run on."""
        await asyncio.to_thread(release, [self._pages(key)])

    def _pages(self, key: Key) -> LocalPages:
        return LocalPages(self._rank_dirs(key) or {})

    def handlers(self) -> dict[str, Any]:
        """Verbs by which a leader calls this node, for the peer server."""
        return {
            "hold": self._hold,
            "pages": self._read,
            "cuts": self._publish,
            "free": self._release_here,
            "word": self._decision,
        }

    async def _hold(self, args: dict[str, Any]) -> None:
        serial = args.get("serial")  # leaders of earlier versions send none
        await self._may_hold(_key(args), None if serial is None else int(serial))
        self._forget_gone()
        async with self._lock(args):
            if serial is not None:
                self._held_for[_key(args)] = int(serial)
            await asyncio.to_thread(self._known(args).hold)

    def _forget_gone(self) -> None:
        for key in [key for key in self._held_for if self._rank_dirs(key) is None]:
            del self._held_for[key]
            self._changing.pop(key, None)

    def _lock(self, args: dict[str, Any]) -> asyncio.Lock:
        return self._changing.setdefault(_key(args), asyncio.Lock())

    async def _read(self, args: dict[str, Any]) -> Any:
        return msgspec.to_builtins(await asyncio.to_thread(self._known(args).read))

    async def _publish(self, args: dict[str, Any]) -> None:
        async with self._lock(args):
            self._check_held(args)
            await asyncio.to_thread(self._known(args).publish, msgspec.convert(args["cuts"], Cuts))

    async def _release_here(self, args: dict[str, Any]) -> None:
        async with self._lock(args):
            self._check_held(args)
            await asyncio.to_thread(self._known(args).release)

    def _check_held(self, args: dict[str, Any]) -> None:
        """Raise WorldError where the ranks here are held for another cut than the sender's, which it gave up."""
        serial, held = args.get("serial"), self._held_for.get(_key(args))
        if serial is not None and held is not None and held != int(serial):
            raise WorldError(f"cut {serial} is over: the ranks here are held for cut {held}")

    async def _decision(self, args: dict[str, Any]) -> None:
        self._decided(_key(args), int(args["serial"]), str(args["why"]))

    def _known(self, args: dict[str, Any]) -> LocalPages:
        rank_dirs = self._rank_dirs(_key(args))
        if rank_dirs is None:
            raise WorldError(f"job {args['job']} attempt {args['attempt']} is not on this node")
        return LocalPages(rank_dirs)


def _key(args: dict[str, Any]) -> Key:
    return int(args["job"]), int(args["attempt"])


class PeerPages:
    """The control pages of the ranks on another node."""

    def __init__(self, client: PeerClient, key: Key, serial: int) -> None:
        self._client, self._what = client, {"job": key[0], "attempt": key[1], "serial": serial}

    def hold(self) -> None:
        self._client.ask("hold", self._what, HOLD_S)

    def read(self) -> list[PageState]:
        return msgspec.convert(self._client.ask("pages", self._what), list[PageState])

    def publish(self, cuts: Any) -> None:
        self._client.ask("cuts", {**self._what, "cuts": msgspec.to_builtins(cuts)})

    def release(self) -> None:
        self._client.ask("free", self._what)
