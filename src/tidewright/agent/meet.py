"""The rendezvous store of jobs: where ranks of one job find each other, served by an agent instead of a rank.

A rank that hosted it could not be moved without the others noticing. Keys belong to a job and, within it, to a
*world* (one process group of torch with all its groups). A job's keys can be taken along with its image (``dump``) and
put back (``load``); they are also kept in a file, so that an agent that was killed starts where it was.

Refuses to know what the keys mean. Bytes in, bytes out: nothing that arrives here is ever evaluated.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..base.errors import WorldError
from ..launch.inject._tidewright import frames as fr
from ..wire.connections import room_for
from ..wire.state_files import open_own
from .meet_keys import Shelf

log = logging.getLogger(__name__)

LOG_LIMIT = 4 << 20
"""Bytes added to a job's file, at least, after which it is written anew."""
GREET_S = 10
MOST_UNKNOWN = 1024
"""Connections that have not shown a token yet, and how long each may take; one more ends the oldest of them. A gang's ranks
come all at once."""
IDLE_S = 60
"""After so long without a word the kernel asks whether a rank's machine is still there."""


class _Job:
    """One job's shelf, its token, those who wait for its keys, and its file."""

    def __init__(self, token: str, file: Path | None) -> None:
        self.token = token
        self.shelf = Shelf()
        self.changed = asyncio.Event()
        self.file = file
        self.log = -1
        """Where the file goes on; -1: it is not as it should be (a full disk), and must be written anew."""
        self.logged = self._snapshot = 0
        self._behind = False
        if file is not None:
            self._replay(file)
            self.kept(self.rewrite)

    def _replay(self, file: Path) -> None:
        """Up to the first record that is not whole: the agent was killed while it wrote it, and answered nobody."""
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError, struct.error, msgspec.DecodeError):
            text = file.read_bytes()
            (size,) = fr.HEAD.unpack(text[:4])  # a snapshot may be longer than a frame
            self.shelf = msgspec.msgpack.decode(text[4 : 4 + size], type=Shelf)
            at = 4 + size
            while at < len(text):
                size = fr.length(text[at : at + 4])
                code, parts = fr.unpack(text[at + 4 : at + 4 + size])
                self.shelf.act(code, parts[0], parts[1:])
                at += 4 + size

    def rewrite(self) -> None:
        """The file becomes a snapshot."""
        if self.file is None:
            return
        self.close()
        text = msgspec.msgpack.encode(self.shelf)
        fresh = self.file.with_suffix(".new")
        handle = open_own(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_all(handle, fr.HEAD.pack(len(text)) + text)
            os.replace(fresh, self.file)
        except OSError:
            os.close(handle)
            raise
        self.log, self.logged, self._snapshot = handle, 0, len(text)

    def replace(self, shelf: Shelf) -> None:
        """Another shelf, in the file too; those who wait for keys of the first hear of it."""
        self.shelf = shelf
        self.close()
        if self.file is not None:
            self.file.unlink(missing_ok=True)  # on a full disk nothing is better than what is not so any more
        self.kept(self.rewrite)
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def note(self, code: int, world: bytes, parts: Sequence[bytes]) -> None:
        """Something was written: into the file, and to those who wait. What is done cannot be taken back: a full disk
        costs the next agent its memory, and not the ranks theirs."""
        if self.file is not None:
            self.kept(lambda: self._append(fr.pack(code, [world, *parts])))
        self._wake()

    def _append(self, record: bytes) -> None:
        if self.log >= 0:
            _write_all(self.log, record)
            self.logged += len(record)
        if self.log < 0 or self.logged > max(LOG_LIMIT, self._snapshot):
            self.rewrite()

    def kept(self, write: Callable[[], None]) -> None:
        """Write to the file, or say once that it cannot be done."""
        try:
            write()
            self._behind = False
        except OSError as error:
            if not self._behind:
                log.error("%s cannot be written, the next agent will miss keys: %s", self.file, error.strerror)
            self._behind = True
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self.log >= 0:
            os.close(self.log)
            self.log = -1


class Meet:
    """The server. ``directory``: where jobs' keys survive the agent; None keeps them in memory only."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._jobs: dict[str, _Job] = {}
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._unknown: dict[asyncio.StreamWriter, None] = {}
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Raises ``WorldError`` when the address cannot be had."""
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise WorldError(f"the rendezvous store cannot listen on {host}:{port}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Close the door and all connections; keys stay in their files."""
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        for job in self._jobs.values():
            job.close()

    def open_job(self, job: str, token: str = "") -> str:
        """Have a shelf for ``job``; returns the token that its ranks show (a new one unless given)."""
        found = self._jobs.get(job)
        if found is None:
            found = self._jobs[job] = _Job(token or secrets.token_hex(16), self._file(job))
        elif token:
            found.token = token
        return found.token

    def close_job(self, job: str) -> None:
        """Forget the job and its keys."""
        found = self._jobs.pop(job, None)
        if found is not None:
            found.close()
            found.file = None  # whoever is still connected writes nothing any more
            found.replace(Shelf())
        file = self._file(job)
        if file is not None:
            file.unlink(missing_ok=True)

    def _file(self, job: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{job.replace('/', '-')}.meet"

    def dump(self, job: str) -> bytes:
        """All keys of a job, to travel with its image. Raises ``WorldError`` when there is no such job."""
        if job not in self._jobs:
            raise WorldError(f"no rendezvous keys of job {job} here")
        return msgspec.msgpack.encode(self._jobs[job].shelf)

    def sitting(self, job: str) -> str:
        """What the keys of a job here are for (``Shelf.sitting``); empty when there are none."""
        return self._jobs[job].shelf.sitting if job in self._jobs else ""

    def load(self, job: str, data: bytes = b"", sitting: str = "") -> None:
        """Put a job's keys back as they were dumped; none without a dump. Whoever is connected belongs to those that were
        here before, and hears nothing more. Raises ``WorldError`` when ``data`` is neither."""
        self.open_job(job)
        found = self._jobs[job]
        try:
            shelf = msgspec.msgpack.decode(data, type=Shelf) if data else Shelf()
        except msgspec.DecodeError as error:
            raise WorldError(f"the rendezvous keys of job {job} are damaged: {error}") from error
        shelf.sitting = sitting
        # A node may have let its ranks go before this dump was made. Those that had come by then are no more: were they
        # counted, a round would end without the ranks that come now, which would wait for ever.
        for one in shelf.rounds.values():
            one.here = {}
        found.replace(shelf)

    def sit(self, job: str, sitting: str) -> None:
        """Say what the keys of a job are for, where that is not known any more."""
        found = self._jobs[job]
        found.shelf.sitting = sitting
        found.kept(found.rewrite)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            _watch_over(writer)
            self._unknown[writer] = None
            if len(self._unknown) > room_for(0.25, MOST_UNKNOWN):
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]  # at once: its task ends later, and more connections may be there by then
                oldest.transport.abort()
            job = await self._greet(reader, writer)
            self._unknown.pop(writer, None)
            shelf = job.shelf if job else None
            while job is not None:
                code, parts = await _read(reader)
                if job.shelf is not shelf:
                    break
                writer.write(await _answer(job, code, parts, reader))
                await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._talks.discard(task)
            self._unknown.pop(writer, None)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Job | None:
        """Whose rank it is, by what it can prove. Every job's ticket is compared, each in constant time."""
        async with asyncio.timeout(GREET_S):
            code, parts = await _read(reader, fr.SHORT)
            rank, store = parts[0] if len(parts) == 1 else b"", os.urandom(fr.NONCE)
            challenged = code == fr.CHALLENGE and len(rank) == fr.NONCE
            if challenged:
                writer.write(fr.pack(fr.OK, [store]))
                code, parts = await _read(reader, fr.SHORT)
        if len(parts) != 1 or code != (fr.PROVE if challenged else fr.HELLO):
            found = None
        elif challenged:
            found = self._whose(parts[0], lambda ticket: fr.proof(b"rank", ticket, rank, store))
        else:
            found = self._whose(parts[0], lambda ticket: ticket)
        answer = [fr.proof(b"store", found.token.encode(), rank, store)] if found and challenged else []
        writer.write(fr.pack(fr.OK if found else fr.BAD, answer if found else [b"unknown token"]))
        await writer.drain()
        return found

    def _whose(self, shown: bytes, wanted: Callable[[bytes], bytes]) -> _Job | None:
        found = None
        for job in list(self._jobs.values()):
            if hmac.compare_digest(wanted(job.token.encode()), shown):
                found = job
        return found


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _watch_over(writer: asyncio.StreamWriter) -> None:
    """A rank whose node lost power hangs up by the kernel's word (tcp(7))."""
    line: socket.socket = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)


async def _read(reader: asyncio.StreamReader, longest: int = fr.LONGEST) -> tuple[int, list[bytes]]:
    return fr.unpack(await reader.readexactly(fr.length(await reader.readexactly(4), longest)))


async def _answer(job: _Job, code: int, parts: list[bytes], reader: asyncio.StreamReader) -> bytes:
    """``parts``: the world, the time to wait (ms, 0 for ever), and the operation's own."""
    try:
        world, late_ms, args = parts[0], fr.to_number(parts[1]), parts[2:]
        async with asyncio.timeout(late_ms / 1000 or None):
            shelf = job.shelf
            while True:
                changed = job.changed
                answer = shelf.act(code, world, args)
                if answer is not None:
                    break
                await changed.wait()
                if reader.at_eof() or job.shelf is not shelf:
                    raise OSError("the rank has hung up, or its time here is over")
    except TimeoutError:
        return fr.pack(fr.LATE, [])
    except (KeyError, IndexError, ValueError, TypeError) as error:
        return fr.pack(fr.BAD, [repr(error).encode()])
    if code in fr.WRITES:
        job.note(code, world, args)
    return fr.pack(fr.OK, answer)
