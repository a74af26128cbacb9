"""``tide kube extender``: the socket, TLS, and the replica behind it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UsageError
from ..client.api import KubeClient
from ..client.credentials import Cluster
from ..client.lease import DURATION_S, Lease
from ..objects.log import Log
from ..objects.pod_request import POLICIES
from .http import ExtenderApp
from .leader_election import Replica, Unfenced, may_lease
from .metrics import ExtenderMetrics

LEASE = "tidewright-extender"


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """``port`` 0: any free one. ``lead``: ``auto`` uses a Lease where the account may, ``on`` insists, ``off`` does without."""

    host: str = "127.0.0.1"
    port: int = 39999
    policy: str = "best-fit"
    namespace: str = "kube-system"
    who: str = ""
    lead: str = "auto"
    lease_s: int = DURATION_S
    certificate: Path | None = None
    key: Path | None = None
    token: str = ""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"policy {self.policy!r} does not exist", f"choose one of {', '.join(POLICIES)}")
        if self.lead not in ("auto", "on", "off"):
            raise UsageError(f"lead is {self.lead!r}", "choose auto, on or off")
        if bool(self.certificate) != bool(self.key):
            raise UsageError("a certificate needs its key, and a key its certificate", "give both")


def listener(host: str, port: int) -> socket.socket:
    """A TCP socket whose connections wait until they are served; ``port`` 0: any free one. Raises UsageError."""
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it each answer waits 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen()
    except OSError as error:
        found.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error}", "give another --port") from error
    return found


class ExtenderService:
    """``address`` once ``listening``; runs until ``stop`` is called."""

    def __init__(self, cluster: Cluster, settings: ExtenderSettings, log: Log) -> None:
        self.cluster, self.settings, self.log = cluster, settings, log
        self.api = KubeClient(cluster)
        self.address = ("", 0)
        self.listening = asyncio.Event()
        self.extender = ExtenderApp(ExtenderMetrics(), settings.token)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Finish what is under way, then end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until ``stop``."""
        async with self.api as api:
            lease = await self._lease(api)
            replica = Replica(api, lease, self.extender, self.settings.policy, self.log)
            leading = asyncio.create_task(replica.run())
            try:
                await self._serve(leading)
            finally:
                leading.cancel()
                with suppress(asyncio.CancelledError):
                    await leading

    async def _lease(self, api: KubeClient) -> Lease | Unfenced:
        settings = self.settings
        if settings.lead == "off":
            return Unfenced()
        if settings.lead == "auto" and not await may_lease(api, settings.namespace):
            self.log("no right to Leases: runs without one, so there must be one replica only")
            return Unfenced()
        margin_s = min(5.0, settings.lease_s / 3)
        who = settings.who or socket.gethostname()
        return Lease(api, settings.namespace, LEASE, who, settings.lease_s, settings.lease_s / 5, margin_s)

    async def _serve(self, leading: asyncio.Task[None]) -> None:
        import uvicorn

        settings = self.settings
        with listener(settings.host, settings.port) as listening:
            self.address = listening.getsockname()[:2]
            config = uvicorn.Config(
                self.extender.app(), log_level="warning", lifespan="off", timeout_graceful_shutdown=10, access_log=False,
                server_header=False, date_header=False,
                ssl_certfile=settings.certificate, ssl_keyfile=settings.key, proxy_headers=False,
            )  # fmt: skip
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            self.listening.set()
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({serving, stopping, leading}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopping.cancel()
            await serving
            if leading.done() and not leading.cancelled():
                leading.result()
