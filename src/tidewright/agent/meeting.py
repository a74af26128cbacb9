"""Where the ranks of a job meet, and how each of them is told: ``reach.json`` in its box.

The first node of a gang hosts the meeting; the others ask its agent for the door. A job's ticket is derived from the
cluster's token, which ranks never see.

When a gang comes back from images, its ranks find what they had left for each other. The host puts it back once for
each *sitting* (the request by which they start or come back, the same on all nodes), and opens the door for that
sitting only then: what ranks on other nodes leave from now on is never overwritten.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..base.atomic import write_atomically
from ..base.errors import WorldError
from ..wire.agent import Peer
from .attempt import Attempt
from .depot import DepotClient, Silent
from .meet import Meet

DOOR_S = 900.0
"""How long ranks wait for the host of their meeting, which may have to fetch its images first."""
GONE_S = 30.0
"""For how much of that the host's agent may be gone: it is started again."""
KNOCK_S = 15.0
"""How long one answer of it may take; nothing ends an agent, or the attempt, meanwhile."""
_PAUSE_S = 0.01, 0.25
"""Between two knocks: at first, and at most."""
_CLOSED = 0
"""No port: the answer for not yet."""


class Meeting:
    """``address`` is this node's own, as ranks on other nodes reach it. ``ways`` says how ranks that share devices do
    so; without a word of it they see for themselves."""

    def __init__(
        self,
        node: str,
        address: str,
        token: str,
        server: Meet,
        ways: Callable[[Attempt], Mapping[int, str]] = lambda attempt: {},
    ) -> None:
        self._node, self._address, self._token, self._server = node, address, token, server
        self._ways = ways
        self._failed: dict[int, tuple[str, str]] = {}
        """Sittings that the host could not prepare, and why, by job."""

    def ticket(self, job: int) -> str:
        """What opens the meeting of one job, and of no other."""
        return hmac.new(self._token.encode(), f"meeting of job {job}".encode(), hashlib.sha256).hexdigest()

    def open(self, job: int) -> int:
        """Let the ranks of a job meet here; the port."""
        self._server.open_job(str(job), self.ticket(job))
        return self._server.port

    def pack(self, job: int) -> str:
        """What ranks have left for each other here, to travel with an image."""
        self.open(job)
        return base64.b64encode(self._server.dump(str(job))).decode()

    def unpack(self, attempt: Attempt, left: str) -> None:
        """Put it back where the ranks will look for it, once for a sitting that other nodes join. Raises WorldError when it
        is damaged."""
        if not hosts(attempt):
            return
        job = attempt.args.job
        self.open(job)
        # Ranks that nobody joins may come back twice by one request, when an agent is killed. What they had left in
        # between must not be there then: their requests are counted from the image on.
        if not attempt.memo.sitting or alone(attempt) or not self._sits(attempt):
            try:
                self._server.load(str(job), base64.b64decode(left), attempt.memo.sitting)
            except ValueError as error:
                raise WorldError(f"the rendezvous keys of job {job} are damaged: {error}") from error

    def fresh(self, attempt: Attempt) -> None:
        """Ranks start from the beginning, and find nothing that others of the job have left. Asked again they may have left
        something themselves."""
        if not hosts(attempt):
            return
        self.open(attempt.args.job)
        if not self._sits(attempt):
            self._server.load(str(attempt.args.job), sitting=attempt.memo.sitting)

    def _sits(self, attempt: Attempt) -> bool:
        return self._server.sitting(str(attempt.args.job)) == attempt.memo.sitting

    def take_over(self, attempt: Attempt) -> None:
        """Ranks that an earlier agent left may want to meet before anything else is asked of this one."""
        if not hosts(attempt) or not any(box.is_dir() for box in attempt.boxes().values()):
            return
        self.open(attempt.args.job)
        # Of what was left here nothing may be known any more (a full disk). Those that have come back still sit here.
        if attempt.memo.phase not in ("starting", "resuming") and not self._server.sitting(str(attempt.args.job)):
            self._server.sit(str(attempt.args.job), attempt.memo.sitting)

    def fail(self, attempt: Attempt, why: str) -> None:
        """Nobody need wait for this sitting."""
        self._failed[attempt.args.job] = attempt.memo.sitting, why

    def close(self, job: int) -> None:
        """No ranks of the job are here any more."""
        self._failed.pop(job, None)
        self._server.close_job(str(job))

    async def write(self, attempt: Attempt, sitting: str = "") -> None:
        """Tell the ranks here where the meeting is, once it is open for the sitting. Raises WorldError when its node is
        not known, does not answer or could not prepare it, and when the ranks are to end."""
        job, peers = attempt.args.job, attempt.memo.peers
        if hosts(attempt):
            address, port = self._address, self.open(job)
        elif not peers or peers[0].node == self._node:
            raise WorldError("the node where its ranks meet is not connected")
        else:
            address, port = peers[0].address, await self._ask(attempt, peers[0], sitting)
        crowd = Counter(device for devices in attempt.memo.devices.values() for device in devices)
        ways = self._ways(attempt)
        for rank in attempt.ranks:
            devices = attempt.memo.devices.get(rank.number, ())
            words = {
                "address": address,
                "port": port,
                "token": self.ticket(job),
                "host": self._address,
                "devices": list(devices),
                "share": max((crowd[device] for device in devices), default=1),
                **({"turns": ways[rank.number]} if rank.number in ways else {}),
            }
            account = rank.spec.account if rank.spec else None
            write_atomically(
                rank.directory / "box" / "reach.json",
                json.dumps(words).encode(),
                owner=None if account is None else (account.uid, account.gid),
            )

    async def _ask(self, attempt: Attempt, peer: Peer, sitting: str) -> int:
        client, job, heard = DepotClient(peer, self._token), attempt.args.job, time.monotonic()
        late, pause = heard + DOOR_S, _PAUSE_S[0]
        try:
            while time.monotonic() < late:
                if attempt.memo.ending:
                    raise WorldError("its ranks are to end")
                try:
                    what = {"job": job, "sitting": sitting}
                    port = int(await asyncio.to_thread(client.ask, "meeting", what, KNOCK_S))
                    heard = time.monotonic()
                except Silent:
                    if not sitting or time.monotonic() > heard + GONE_S:
                        raise
                    port = _CLOSED
                if port != _CLOSED:
                    return port
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S[1])
        finally:
            client.close()
        raise WorldError(f"node {peer.node} has not opened the meeting of job {job} for {DOOR_S:g} s")

    async def door(self, args: dict[str, Any]) -> int:
        """For another node's agent: the port where the ranks of a job meet, 0 while it is not open for their sitting."""
        job, sitting = int(args["job"]), str(args.get("sitting", ""))
        failed, why = self._failed.get(job, ("", ""))
        if sitting and failed == sitting:
            raise WorldError(f"its ranks of job {job} could not be brought back: {why}")
        return _CLOSED if sitting and self._server.sitting(str(job)) != sitting else self.open(job)


def hosts(attempt: Attempt) -> bool:
    """Whether the ranks of an attempt meet here: the first of them is here."""
    return any(seat.rank == 0 for seat in attempt.args.ranks)


def alone(attempt: Attempt) -> bool:
    """Whether all its ranks are here."""
    return len(attempt.args.ranks) == attempt.args.world_size
