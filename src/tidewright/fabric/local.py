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
from ..wire.agent import (
    ErrorReply,
    FrameError,
    Framer,
    Inventory,
    Line,
    RpcRequest,
    decode,
    encode,
    pulse_socket,
    raw,
)
from .protocol import FabricNode, Fenced, News, OnNode, OnReport, Refused, TooLarge, Unknown
from .pulse import MOST_S, connect, faded

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Pauses between attempts to connect double from the first to the longest."""
HELLO_S = 5.0
CHUNK = 2**20


class LocalFabric:
    """Speaks to the agent at ``socket`` (DIR/agent.sock); must live in a running event loop once ``watch`` is called.

    An agent that misses its heartbeats for ``silence_s`` seconds is hung up on: it counts as lost until it answers.
    """

    def __init__(self, socket: Path, silence_s: float = MOST_S) -> None:
        self._path, self._silence_s = socket, silence_s
        self._silence = ""
        """Why the agent was hung up on; empty when it was not."""
        self._pulse: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Line]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._known: FabricNode | None = None
        self._up = asyncio.Event()
        self._early: list[News] = []
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
                line = await self._ask(method, args, op_id, epoch)
        except TimeoutError as error:
            raise Unknown(f"unknown: node {node} did not answer {method} within {timeout:g} s") from error
        if line.error is not None:
            raise as_exception(line.error)
        result: dict[str, Any] = msgspec.json.decode(bytes(line.ok) or b"{}")
        return result

    async def _ask(self, method: str, args: dict[str, Any], op_id: str, epoch: int) -> Line:
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
        """One connection from its first question to its end. Raises what whoever watches raises."""
        self._writer = writer
        hello = asyncio.get_running_loop().create_task(self._hello())
        try:
            framer = Framer()
            while data := await reader.read(2**16):
                for frame in framer.feed(data):
                    self._take(decode(frame, Line))
        finally:
            hello.cancel()
            self._writer = None
            writer.close()
            await asyncio.wait([hello])
            if self._pulse is not None:
                self._pulse.cancel()
                self._pulse = None
        if not hello.cancelled():
            hello.result()

    async def _hello(self) -> None:
        """Learn who is there, tell, and let calls through; whatever goes wrong, the agent is hung up on."""
        try:
            async with asyncio.timeout(HELLO_S):
                line = await self._ask("inventory", {}, "", 0)
            found = msgspec.json.decode(bytes(line.ok) or b"{}", type=Inventory)
            self._meet(found)
            if found.beats:
                self._pulse = asyncio.get_running_loop().create_task(self._feel())
        except (TimeoutError, msgspec.MsgspecError, Unknown) as error:
            log.warning("the agent's first answer is no inventory: %s", error)
            self._hang_up()
        except Exception:
            self._hang_up()
            raise

    async def _feel(self) -> None:
        """Give the connection up once the agent does not move. What it has not read yet it will not act on: it looks
        whether its caller is still there."""
        await faded(pulse_socket(self._path), self._silence_s)
        self._silence = f"its agent is there but has not moved for {self._silence_s:.3g} s"
        log.warning("%s: %s", self._path, self._silence)
        if self._writer is not None:
            self._writer.transport.abort()  # a close would wait until the agent has read everything

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _meet(self, found: Inventory) -> None:
        """Tell of a node, then of the reports that came before."""
        self._known = FabricNode(
            name=found.node.name,
            incarnation=found.incarnation,
            address=str(self._path),
            alive=True,
            spec=found.node,
        )
        self._on_node(self._known)
        self._up.set()
        while self._early:
            self._pass_on(self._early.pop(0))

    def _take(self, line: Line) -> None:
        if (news := line.report or line.health) is not None:
            self._pass_on(news)
        elif (answer := self._waiting.get(line.id)) is not None and not answer.done():
            answer.set_result(line)
        elif line.error is not None:
            log.warning("the agent complains: %s", line.error.message)

    def _pass_on(self, report: News) -> None:
        """News that comes before the node was told of wait until it was."""
        if self._up.is_set() and self._known is not None:
            self._on_report(self._known.name, report)
        else:
            self._early.append(report)

    def _lost(self, why: str) -> None:
        """The connection is gone: calls under way have an unknown outcome."""
        self._up.clear()
        self._early.clear()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unknown(f"unknown: {why}"))
        if self._known is not None and self._known.alive:
            self._known = msgspec.structs.replace(self._known, alive=False, why=why)
            try:
                self._on_node(self._known)
            except Exception:
                log.exception("nobody could be told that node %s is away", self._known.name)

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
    """What an agent's refusal is here."""
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
