"""Events and actions of the rendezvous server's machine. Connections are numbers that the
shell gives out, jobs are names.
"""

from __future__ import annotations

from dataclasses import dataclass

from .store import KeyValueStore

# Events


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """``nonce``: the server's half of the challenge, fresh and random."""

    connection: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The peer has hung up, or the line broke. More than once does no harm."""

    connection: int


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A whole frame without its length. The next of a connection may come once ``RendezvousMachine.accepts`` it."""

    connection: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class WaitExpired:
    """What ``ArmWait`` asked for."""

    connection: int
    serial: int


@dataclass(frozen=True, slots=True)
class JobOpened:
    """Ranks that show one of ``tokens`` may connect from now on, and no others. ``journal``: what an earlier agent has left
    of its keys, where the job is not open yet."""

    job: str
    tokens: tuple[str, ...]
    journal: bytes = b""


@dataclass(frozen=True, slots=True)
class JobClosed:
    """No ranks of the job are here any more: its keys go."""

    job: str


@dataclass(frozen=True, slots=True)
class StoreReplaced:
    """The keys of an open job are others now. Ranks that are connected belong to those before, and are cut off."""

    job: str
    store: KeyValueStore


@dataclass(frozen=True, slots=True)
class GenerationNamed:
    """What the keys of an open job are for, where that is not known any more, and whether its ranks have a token of their own
    (``KeyValueStore.own_token``)."""

    job: str
    generation: str
    own_token: bool = False


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """An append or a rewrite could not be carried out (a full disk); the file is not to be added to."""

    job: str


Event = (
    ConnectionOpened | ConnectionClosed | FrameReceived | WaitExpired | JobOpened | JobClosed | StoreReplaced
    | GenerationNamed | JournalFailed
)  # fmt: skip

# Actions. They are carried out in order: what is journalled stands in the file before its answer is sent.


@dataclass(frozen=True, slots=True)
class SendFrame:
    """``data`` is a whole frame with its length."""

    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Once what was sent is out."""

    connection: int


@dataclass(frozen=True, slots=True)
class AbortConnection:
    """At once."""

    connection: int


@dataclass(frozen=True, slots=True)
class ArmWait:
    """Say ``WaitExpired`` after ``delay_ms``. A connection has one timer at most."""

    connection: int
    serial: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelWait:
    """The timer of the connection is not needed any more."""

    connection: int


@dataclass(frozen=True, slots=True)
class AppendJournal:
    """Add a record to the file."""

    job: str
    record: bytes


@dataclass(frozen=True, slots=True)
class RewriteJournal:
    """The file becomes ``snapshot``, in one step."""

    job: str
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class DeleteJournal:
    """The file goes, if there is one."""

    job: str


Action = (
    SendFrame | CloseConnection | AbortConnection | ArmWait | CancelWait | AppendJournal | RewriteJournal | DeleteJournal
)  # fmt: skip
