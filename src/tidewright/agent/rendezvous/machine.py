"""The rendezvous server as a machine: one event in, the actions that follow out. No socket, file, clock or random number.

States of a connection, and what moves it (everything else closes it):

    NEW ----CHALLENGE----> CHALLENGED ---PROVE, right---> IDLE <----answered, LATE----+
     |                         |                           |                         |
     +------HELLO, right-------|---------------------------^                         |
     |                         |                           +--request that waits--> WAITING
     +-------- wrong, late, or one too many -> closed                                |
                                            closed <--- hung up, keys replaced ------+

An idle connection whose job's keys were replaced since is closed at its next request: it belongs to ranks of an earlier
generation. A request that waits is answered by the write that fulfils it, in the same step.

A job's journal is *sound* or *behind*: a failed write makes it behind, and the next write then rewrites it whole.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...launch.inject._tidewright.rendezvous import frames as fr
from . import journal_format
from . import messages as ms
from .store import QUEUE, Condition, KeyValueStore, OperationResult
from .waiting import WaitingRequest, WaitingRequests

JOURNAL_LIMIT = 4 << 20
"""Bytes added to a job's journal, at least, after which it is rewritten."""
GREET_MS = 10_000
"""How long a connection may take to show an access token."""


class ConnectionState(Enum):
    """See the drawing above."""

    NEW = "new"
    CHALLENGED = "challenged"
    IDLE = "idle"
    WAITING = "waiting"


@dataclass(slots=True)
class _Connection:
    nonce: bytes
    state: ConnectionState = ConnectionState.NEW
    challenge: bytes = b""
    serial: int = 0
    """Of its latest timer."""
    job: _Job | None = None
    store: KeyValueStore | None = None
    """The keys that it has come for."""


@dataclass(slots=True)
class _Job:
    name: str
    tokens: tuple[str, ...]
    store: KeyValueStore
    waiting: WaitingRequests = field(default_factory=WaitingRequests)
    sound: bool = False
    """Its journal holds all that was done, and can be added to."""
    appended: int = 0
    snapshot: int = 0
    """Bytes of the journal since, and of, its snapshot."""


class RendezvousMachine:
    """``journals``: whether jobs' keys are kept in files. ``most_unknown``: connections at once that have not shown an access
    token yet; one more ends the oldest of them."""

    def __init__(self, *, journals: bool, most_unknown: int) -> None:
        self._journals, self.most_unknown = journals, most_unknown
        self._jobs: dict[str, _Job] = {}
        self._connections: dict[int, _Connection] = {}
        self._unknown: dict[int, None] = {}
        """Connections that have not shown a token, oldest first."""
        self._actions: list[ms.Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            ms.ConnectionOpened: self._opened,
            ms.ConnectionClosed: self._closed,
            ms.FrameReceived: self._received,
            ms.WaitExpired: self._expired,
            ms.JobOpened: self._job_opened,
            ms.JobClosed: self._job_closed,
            ms.StoreReplaced: self._replaced,
            ms.GenerationNamed: self._named,
            ms.JournalFailed: self._journal_failed,
        }

    def step(self, event: ms.Event) -> list[ms.Action]:
        """What is to be done now, in this order."""
        self._actions = []
        self._handlers[type(event)](event)
        return self._actions

    # Questions

    def accepts(self, connection: int) -> bool:
        """Whether the next frame of a connection may come; not while a request waits."""
        found = self._connections.get(connection)
        return found is not None and found.state is not ConnectionState.WAITING

    def longest_frame(self, connection: int) -> int:
        """Bytes that a frame of it may have."""
        return fr.SHORT if connection in self._unknown else fr.LONGEST

    def store(self, job: str) -> KeyValueStore | None:
        """The keys of a job that is open."""
        found = self._jobs.get(job)
        return None if found is None else found.store

    def tokens(self, job: str) -> tuple[str, ...]:
        """What opens a job; nothing when it is not open."""
        found = self._jobs.get(job)
        return () if found is None else found.tokens

    def waiting(self, job: str) -> int:
        """How many requests of a job wait."""
        found = self._jobs.get(job)
        return 0 if found is None else len(found.waiting)

    @property
    def unknown(self) -> int:
        """Connections that have not shown an access token."""
        return len(self._unknown)

    # Connections

    def _do(self, action: ms.Action) -> None:
        self._actions.append(action)

    def _opened(self, event: ms.ConnectionOpened) -> None:
        self._connections[event.connection] = _Connection(event.nonce)
        self._unknown[event.connection] = None
        self._do(ms.ArmWait(event.connection, 0, GREET_MS))
        if len(self._unknown) > self.most_unknown:
            oldest = next(iter(self._unknown))
            self._forget(oldest)
            self._do(ms.AbortConnection(oldest))

    def _closed(self, event: ms.ConnectionClosed) -> None:
        self._forget(event.connection)

    def _forget(self, connection: int) -> None:
        found = self._connections.pop(connection, None)
        if found is None:
            return
        if found.job is not None:
            found.job.waiting.remove(connection)
        self._unknown.pop(connection, None)
        self._do(ms.CancelWait(connection))

    def _close(self, connection: int) -> None:
        self._forget(connection)
        self._do(ms.CloseConnection(connection))

    def _received(self, event: ms.FrameReceived) -> None:
        found = self._connections.get(event.connection)
        if found is None:
            return  # it was closed a moment ago
        try:
            code, parts = fr.unpack(event.frame)
        except ValueError:
            self._close(event.connection)
            return
        if found.job is None:
            self._greet(event.connection, found, code, parts)
        elif found.job.store is not found.store:
            self._close(event.connection)
        else:
            self._request(event.connection, found, found.job, code, parts)

    def _greet(self, connection: int, found: _Connection, code: int, parts: list[bytes]) -> None:
        """Whose rank it is, by what it can prove."""
        shown, fresh = parts[0] if len(parts) == 1 else b"", found.state is ConnectionState.NEW
        if fresh and code == fr.CHALLENGE and len(shown) == fr.NONCE:
            found.state, found.challenge = ConnectionState.CHALLENGED, shown
            self._do(ms.SendFrame(connection, fr.pack(fr.OK, [found.nonce])))
            return
        job, token = None, ""
        if len(parts) == 1 and code == (fr.HELLO if fresh else fr.PROVE):
            rank, server = found.challenge, found.nonce
            job, token = self._whose(
                shown, (lambda token: token) if fresh else lambda token: fr.proof(b"rank", token, rank, server)
            )
        if job is None:
            self._do(ms.SendFrame(connection, fr.pack(fr.BAD, [b"unknown token"])))
            self._close(connection)
            return
        answer = [] if fresh else [fr.proof(b"store", token.encode(), found.challenge, found.nonce)]
        found.state, found.job, found.store = ConnectionState.IDLE, job, job.store
        del self._unknown[connection]
        self._do(ms.CancelWait(connection))
        self._do(ms.SendFrame(connection, fr.pack(fr.OK, answer)))

    def _whose(self, shown: bytes, wanted: Callable[[bytes], bytes]) -> tuple[_Job | None, str]:
        """The job that is opened, and by which token. Every job's are compared, each in constant time."""
        found: tuple[_Job | None, str] = None, ""
        for job in self._jobs.values():
            for token in job.tokens:
                if hmac.compare_digest(wanted(token.encode()), shown):
                    found = job, token
        return found

    def _expired(self, event: ms.WaitExpired) -> None:
        found = self._connections.get(event.connection)
        if found is None or found.serial != event.serial:
            return  # it was answered, or closed, a moment ago
        if found.job is None:
            self._close(event.connection)
        elif event.connection in found.job.waiting:
            self._answer(event.connection, found.job, fr.pack(fr.LATE, []))

    # Requests

    def _request(self, connection: int, found: _Connection, job: _Job, code: int, parts: list[bytes]) -> None:
        """``parts``: the world, the time to wait (ms, 0 without end), and the operation's own."""
        try:
            world, wait_ms, args = parts[0], fr.to_number(parts[1]), parts[2:]
            outcome = job.store.apply(code, world, args)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            self._do(ms.SendFrame(connection, fr.pack(fr.BAD, [repr(error).encode()])))
            return
        found.serial += 1
        request = WaitingRequest(found.serial, code, world, args)
        if outcome.answer is None:
            found.state = ConnectionState.WAITING
            if wait_ms:
                self._do(ms.ArmWait(connection, found.serial, max(0, wait_ms)))
        self._settle(job, connection, request, outcome)

    def _settle(self, job: _Job, connection: int, request: WaitingRequest, outcome: OperationResult) -> None:
        """Record what an operation did, answer it, and poll the requests that it may fulfil."""
        todo: deque[Condition] = deque()
        self._carry_out(job, connection, request, outcome, todo)
        while todo:
            self._wake(job, todo.popleft(), todo)

    def _carry_out(
        self, job: _Job, connection: int, request: WaitingRequest, outcome: OperationResult, todo: deque[Condition]
    ) -> None:
        if outcome.changed:
            self._note(job, journal_format.record(request.code, request.world, request.parts))
        if outcome.answer is None:
            job.waiting.add(connection, request, outcome.awaits)
        else:
            self._answer(connection, job, fr.pack(fr.OK, outcome.answer))
        todo.extend(outcome.wakes)
        if outcome.emptied is not None:
            self._rejoin(job, outcome.emptied, todo)

    def _answer(self, connection: int, job: _Job, frame: bytes) -> None:
        found = self._connections[connection]
        if found.state is ConnectionState.WAITING:
            found.state = ConnectionState.IDLE
            job.waiting.remove(connection)
            self._do(ms.CancelWait(connection))
        self._do(ms.SendFrame(connection, frame))

    def _wake(self, job: _Job, condition: Condition, todo: deque[Condition]) -> None:
        """Try again those that wait for ``condition``, in the order in which they came."""
        for connection in job.waiting.on(condition):
            if self._again(job, connection, job.store.poll, todo) is None and condition.kind == QUEUE:
                return  # it is empty for the others, too

    def _rejoin(self, job: _Job, worlds: bytes, todo: deque[Condition]) -> None:
        """Who waited in a round of a world that was emptied joins the new one."""
        for connection in job.waiting.connections():
            request = job.waiting.get(connection)
            if request is not None and request.code == fr.GATHER and request.world.startswith(worlds):
                self._again(job, connection, job.store.apply, todo)

    def _again(
        self, job: _Job, connection: int, operation: Callable[..., OperationResult], todo: deque[Condition]
    ) -> list[bytes] | None:
        """Do a request that waits once more; its answer."""
        request = job.waiting.get(connection)
        if request is None:
            return []
        try:
            outcome = operation(request.code, request.world, request.parts)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            self._answer(connection, job, fr.pack(fr.BAD, [repr(error).encode()]))
            return []
        self._carry_out(job, connection, request, outcome, todo)
        return outcome.answer

    # Jobs and their journals

    def _job_opened(self, event: ms.JobOpened) -> None:
        found = self._jobs.get(event.job)
        if found is not None:
            found.tokens = event.tokens
            return
        job = self._jobs[event.job] = _Job(event.job, event.tokens, journal_format.replay(event.journal))
        self._rewrite(job)

    def _job_closed(self, event: ms.JobClosed) -> None:
        found = self._jobs.pop(event.job, None)
        if found is not None:
            self._cut_off(found, KeyValueStore())
        if self._journals:
            self._do(ms.DeleteJournal(event.job))

    def _replaced(self, event: ms.StoreReplaced) -> None:
        job = self._jobs[event.job]
        if self._journals:
            self._do(ms.DeleteJournal(event.job))  # on a full disk nothing is better than what is not so any more
        self._cut_off(job, event.store)
        self._rewrite(job)

    def _cut_off(self, job: _Job, store: KeyValueStore) -> None:
        job.store = store
        for connection in job.waiting.connections():
            self._close(connection)

    def _named(self, event: ms.GenerationNamed) -> None:
        job = self._jobs[event.job]
        job.store.generation, job.store.own_token = event.generation, event.own_token
        self._rewrite(job)

    def _note(self, job: _Job, record: bytes) -> None:
        """Something was done. It cannot be taken back: a full disk costs the next agent its memory, and not the ranks theirs."""
        if not self._journals:
            return
        if job.sound:
            self._do(ms.AppendJournal(job.name, record))
            job.appended += len(record)
        if not job.sound or job.appended > max(JOURNAL_LIMIT, job.snapshot):
            self._rewrite(job)

    def _rewrite(self, job: _Job) -> None:
        if self._journals:
            text = journal_format.snapshot(job.store)
            job.sound, job.appended, job.snapshot = True, 0, len(text)
            self._do(ms.RewriteJournal(job.name, text))

    def _journal_failed(self, event: ms.JournalFailed) -> None:
        if event.job in self._jobs:
            self._jobs[event.job].sound = False
