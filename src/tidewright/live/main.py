"""A controller from its parts: lock, journal, book, world, API; and its orderly end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..base.units import SECOND
from ..engine.events import JobIdsUsed
from ..engine.settings import EngineSettings
from ..fabric.protocol import Fabric, FabricNode, OnNode, OnReport
from ..plan.plan import Planner
from ..wire import api
from . import access
from .api import Api
from .auth import BodyLimit, TokenAuth, load_token
from .clock import Clock
from .fence import fence
from .hub import Hub
from .identity import SocketAuth
from .keeper import Keeper, LocalAgent
from .lock import StateLock
from .loop import Loop
from .metrics import Metrics
from .parts import Parts
from .recover import recover
from .server import TcpServer, UnixServer, tcp_socket
from .space import RESERVE_BYTES, Reserve
from .store import Journal
from .world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerSettings:
    """Everything a controller is given. It keeps ``agents`` alive itself; those it is not told of are others' business.

    ``node_timeout_us``: after so long without its agent a node of several is down, and its jobs go on elsewhere.
    """

    state: Path
    planner: Planner
    fabric: Callable[[], Fabric]
    engine: EngineSettings
    policy: str
    version: str
    listen: str = ""
    agents: tuple[LocalAgent, ...] = ()
    reserve_bytes: int = RESERVE_BYTES
    """Room on the disk that is kept for the journal alone."""
    others: int = 0
    """How many more agents there should be, that others keep."""
    node_timeout_us: int = 30 * SECOND
    tls: tuple[str, str] = ("", "")
    """Certificate chain and key of ``listen``, PEM files; empty: no TLS."""
    run_as: str = ""
    """The unix account of all jobs; empty: that of the agents."""
    started: Callable[[], None] = lambda: None
    """Called once it serves."""


class Tcp(NamedTuple):
    """Where holders of a token may ask."""

    listener: socket.socket
    token: str
    tls: ssl.SSLContext | None


class Controller:
    """One run of the controller. ``serve`` returns after a signal, ``shutdown`` or a fatal error (which it raises)."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.ready = asyncio.Event()
        """Set once the socket listens."""
        self._with_agent = False

    async def serve(self) -> None:
        """From lock to lock."""
        settings = self.settings
        lock = StateLock(settings.state)
        try:
            tls = access.check(settings.listen, settings.tls, settings.run_as)
            token = load_token(settings.state) if settings.listen else ""
            tcp = tcp_socket(settings.listen) if settings.listen else None
            journal = Journal(settings.state)
            try:
                await self._serve(lock, journal, [Tcp(tcp, token, tls)] if tcp else [])
            finally:
                journal.close()
                Reserve(settings.state, settings.reserve_bytes).fill()  # closing gives the log's room back
        finally:
            lock.release()

    async def _serve(self, lock: StateLock, journal: Journal, tcp: list[Tcp]) -> None:
        settings, hub = self.settings, Hub()
        driver = recover(journal, settings.engine, hub)
        gc.freeze()  # the jobs of earlier runs stay for long (loop.MANY)
        clock = Clock(settings.state, last=driver.engine.book.now)
        loop = Loop(driver, journal, clock, settings.planner, hub, Reserve(settings.state, settings.reserve_bytes))
        loop.room()
        _skip_used_ids(loop, journal)
        keepers = [Keeper(agent) for agent in settings.agents]
        fabric = _Overheard(settings.fabric(), keepers)

        def fenced(why: str) -> None:
            log.error("a newer controller has taken over: %s", why)
            loop.stop()

        def shutdown(with_agent: bool) -> None:
            self._with_agent = with_agent
            loop.stop()

        world = loop.world = World(
            fabric, driver.engine.book, lock.epoch, loop.post, loop.between, fenced, settings.node_timeout_us,
            fabric.fence,
        )  # fmt: skip
        world.translator.orders.run_as = settings.run_as
        metrics = Metrics(loop)
        loop.note = metrics.note
        parts = Parts(
            settings.state, loop, world, hub, journal, metrics, settings.policy, settings.version, lock.epoch,
            clock.now(), shutdown, max(1, len(settings.agents) + settings.others), settings.run_as,
        )  # fmt: skip
        servers = self._servers(parts, tcp)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, loop.stop)
        await self._until_over(loop, world, keepers, servers)

    def _servers(self, parts: Parts, tcp: list[Tcp]) -> list[UnixServer | TcpServer]:
        app = BodyLimit(Api(parts).application())
        found: list[UnixServer | TcpServer] = [UnixServer(SocketAuth(app), parts.state / api.SOCKET_NAME)]
        return [*found, *(TcpServer(TokenAuth(app, each.token), each.listener, each.tls) for each in tcp)]

    async def _until_over(
        self, loop: Loop, world: World, keepers: list[Keeper], servers: list[UnixServer | TcpServer]
    ) -> None:
        tasks = [asyncio.create_task(server.serve()) for server in servers]
        tasks += [asyncio.create_task(keeper.run()) for keeper in keepers]
        world.start()
        self.settings.started()
        self.ready.set()
        log.info("serving on %s", self.settings.state)
        try:
            await loop.run()
        finally:
            for server in servers:
                server.end()
            await asyncio.wait(tasks[: len(servers)], timeout=3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._with_agent:
                await asyncio.gather(*(keeper.stop() for keeper in keepers))


def _skip_used_ids(loop: Loop, journal: Journal) -> None:
    """After turns were lost: their jobs' ids are not given out again."""
    next_job = loop.driver.engine.book.next_job
    if journal.next_job > next_job:
        text = f"job ids {next_job} to {journal.next_job - 1} were given out by turns that are lost, and are not used again"
        log.warning("%s", text)
        journal.notices.append(text)
        loop.post(JobIdsUsed(journal.next_job))


class _Overheard:
    """A fabric whose news of nodes also reach the keepers of the local agents."""

    def __init__(self, fabric: Fabric, keepers: Sequence[Keeper]) -> None:
        self._fabric = fabric
        self._keepers = {str(keeper.agent.socket): keeper for keeper in keepers}
        self._hosts = {keeper.agent.state.name: keeper for keeper in keepers}
        """By node; a host's directory has its name."""
        self.nodes, self.call, self.copy, self.close = fabric.nodes, fabric.call, fabric.copy, fabric.close

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        """As the fabric's."""

        def both(node: FabricNode) -> None:
            keeper = self._keepers.get(node.address)
            if keeper is not None:
                keeper.connected(node.alive)
                self._hosts[node.name] = keeper
            on_node(node)

        self._fabric.watch(both, on_report)

    async def fence(self, node: str) -> None:
        """End what a node of this machine still runs; others are beyond reach."""
        if node in self._hosts:
            await fence(self._hosts[node].agent.state)
