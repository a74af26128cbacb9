"""Where the ranks of a job meet, and how each of them is told: ``reach.json`` in its box.

The first node of a gang hosts the meeting; the others ask its agent for the door. A job's ticket is derived from the
cluster's token, which ranks never see.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..wire.agent import Peer
from .attempt import Attempt
from .depot import DepotClient
from .layout import write_whole
from .meet import Meet


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

    def unpack(self, job: int, left: str) -> None:
        """Put it back where the ranks will look for it. Raises WorldError when it is damaged."""
        self.open(job)
        self._server.load(str(job), base64.b64decode(left))

    def close(self, job: int) -> None:
        """The job is over."""
        self._server.close_job(str(job))

    async def write(self, attempt: Attempt) -> None:
        """Tell the ranks here where the meeting is. Raises WorldError when its node does not answer."""
        first = attempt.memo.peers[0] if attempt.memo.peers else None
        job = attempt.args.job
        address, port = self._address, self.open(job)
        if first is not None and first.node != self._node:
            address, port = first.address, await asyncio.to_thread(self._ask, first, job)
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

    def _ask(self, peer: Peer, job: int) -> int:
        client = DepotClient(peer, self._token)
        try:
            return int(client.ask("meeting", {"job": job}))
        finally:
            client.close()

    async def door(self, args: dict[str, Any]) -> int:
        """For another node's agent: the port where the ranks of a job meet."""
        return self.open(int(args["job"]))
