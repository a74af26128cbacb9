"""One agent process: lock, devices, drivers, adoption, socket, and a slow safety poll until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import logging.handlers
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..base.errors import Conflict, UsageError
from ..checkpoint import limits
from ..checkpoint.cgroup import detect
from ..checkpoint.cooperative import CooperativeDriver
from ..checkpoint.freeze import FreezeDriver
from ..checkpoint.protocol import Driver
from ..devices.protocol import Backend
from ..devices.registry import open_backend
from ..model.job import Level
from ..model.node import DeviceFault
from ..wire.agent import Health, HealthPush, Inventory, JobReport, NoArgs, Usage, heartbeat_socket
from ..wire.connections import raise_open_files
from ..wire.holder import sign
from ..wire.log_limit import LogLimit
from ..wire.own_directory import DirectoryLost, OwnDirectory
from ..wire.socket_file import LOOK_EVERY_S
from ..wire.state_files import open_own
from .health import HealthMonitor
from .heartbeat import Heartbeat
from .layout import AgentLayout, write_if_room
from .lost_directory import DirectoryWatch
from .node_services import NodeServices
from .processes.log_cap import LIMIT_BYTES, LogCap
from .processes.rank_spec import NodeContext
from .processes.usage import UsageMeter
from .server import AgentServer, Epoch
from .supervisor import Supervisor

log = logging.getLogger(__name__)

HEALTH_CHECK_S = 5.0
"""The safety poll; ends are announced by pidfds, this finds what slipped through."""
LOG_BYTES = 10 * 2**20
THREADS = 64
"""For short blocking calls; they mostly wait for the kernel."""


def take_lock(layout: AgentLayout) -> IO[str]:
    """Become the only agent of a state directory. Raises Conflict naming the other one."""
    file = os.fdopen(open_own(layout.lock, os.O_RDWR | os.O_CREAT), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        pid = layout.pid.read_text().strip() if layout.pid.exists() else "?"
        raise Conflict(
            f"another agent (pid {pid}) runs on {layout.root}", "use it, stop it first, or give another --state"
        ) from error
    sign(file.fileno())
    return file


class _OwnLog(logging.handlers.RotatingFileHandler):
    """A log that is a file of ours, not what a link of its name leads to."""

    def _open(self) -> Any:
        return os.fdopen(open_own(Path(self.baseFilename), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a")


def log_to(layout: AgentLayout) -> None:
    """Log to ``agent.log``, ten MiB and one older file."""
    handler = _OwnLog(layout.log, maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(LogLimit())
    logging.getLogger("tidewright").setLevel(logging.INFO)
    for name in ("tidewright", "asyncio"):  # asyncio complains by itself when descriptors are short
        logging.getLogger(name).addHandler(handler)


def incarnation() -> str:
    """New after each boot: what is younger than it may live, what is older is dead."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class AgentSettings:
    """Settings of an agent. ``address`` is where other nodes reach it; ``token_file`` holds the secret of their peer servers."""

    state: Path
    name: str
    backend: str = "auto"
    slots: int = 0
    cores: tuple[int, ...] = ()
    address: str = "127.0.0.1"
    token_file: Path | None = None
    socket: Path | None = None
    """Where it listens for its controller, if not in its state directory."""
    controller: Mapping[str, str] = field(default_factory=dict)
    """Variables by which ranks' own ``tide`` reaches the controller."""
    remote: str = ""
    """URL where images are copied to; empty: nowhere."""
    quota_bytes: int = 0
    """Most bytes the image store may take; 0: what the disk has."""
    log_limit: int = LIMIT_BYTES
    """Most bytes the log of a rank may take; 0: what the disk has."""


class Agent:
    """One node's agent over a device backend and checkpoint drivers."""

    def __init__(
        self,
        settings: AgentSettings,
        layout: AgentLayout,
        backend: Backend,
        open_files: int = 0,
        own: OwnDirectory | None = None,
    ) -> None:
        self._settings, self._layout, self._backend, self._own = settings, layout, backend, own
        self.lost: DirectoryLost | None = None
        """Why it ended: what has become of its state directory; None where that is as it was."""
        self._epoch = Epoch(layout.epoch)
        self._meter, self._heartbeat = UsageMeter(backend), Heartbeat()
        self._node_services = NodeServices(layout, backend, settings.address, settings.token_file)
        self._node = self._node_services.node
        freezer = detect()
        self._limits = limits.detect(freezer)
        node_context = NodeContext(
            layout, backend, freezer, self._node.full, self._limits, open_files, settings.controller
        )
        drivers = standard_drivers(self._node.name)
        self._supervisor = Supervisor(
            node_context, drivers, self._publish, log_cap=LogCap(settings.log_limit), boot=incarnation()
        )
        self._node_services.attach_to(self._supervisor, drivers, settings.remote, settings.quota_bytes)
        self._health = HealthMonitor(backend, layout.health, incarnation(), self._publish_health)
        if self._node.kind != "cpu":  # a core does not fail alone
            self._supervisor.steps.health = self._health
        readings = {"inventory": self._inventory, "usage": self._usage, "forgive": self._forgive}
        self._server = AgentServer(self._epoch, {**readings, **self._verbs()})

    def _publish(self, report: JobReport) -> None:
        log.info("job %d attempt %d: %s %s%s", report.job, report.attempt, report.state, report.error, report.why)
        self._server.publish(report)

    def _publish_health(self, faults: tuple[DeviceFault, ...]) -> None:
        self._server.push(HealthPush(Health(faults)))

    async def _forgive(self, args: NoArgs, op_id: str) -> Health:
        await asyncio.to_thread(self._health.forgive)
        await self._health.refresh()
        return Health(self._health.faults)

    def _verbs(self) -> dict[str, Any]:
        def handler(verb: Any) -> Any:
            async def handle(args: Any, op_id: str) -> JobReport:
                report: JobReport = verb(args, op_id)
                return report

            return handle

        names = ("launch", "suspend", "resume", "stop", "forget", "checkpoint", "fetch")
        return {name: handler(getattr(self._supervisor, name)) for name in names}

    async def _inventory(self, args: NoArgs, op_id: str) -> Inventory:
        await self._health.refresh()
        faults = self._health.faults
        return Inventory(
            node=self._node,
            incarnation=incarnation(),
            epoch=self._epoch.value,
            pid=os.getpid(),
            jobs=self._supervisor.reports(),
            unhealthy={one.device: one.why for one in faults},
            faults=faults,
            peer=self._node_services.peer,
            full=self._node_services.why_not,
            criu=self._node_services.criu,
            unlimited=self._limits.missing,
            images=await asyncio.to_thread(self._node_services.listed),
            heartbeats=True,
        )

    async def _usage(self, args: NoArgs, op_id: str) -> Usage:
        return await asyncio.to_thread(self._meter.read, list(self._supervisor.attempts.values()))

    async def run(self, until: asyncio.Event) -> None:
        """Adopt, listen, and serve until ``until`` is set or the state directory is lost; ranks live on."""
        await self._node_services.open()
        self._supervisor.adopt()
        socket = self._settings.socket or self._layout.socket
        self._heartbeat.open(heartbeat_socket(socket), self._own)
        await self._server.open(socket, self._own)
        guards = (self._supervisor.memory.watch(), self._health.watch())
        works = (self._look_for_sockets(), self._look_after_directory(until), self._supervisor.cap_logs(), *guards)
        tasks = [asyncio.create_task(work) for work in works]
        log.info("agent %d serves node %s: %s", os.getpid(), self._node.name, self._node)
        while not until.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), HEALTH_CHECK_S)
            self._supervisor.health_check()
            self._heartbeat.tick()
        for task in tasks:
            task.cancel()
        await self._server.close()
        await self._supervisor.close()
        if not self.lost:  # groups of that name may be those of another agent, which has the directory's name now
            self._supervisor.clear_groups()
        await self._node_services.close(self.lost.message if self.lost is not None else "")
        self._heartbeat.close()

    async def _look_after_directory(self, until: asyncio.Event) -> None:
        """End where the state directory is not this agent's any more."""
        if self._own is None:
            return
        watch = DirectoryWatch(self._own, self._settings.controller.get("TIDE_STATE", ""))
        self.lost = await watch.until_lost(self._supervisor.attempts)
        until.set()

    async def _look_for_sockets(self) -> None:
        """Without their files no controller could connect again; what is connected would take it for dead."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self._heartbeat.look()
                await self._server.look()
            except OSError as error:
                log.warning("a socket whose file was removed cannot be created again: %s", error)


def standard_drivers(node: str) -> dict[Level, Driver]:
    """What this build can suspend by."""
    return {
        Level.FREEZE: FreezeDriver(node),
        Level.COOPERATIVE: CooperativeDriver(),
        Level.REQUEUE: CooperativeDriver(Level.REQUEUE),
    }


async def serve(settings: AgentSettings, layout: AgentLayout, backend: Backend, own: OwnDirectory) -> None:
    """Run an agent until SIGTERM or SIGINT. Raises DirectoryLost."""
    until = asyncio.Event()
    # The default is 6 threads on two cores; ranks being stopped or restored would wait for each other.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="work"))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    # Ranks get the limit that the agent was started with, and the agent what it may have: select(2) ends at 1024.
    agent = Agent(settings, layout, backend, raise_open_files(), own)
    await agent.run(until)
    if agent.lost:
        raise agent.lost


def run_agent(settings: AgentSettings) -> None:
    """The agent's whole life. Raises UsageError (bad settings, second agent, DirectoryLost) and WorldError (no such hardware)."""
    os.umask(0o077)
    logging.raiseExceptions = False  # on a full disk a line is lost, and no traceback takes its place
    layout = AgentLayout(settings.state)
    if settings.controller.get("TIDE_STATE") and not layout.root.is_dir():
        # Its controller made it, and has it no more: what this made would be in the way when that is renamed back.
        raise UsageError(f"{layout.root} has been removed or renamed", "its controller ends, too; then call tide up")
    layout.prepare()
    with (
        take_lock(layout) as lock,
        contextlib.closing(OwnDirectory(layout.root, layout.lock.name, lock.fileno())) as own,
    ):
        log_to(layout)
        layout.take_id()
        write_if_room(layout.pid, f"{os.getpid()}\n".encode())
        confine(settings.cores)
        devices = open_backend(settings.backend, settings.name, settings.slots)
        try:
            asyncio.run(serve(settings, layout, devices, own))
        finally:
            devices.close()
            if not own.lost():
                layout.pid.unlink(missing_ok=True)


def confine(cores: tuple[int, ...]) -> None:
    """Keep this agent, and with it its CPU slots, to some of the host's cores. Raises UsageError."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        has = sorted(os.sched_getaffinity(0))
        raise UsageError(f"cores {list(cores)} cannot be used: {error.strerror}", f"choose from {has}") from error
