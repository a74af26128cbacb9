"""What a node has beyond its devices: CRIU, a store of images, a peer server for other agents, a rendezvous server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..base.atomic import write_atomically
from ..base.errors import UsageError, WorldError
from ..checkpoint.criu.driver import CriuDriver, find_criu
from ..checkpoint.cuda.checkpoint import CudaApi, open_api
from ..checkpoint.cuda.driver import GpuDriver
from ..checkpoint.protocol import Driver
from ..checkpoint.store import FsspecRemote
from ..devices.protocol import Backend
from ..model.job import Level
from ..wire.agent import Peer
from .checkpointing.checkpoint_io import CheckpointIO
from .checkpointing.gang import Gangs
from .checkpointing.images import Images
from .layout import AgentLayout, write_if_room
from .peer_rpc import Handler, PeerServer
from .processes.attempt import Attempt
from .processes.time_slicer import TimeSlicer, held
from .rendezvous.coordinator import RendezvousCoordinator
from .rendezvous.server import RendezvousServer
from .services import Services
from .supervisor import Supervisor

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
LEAST_TOKEN = 16
"""Characters; a proof of a short token can be guessed from without asking any agent."""
DELETE_EVERY_S = 5.0
"""Between two rounds of removing remote copies; of no hurry, and what fails is tried again then."""
FINISH_S = 4.0
"""Longest that an agent which is to end still removes images of ended jobs."""


def read_token(path: Path) -> str:
    """The cluster's secret, made if there is none. Raises UsageError for a file that others can read."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        write_atomically(draft, secrets.token_hex(TOKEN_BYTES).encode(), durable=True)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # whole or not at all, also on a full disk, and never over another's
        draft.unlink()
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"the token in {path} belongs to user {found.st_uid}", "take one of your own")
    if found.st_mode & 0o077:
        raise UsageError(f"others can read the token in {path}", f"chmod 600 {path}")
    token = path.read_text().strip()
    if len(token) < LEAST_TOKEN:
        raise UsageError(
            f"the token in {path} has {len(token)} characters; {LEAST_TOKEN} at least",
            "write a long random one, or delete the file to have one made",
        )
    return token


class NodeServices:
    """``node`` is the backend's node, and says whether it takes full images; ``why_not`` says why it does not.

    ``api`` opens the driver of its GPUs, when it has any and only once a rank on them is to be saved.
    """

    def __init__(
        self,
        layout: AgentLayout,
        backend: Backend,
        address: str,
        token_file: Path | None,
        api: Callable[[], CudaApi] = open_api,
    ) -> None:
        self._layout, self._address, self._backend, self._api = layout, address, backend, api
        self._token = read_token(token_file or layout.root / "agent.token")
        self._criu = find_criu()
        self.why_not = self._criu if isinstance(self._criu, str) else ""
        self.criu = "" if isinstance(self._criu, str) else self._criu.version
        self.node = replace(backend.discover(), full=not self.why_not)
        self._rendezvous_server = RendezvousServer(layout.root / "meetings")
        self._peer_server: PeerServer | None = None
        self._images: Images | None = None
        self._time_slicer: TimeSlicer | None = None
        self._deleting: asyncio.Task[None] | None = None

    def attach_to(self, supervisor: Supervisor, drivers: dict[Level, Driver], remote: str, quota_bytes: int) -> None:
        """Attach what this node has to the supervisor."""

        def rank_dirs(key: tuple[int, int]) -> dict[int, Path] | None:
            attempt: Attempt | None = supervisor.attempts.get(key)
            return attempt.rank_dirs() if attempt is not None else None

        name = self.node.name
        gangs = Gangs(self._token, rank_dirs, supervisor.may_hold, supervisor.cut_decided)
        driver = self._driver()
        if self.node.kind != "cpu":
            self._time_slicer = TimeSlicer(self.node.device_memory, driver if isinstance(driver, GpuDriver) else None)
        share_modes = self._time_slicer.share_modes if self._time_slicer is not None else lambda attempt: {}
        rendezvous = RendezvousCoordinator(name, self._address, self._token, self._rendezvous_server, share_modes)
        handlers: dict[str, Handler] = {**gangs.handlers(), "meeting": rendezvous.endpoint}
        if driver is not None:
            drivers[Level.FULL] = driver
            place = FsspecRemote(remote) if remote else None
            self._images = images = Images(self._layout.images, self._token, quota_bytes, place)
            supervisor.attach_services(
                Services(gangs, rendezvous, CheckpointIO(self.node, driver, self._time_slicer), images)
            )
            handlers |= {verb: _in_thread(handle) for verb, handle in images.handlers().items()}
        else:
            supervisor.attach_services(Services(gangs, rendezvous))
        self._peer_server = PeerServer(self._token, handlers)

    async def open(self) -> None:
        """Listen, on the ports of the last time where they are free: ranks and other nodes remember them."""
        assert self._peer_server is not None
        ports = _remembered(self._layout.depot_port)
        await self._peer_server.open(self._address, ports[0])
        try:
            await self._rendezvous_server.start(self._address, ports[1])
        except WorldError:
            await self._rendezvous_server.start(self._address)
        write_if_room(self._layout.depot_port, f"{self._peer_server.port} {self._rendezvous_server.port}\n".encode())
        if self._images is not None:
            await asyncio.to_thread(self._images.sweep)
            self._deleting = asyncio.create_task(_run_pending_deletes(self._images))

    async def close(self, lost: str = "") -> None:
        """Stop listening, and removing what is elsewhere. ``lost``: why the state directory is another's, where it is."""
        if self._deleting is not None:
            self._deleting.cancel()
        if self._peer_server is not None:
            await self._peer_server.close()
        await self._rendezvous_server.stop()
        if self._time_slicer is not None:
            await asyncio.to_thread(self._time_slicer.close)
        if self._images is not None and not lost:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._images.finish), FINISH_S)

    def _driver(self) -> CriuDriver | GpuDriver | None:
        """What takes full images of this node's kind of rank."""
        if isinstance(self._criu, str):
            return None
        inner = CriuDriver(self.node.name, self._criu)
        if self.node.kind == "cpu":
            return inner
        return GpuDriver(inner, lambda: self.node.uuids, api=self._api, in_use=lambda pids: held(self._backend, pids))

    @property
    def peer(self) -> Peer | None:
        """How other nodes' agents reach this one."""
        return Peer(self.node.name, self._address, self._peer_server.port) if self._peer_server else None

    def listed(self) -> tuple[tuple[int, int, int], ...]:
        """(job, serial, rank) of the images here."""
        return self._images.listed() if self._images is not None else ()


async def _run_pending_deletes(images: Images) -> None:
    """Until cancelled: remove remote copies that no job needs, and what dropped images have left here."""
    while True:
        if images.pending_deletes is not None:
            await asyncio.to_thread(images.pending_deletes.run)
        await asyncio.to_thread(images.collect_due)
        await asyncio.sleep(DELETE_EVERY_S)


def _remembered(path: Path) -> tuple[int, int]:
    try:
        first, second = path.read_text().split()
        return int(first), int(second)
    except (OSError, ValueError):
        return 0, 0


def _in_thread(handle: Callable[[dict[str, Any]], Any]) -> Handler:
    """A blocking answer to another node, given in a thread."""

    async def answer(args: dict[str, Any]) -> Any:
        return await asyncio.to_thread(handle, args)

    return answer
