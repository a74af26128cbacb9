"""Where the ranks of a job meet, and how each of them is told: ``reach.json`` in its box.

The first node of a gang hosts the meeting; the others ask its agent for the door. A job's ticket is derived from the
cluster's token, which ranks never see.

When a gang comes back from images, its ranks find what they had left for each other. The host puts it back once for
each *sitting* (the request by which they come back, the same on all nodes), and opens the door for that sitting only
then: what ranks on other nodes leave from now on is never overwritten.
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

from ..base.errors import WorldError
from ..wire.agent import Peer
from .attempt import Attempt
from .depot import DepotClient, Silent
from .layout import write_whole
from .meet import Meet

DOOR_S = 900.0
"""How long ranks that came back wait for the host of their meeting, which may have to fetch its images first."""
GONE_S = 30.0
"""For how much of that the host's agent may be gone: it is started again."""
KNOCK_S = 5.0
"""How long a host keeps who asks for the door before it says: not yet."""
_LOOK_S, _PAUSE_S = 0.01, 0.25
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
        """Put it back where the ranks will look for it, once for a sitting. Raises WorldError when it is damaged."""
        job, sitting = attempt.args.job, attempt.memo.sitting
        if self.hosts(attempt.args.peers):
            self.open(job)
            if not sitting or self._server.sitting(str(job)) != sitting:
                self._server.load(str(job), base64.b64decode(left), sitting)

    def fresh(self, attempt: Attempt) -> None:
        """Ranks start from the beginning: what they leave is of this sitting, whoever comes first."""
        if self.hosts(attempt.args.peers):
            self.open(attempt.args.job)
            self._server.sit(str(attempt.args.job), attempt.memo.sitting)

    def take_over(self, attempt: Attempt) -> None:
        """Ranks that an earlier agent left may want to meet before anything else is asked of this one."""
        if self.hosts(attempt.memo.peers) and any(box.is_dir() for box in attempt.boxes().values()):
            self.open(attempt.args.job)

    def fail(self, attempt: Attempt, why: str) -> None:
        """Nobody need wait for this sitting."""
        self._failed[attempt.args.job] = attempt.memo.sitting, why

    def hosts(self, peers: tuple[Peer, ...]) -> bool:
        """Whether ranks on these nodes meet here."""
        return not peers or peers[0].node == self._node

    def close(self, job: int) -> None:
        """No ranks of the job are here any more."""
        self._failed.pop(job, None)
        self._server.close_job(str(job))

    async def write(self, attempt: Attempt, sitting: str = "") -> None:
        """Tell the ranks here where the meeting is, once it is open for the sitting. Raises WorldError when its node does
        not answer, or could not prepare it."""
        job = attempt.args.job
        address, port = self._address, self.open(job)
        if not self.hosts(attempt.memo.peers):
            first = attempt.memo.peers[0]
            address, port = first.address, await asyncio.to_thread(self._ask, first, job, sitting)
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
            write_whole(rank.directory / "box" / "reach.json", json.dumps(words).encode())

    def _ask(self, peer: Peer, job: int, sitting: str) -> int:
        client, heard = DepotClient(peer, self._token), time.monotonic()
        late = heard + DOOR_S
        try:
            while time.monotonic() < late:
                try:
                    port = int(client.ask("meeting", {"job": job, "sitting": sitting}))
                except Silent:
                    if not sitting or time.monotonic() > heard + GONE_S:
                        raise
                    time.sleep(_PAUSE_S)
                    continue
                if port != _CLOSED:
                    return port
                heard = time.monotonic()
        finally:
            client.close()
        raise WorldError(f"node {peer.node} has not brought its ranks of job {job} back for {DOOR_S:g} s")

    async def door(self, args: dict[str, Any]) -> int:
        """For another node's agent: the port where the ranks of a job meet, 0 while it is not open for their sitting."""
        job, sitting = int(args["job"]), str(args.get("sitting", ""))
        until = time.monotonic() + KNOCK_S
        while sitting and self._server.sitting(str(job)) != sitting:
            failed, why = self._failed.get(job, ("", ""))
            if failed == sitting:
                raise WorldError(f"its ranks of job {job} could not be brought back: {why}")
            if time.monotonic() > until:
                return _CLOSED
            await asyncio.sleep(_LOOK_S)
        return self.open(job)
