"""A controller from its parts: lock, journal, book, agents, API; and its orderly end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...base.units import SECOND
from ...engine.events import JobIdsUsed
from ...engine.settings import EngineSettings
from ...fabric.protocol import Fabric, FabricNode, OnNode, OnReport
from ...plan.plan import Planner
from ...wire import api
from ...wire.own_directory import lost_error
from ..api import access
from ..api.auth import BodyLimit, TokenAuth, load_token
from ..api.event_stream import EventStream
from ..api.explaining import Explainer
from ..api.identity import SocketAuth
from ..api.metrics import Metrics
from ..api.routes import Routes
from ..api.server import TcpServer, UnixServer, tcp_socket
from ..journal.recover import recover
from ..journal.store import DATABASE, MARK, WAL, Journal
from ..reconcile.agent_pool import AgentPool
from ..reconcile.fence import fence
from .agent_supervisor import AgentSupervisor, LocalAgent
from .clock import Clock
from .controller_context import ControllerContext
from .disk_space import RESERVE_BYTES, Reserve
from .forecast_probe import EVERY_US, ForecastProbe
from .lock import StateLock
from .loop import Loop
from .notifier import Notifier, NotifierSupervisor
from .rate_probe import EVERY_US as RATES_EVERY_US
from .rate_probe import RateLearner, RateProbe

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerSettings:
    """Everything a controller is given. It supervises ``agents`` itself; agents behind other sockets are supervised elsewhere.

    ``node_timeout_us``: after so long without its agent a node of several is down, and its jobs go on elsewhere.
    """

    state: Path
    planner: Planner
    fabric: Callable[[], Fabric]
    engine: EngineSettings
    policy: str
    version: str
    explainer: Callable[[], Explainer]
    """Made in the controller's event loop."""
    rate_learner: Callable[[], RateLearner]
    listen: str = ""
    agents: tuple[LocalAgent, ...] = ()
    reserve_bytes: int = RESERVE_BYTES
    """Room on the disk that is kept for the journal alone."""
    others: int = 0
    """How many more agents there should be, which are supervised elsewhere."""
    node_timeout_us: int = 30 * SECOND
    tls: tuple[str, str] = ("", "")
    """Certificate chain and key of ``listen``, PEM files; empty: no TLS."""
    run_as: str = ""
    """The unix account of all jobs; empty: that of the agents."""
    started: Callable[[], None] = lambda: None
    """Called once it serves."""
    forecast_check_us: int = EVERY_US
    """Pause between its own forecasts, which are held against what becomes of them; 0: none are made."""
    notifier: Notifier = field(default_factory=Notifier)
    rate_check_us: int = RATES_EVERY_US
    """Pause between readings of what jobs report of their progress; 0: rates are not learnt."""


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
                lock.own.add(DATABASE, WAL, MARK)
                lock.own.require()
                await self._serve(lock, journal, [Tcp(tcp, token, tls)] if tcp else [])
            finally:
                lock.own.drop(WAL)  # SQLite removes it
                journal.close()
                if not lock.own.lost():
                    Reserve(settings.state, settings.reserve_bytes).fill()  # closing gives the log's room back
        finally:
            lock.release()

    async def _serve(self, lock: StateLock, journal: Journal, tcp: list[Tcp]) -> None:
        settings, event_stream = self.settings, EventStream()
        driver = recover(journal, settings.engine, event_stream)
        gc.freeze()  # the jobs of earlier runs stay for long (loop.MANY)
        clock = Clock(settings.state, last=driver.engine.book.now)
        loop = Loop(
            driver,
            journal,
            clock,
            settings.planner,
            event_stream,
            Reserve(settings.state, settings.reserve_bytes),
            lock.own,
        )
        loop.room()
        _skip_used_ids(loop, journal)
        supervisors = [AgentSupervisor(agent, loop.lost) for agent in settings.agents]
        fabric = _Overheard(settings.fabric(), supervisors)

        def fenced(why: str) -> None:
            log.error("a newer controller has taken over: %s", why)
            loop.stop()

        def shutdown(with_agent: bool) -> None:
            self._with_agent = with_agent
            loop.stop()

        agent_pool = loop.agent_pool = AgentPool(
            fabric, driver.engine.book, lock.epoch, loop.post, loop.run_between_steps, fenced, settings.node_timeout_us,
            fabric.fence,
        )  # fmt: skip
        agent_pool.reconciler.agent_calls.run_as = settings.run_as
        metrics, explainer = Metrics(loop), settings.explainer()
        loop.note = metrics.note
        rate_probe = RateProbe(loop, agent_pool, settings.rate_learner(), settings.rate_check_us)
        context = ControllerContext(
            settings.state, loop, agent_pool, event_stream, journal, metrics, explainer, settings.policy, settings.version,
            lock.epoch, clock.now(), shutdown, max(1, len(settings.agents) + settings.others), settings.run_as,
            rate_probe.forget, settings.notifier.mails,
        )  # fmt: skip
        servers = self._servers(context, lock, tcp)
        probes = (
            ForecastProbe(loop, explainer, settings.forecast_check_us), rate_probe,
            NotifierSupervisor(settings.state, settings.notifier, loop),
        )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, loop.stop)
        try:
            await self._until_over(loop, agent_pool, supervisors, servers, probes)
        finally:
            await explainer.close()
        if loop.gone:
            raise lost_error(loop.gone)

    def _servers(self, context: ControllerContext, lock: StateLock, tcp: list[Tcp]) -> list[UnixServer | TcpServer]:
        app = BodyLimit(Routes(context).application())
        found: list[UnixServer | TcpServer] = [UnixServer(SocketAuth(app), context.state / api.SOCKET_NAME, lock.own)]
        return [*found, *(TcpServer(TokenAuth(app, each.token), each.listener, each.tls) for each in tcp)]

    async def _until_over(
        self,
        loop: Loop,
        agent_pool: AgentPool,
        supervisors: list[AgentSupervisor],
        servers: list[UnixServer | TcpServer],
        probes: Sequence[ForecastProbe | RateProbe | NotifierSupervisor],
    ) -> None:
        tasks = [asyncio.create_task(server.serve()) for server in servers]
        tasks += [asyncio.create_task(supervisor.run()) for supervisor in supervisors]
        tasks += [asyncio.create_task(probe.run()) for probe in probes]
        tasks += [asyncio.create_task(loop.watch_directory())]
        for task in tasks:
            task.add_done_callback(_say_why)
        agent_pool.start()
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
                await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))


def _say_why(task: asyncio.Task[None]) -> None:
    """A part of the controller that ends by an error is missed by nothing else: jobs go on without it."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        name = getattr(task.get_coro(), "__qualname__", task.get_name())
        log.error("%s has ended by an error; restart the controller (tide down, tide up)", name, exc_info=error)


def _skip_used_ids(loop: Loop, journal: Journal) -> None:
    """After turns were lost: their jobs' ids are not given out again."""
    next_job = loop.driver.engine.book.next_job
    if journal.next_job > next_job:
        text = f"job ids {next_job} to {journal.next_job - 1} were given out by turns that are lost, and are not used again"
        log.warning("%s", text)
        journal.notices.append(text)
        loop.post(JobIdsUsed(journal.next_job))


class _Overheard:
    """A fabric whose changes of nodes also reach the supervisors of the local agents."""

    def __init__(self, fabric: Fabric, supervisors: Sequence[AgentSupervisor]) -> None:
        self._fabric = fabric
        self._supervisors = {str(supervisor.agent.socket): supervisor for supervisor in supervisors}
        self._hosts = {supervisor.agent.state.name: supervisor for supervisor in supervisors}
        """By node; a host's directory has its name."""
        self.nodes, self.call, self.copy, self.close = fabric.nodes, fabric.call, fabric.copy, fabric.close

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        """As the fabric's."""

        def both(node: FabricNode) -> None:
            supervisor = self._supervisors.get(node.address)
            if supervisor is not None:
                supervisor.connected(node.alive)
                self._hosts[node.name] = supervisor
            on_node(node)

        self._fabric.watch(both, on_report)

    async def fence(self, node: str) -> None:
        """End what a node of this machine still runs; others are beyond reach."""
        if node in self._hosts:
            await fence(self._hosts[node].agent.state)
