"""The rendezvous of each job, and how its ranks find it: ``reach.json`` in the directory of each.

The first node of a gang hosts the rendezvous; the others poll its agent for the endpoint. The decisions are made in
generations.py and polling.py.

Access tokens are derived from the cluster's token, which ranks never see, for each generation of a job: a rank of an earlier
one, whose node was cut off for a while, is not let in again. Where ranks or agents of an earlier version take part, which know
the token of the job alone, that one opens the keys, too.
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

from ...base.atomic import write_atomically
from ...base.errors import WorldError
from ...wire.agent import Peer
from ..peer_rpc import PeerClient, PeerSilent
from ..processes.attempt import Attempt
from . import generations as gn
from . import polling
from .server import RendezvousServer

POLL_S = 15.0
"""How long one answer of the host may take; nothing ends an agent, or the attempt, meanwhile."""
SETTING_OUT = ("starting", "resuming")
"""Phases in which ranks have not come yet."""


class RendezvousCoordinator:
    """``address`` is this node's own, as ranks on other nodes reach it. ``share_modes`` returns how ranks share their
    devices; ranks that it leaves out find out themselves. ``open_s``: how long another node's endpoint is waited for."""

    def __init__(
        self,
        node: str,
        address: str,
        token: str,
        server: RendezvousServer,
        share_modes: Callable[[Attempt], Mapping[int, str]] = lambda attempt: {},
        *,
        open_s: float = polling.OPEN_S,
    ) -> None:
        self._node, self._address, self._token, self._server = node, address, token, server
        self._share_modes, self._open_s = share_modes, open_s
        self._machine = gn.GenerationMachine()

    def access_token(self, job: int, generation: str = "") -> str:
        """What opens the rendezvous of one generation of a job, and of no other; without a generation: of the job."""
        of = f"meeting of job {job}" + (f", generation {generation}" if generation else "")
        return hmac.new(self._token.encode(), of.encode(), hashlib.sha256).hexdigest()

    def open(self, job: int) -> int:
        """Open the rendezvous of a job here; the port."""
        self._server.open_job(str(job))  # for what its journal says of its generation
        held, own = self._server.generation(str(job)), self.access_token(job, self._own(job))
        both = () if self._own(job) or not held else (self.access_token(job, held),)
        self._server.open_job(str(job), own, *both)
        return self._server.port

    def _own(self, job: int) -> str:
        """The generation whose ranks have a token of their own; empty when they have that of the job."""
        return self._server.generation(str(job)) if self._server.own_token(str(job)) else ""

    def pack(self, job: int) -> str:
        """The keys of a job here, to travel with an image."""
        self.open(job)
        return base64.b64encode(self._server.dump(str(job))).decode()

    def unpack(self, attempt: Attempt, left: str) -> None:
        """Put keys back where the ranks will look for them, once for a generation that other nodes join. Raises WorldError
        when they are damaged."""
        held = self._held(attempt)
        self._do(
            gn.GenerationRestored(
                attempt.args.job, attempt.record.rendezvous_generation, hosts(attempt), on_one_node(attempt), held, left
            )
        )

    def reset(self, attempt: Attempt) -> None:
        """Ranks start from the beginning, and find nothing that others of the job have written."""
        self._do(
            gn.GenerationLaunched(
                attempt.args.job, attempt.record.rendezvous_generation, hosts(attempt), self._held(attempt)
            )
        )

    def adopt(self, attempt: Attempt) -> None:
        """Open the rendezvous for ranks that an earlier agent left, before any request arrives."""
        present = any(path.is_dir() for path in attempt.rank_dirs().values())
        settled = attempt.record.phase not in SETTING_OUT
        held = self._held(attempt) if present else ""
        self._do(
            gn.GenerationAdopted(
                attempt.args.job, attempt.record.rendezvous_generation, hosts(attempt), present, settled, held
            )
        )

    def fail(self, attempt: Attempt, why: str) -> None:
        """No node need wait for this generation."""
        self._do(gn.GenerationFailed(attempt.args.job, attempt.record.rendezvous_generation, why))

    def close(self, job: int) -> None:
        """No ranks of the job are here any more."""
        self._do(gn.JobLeft(job))

    async def endpoint(self, args: dict[str, Any]) -> int | dict[str, Any]:
        """For another node's agent: the port of a job's rendezvous, 0 while it is not open for their generation; and the
        generation whose token they need, where the request has ``tokens``: that agent knows of them."""
        job, generation, old = int(args["job"]), str(args.get("sitting", "")), "tokens" not in args
        held, own = self._server.generation(str(job)), self._server.own_token(str(job))
        port = self._do(gn.EndpointPolled(job, generation, held, old, own))
        return port if old else {"port": port, "generation": self._own(job)}

    def _held(self, attempt: Attempt) -> str:
        """What the keys here are for, those in a file of an earlier agent too."""
        if not hosts(attempt):
            return ""
        self.open(attempt.args.job)
        return self._server.generation(str(attempt.args.job))

    def _do(self, event: gn.Event) -> int:
        """Carry out what follows from an event; the port where that is an answer."""
        port = polling.CLOSED
        for action in self._machine.step(event):
            match action:
                case gn.OpenKeys(job):
                    self.open(job)
                case gn.LoadKeys(job, generation, keys):
                    self._load(job, keys, generation)
                case gn.NameGeneration(job, generation):
                    self._server.name_generation(str(job), generation)
                    self.open(job)
                case gn.CloseKeys(job):
                    self._server.close_job(str(job))
                case gn.ShowEndpoint():
                    port = self._server.port
                case gn.RefuseEndpoint(job, reason):
                    raise WorldError(f"its ranks of job {job} could not be restored: {reason}")
        return port

    def _load(self, job: int, keys: str, generation: str) -> None:
        try:
            self._server.load(str(job), base64.b64decode(keys), generation)
        except ValueError as error:
            raise WorldError(f"the rendezvous keys of job {job} are damaged: {error}") from error
        self.open(job)

    async def write(self, attempt: Attempt, generation: str = "") -> None:
        """Write to the ranks here where the rendezvous is, once it is open for the generation ``generation``. Raises WorldError
        when its node is not known, does not answer or could not prepare it, and when the ranks are to end."""
        job, peers = attempt.args.job, attempt.record.peers
        if hosts(attempt):
            address, found = self._address, polling.EndpointOpen(self.open(job), self._own(job))
        elif not peers or peers[0].node == self._node:
            raise WorldError("the node that hosts its rendezvous is not connected")
        else:
            address, found = peers[0].address, await self._poll(attempt, peers[0], generation)
        token = self.access_token(job, found.generation)
        self._write_reach(attempt, {"address": address, "port": found.port, "token": token})

    def _write_reach(self, attempt: Attempt, where: dict[str, Any]) -> None:
        crowd = Counter(device for devices in attempt.record.devices.values() for device in devices)
        share_modes = self._share_modes(attempt)
        for rank in attempt.ranks:
            devices = attempt.record.devices.get(rank.number, ())
            words = {
                **where,
                "host": self._address,
                "devices": list(devices),
                "share": max((crowd[device] for device in devices), default=1),
                **({"turns": share_modes[rank.number]} if rank.number in share_modes else {}),
            }
            account = rank.spec.account if rank.spec else None
            write_atomically(
                rank.directory / "box" / "reach.json",
                json.dumps(words).encode(),
                owner=None if account is None else (account.uid, account.gid),
            )

    async def _poll(self, attempt: Attempt, peer: Peer, generation: str) -> polling.EndpointOpen:
        client, job = PeerClient(peer, self._token), attempt.args.job
        poll = polling.EndpointPoll(peer.node, job, generation, time.monotonic(), open_s=self._open_s)
        try:
            while True:
                step = poll.next(time.monotonic(), ending=bool(attempt.record.ending))
                if isinstance(step, polling.PollHost):
                    step = await self._ask(client, poll, {"job": job, "sitting": generation, "tokens": 1})
                match step:
                    case polling.EndpointOpen():
                        return step
                    case polling.PollFailed(reason):
                        raise WorldError(reason)
                    case polling.PollDelay(seconds):
                        await asyncio.sleep(seconds)
        finally:
            client.close()

    async def _ask(self, client: PeerClient, poll: polling.EndpointPoll, what: dict[str, Any]) -> polling.Step:
        """One poll, in a thread. Raises WorldError when the host refuses."""
        try:
            found = await asyncio.to_thread(client.ask, "meeting", what, POLL_S)
        except PeerSilent as error:
            return poll.silent(time.monotonic(), str(error))
        if not isinstance(found, dict):  # an agent of a version before
            return poll.answered(time.monotonic(), int(found))
        return poll.answered(time.monotonic(), int(found["port"]), str(found["generation"]))


def hosts(attempt: Attempt) -> bool:
    """Whether this node hosts the rendezvous of an attempt: its first rank is here."""
    return any(seat.rank == 0 for seat in attempt.args.ranks)


def on_one_node(attempt: Attempt) -> bool:
    """Whether all its ranks are here."""
    return len(attempt.args.ranks) == attempt.args.world_size
