"""The fabric of one machine: a connection to the agent's socket, made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import NotFound, WorldError
from ..wire.agent import ErrorReply, Inventory, Line, RpcRequest, heartbeat_socket
from ..wire.framing import FrameError, Framer, decode, encode, raw
from .heartbeat import MOST_S, connect, wait_until_silent
from .protocol import FabricNode, Fenced, News, OnNode, OnReport, Refused, TooLarge, Unknown

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.2
"""Pauses between attempts to connect double from the first to the longest. An attempt at a socket of this machine costs some
100 us; an agent that starts is in use that much sooner."""
HELLO_S = 5.0
CHUNK = 2**20


class LocalFabric:
    """A connection to the agent at ``socket`` (DIR/agent.sock); must live in a running event loop once ``watch`` is called.

    The connection to an agent that misses its heartbeats for ``silence_s`` seconds is aborted: it is lost until it answers.
    """

    def __init__(self, socket: Path, silence_s: float = MOST_S) -> None:
        self._path, self._silence_s = socket, silence_s
        self._silence = ""
        """Why the connection was aborted; empty when it was not."""
        self._heartbeat: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Line]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._known: FabricNode | None = None
        self._up = asyncio.Event()
        self._before_hello: list[News] = []
        self._runner: asyncio.Task[None] | None = None
        self._on_node: OnNode = lambda node: None
        self._on_report: OnReport = lambda node, report: None

    def nodes(self) -> list[FabricNode]:
        return [self._known] if self._known else []

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        self._on_node, self._on_report = on_node, on_report
        self._start()

    def _start(self) -> None:
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._stay_connected())

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        self._start()
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
                if self._known is None or self._known.name != node:
                    raise NotFound(f"no node called {node!r}", "see tide nodes")
                line = await self._send_request(method, args, op_id, epoch)
        except TimeoutError as error:
            raise Unknown(f"unknown: node {node} did not answer {method} within {timeout:g} s") from error
        if line.error is not None:
            raise as_exception(line.error)
        result: dict[str, Any] = msgspec.json.decode(bytes(line.ok) or b"{}")
        return result

    async def _send_request(self, method: str, args: dict[str, Any], op_id: str, epoch: int) -> Line:
        if self._writer is None:
            raise Unknown(f"unknown: the connection broke before {method}")
        number = next(self._ids)
        answer: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(encode(RpcRequest(number, method, op_id, epoch, raw(args))))
            return await answer
        except FrameError as error:
            raise TooLarge(str(error), "send less, e.g. a smaller environment") from error
        finally:
            self._waiting.pop(number, None)

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            why, self._silence = "its agent has closed the connection", ""
            try:
                reader, writer = await connect(self._path)
                await self._converse(reader, writer)
            except (OSError, FrameError, WorldError, TimeoutError) as error:
                why = f"its agent does not answer: {error or type(error).__name__}"
            except Exception as error:
                log.exception("the connection to the agent is made anew")
                why = f"what it said could not be used: {error}"
            why = self._silence or why
            pause = FIRST_PAUSE_S if self._up.is_set() else min(2 * pause, LONGEST_PAUSE_S)
            self._lost(why)
            await asyncio.sleep(pause)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first request to its end. Raises what the callbacks of ``watch`` raise."""
        self._writer = writer
        hello = asyncio.get_running_loop().create_task(self._hello())
        try:
            framer = Framer()
            while data := await reader.read(2**16):
                for frame in framer.feed(data):
                    self._receive(decode(frame, Line))
        finally:
            hello.cancel()
            self._writer = None
            writer.close()
            await asyncio.wait([hello])
            if self._heartbeat is not None:
                self._heartbeat.cancel()
                self._heartbeat = None
        if not hello.cancelled():
            hello.result()

    async def _hello(self) -> None:
        """Ask for the inventory, announce the node and allow calls; on any failure the connection is closed."""
        try:
            async with asyncio.timeout(HELLO_S):
                line = await self._send_request("inventory", {}, "", 0)
            found = msgspec.json.decode(bytes(line.ok) or b"{}", type=Inventory)
            self._register_node(found)
            if found.heartbeats:
                self._heartbeat = asyncio.get_running_loop().create_task(self._watch_heartbeat())
        except (TimeoutError, msgspec.MsgspecError, Unknown) as error:
            log.warning("the agent's first answer is no inventory: %s", error)
            self._hang_up()
        except Exception:
            self._hang_up()
            raise

    async def _watch_heartbeat(self) -> None:
        """Abort the connection once the agent misses its heartbeats. Calls it has not read yet are not carried out: it checks
        whether its caller is still connected."""
        await wait_until_silent(heartbeat_socket(self._path), self._silence_s)
        self._silence = f"its agent is there but has not moved for {self._silence_s:.3g} s"
        log.warning("%s: %s", self._path, self._silence)
        if self._writer is not None:
            self._writer.transport.abort()  # a close would wait until the agent has read everything

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _register_node(self, found: Inventory) -> None:
        """Announce the node, then pass on the reports that came before."""
        self._known = FabricNode(
            name=found.node.name,
            incarnation=found.incarnation,
            address=str(self._path),
            alive=True,
            spec=found.node,
        )
        self._on_node(self._known)
        self._up.set()
        while self._before_hello:
            self._pass_on(self._before_hello.pop(0))

    def _receive(self, line: Line) -> None:
        if (news := line.report or line.health) is not None:
            self._pass_on(news)
        elif (answer := self._waiting.get(line.id)) is not None and not answer.done():
            answer.set_result(line)
        elif line.error is not None:
            log.warning("the agent reports an error: %s", line.error.message)

    def _pass_on(self, report: News) -> None:
        """Reports that come before the node was announced wait until it is."""
        if self._up.is_set() and self._known is not None:
            self._on_report(self._known.name, report)
        else:
            self._before_hello.append(report)

    def _lost(self, why: str) -> None:
        """The connection is gone: calls under way have an unknown outcome."""
        self._up.clear()
        self._before_hello.clear()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unknown(f"unknown: {why}"))
        if self._known is not None and self._known.alive:
            self._known = msgspec.structs.replace(self._known, alive=False, why=why)
            try:
                self._on_node(self._known)
            except Exception:
                log.exception("the loss of node %s could not be reported", self._known.name)

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        """Both nodes are this machine."""
        await asyncio.to_thread(copy_verified, src, dst, digest)

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            self._runner = None
        self._on_node = lambda node: None
        self._lost("closed")


def as_exception(error: ErrorReply) -> Exception:
    """The exception for an agent's refusal."""
    if error.kind == "usage":
        return Refused(error.message, error.remedy)
    return Fenced(error.message) if error.kind == "fenced" else WorldError(error.message)


def copy_verified(src: Path, dst: Path, digest: str) -> None:
    """Copy a file whose SHA-256 is ``digest``; ``dst`` appears whole or not at all. Raises WorldError."""
    part, found = dst.with_name(f".{dst.name}.part"), hashlib.sha256()
    try:
        with src.open("rb") as source, part.open("wb") as target:
            while chunk := source.read(CHUNK):
                found.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        if found.hexdigest() != digest:
            raise WorldError(f"{src} is not what was announced: SHA-256 {found.hexdigest()}, not {digest}")
        part.rename(dst)
    except OSError as error:
        raise WorldError(f"cannot copy {src} to {dst}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
