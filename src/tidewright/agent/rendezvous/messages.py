"""Events and actions of the rendezvous server's machine. Connections are numbers that the
shell gives out, jobs are names.
"""

from __future__ import annotations

from msgspec import Struct

from .store import KeyValueStore

# Events


class ConnectionOpened(Struct, frozen=True):
    """``nonce``: the server's half of the challenge, fresh and random."""

    connection: int
    nonce: bytes


class ConnectionClosed(Struct, frozen=True):
    """The peer has hung up, or the line broke. More than once does no harm."""

    connection: int


class FrameReceived(Struct, frozen=True):
    """A whole frame without its length. The next of a connection may come once ``RendezvousMachine.accepts`` it."""

    connection: int
    frame: bytes


class WaitExpired(Struct, frozen=True):
    """What ``ArmWait`` asked for."""

    connection: int
    serial: int


class JobOpened(Struct, frozen=True):
    """Ranks that show one of ``tokens`` may connect from now on, and no others. ``journal``: what an earlier agent has left
    of its keys, where the job is not open yet."""

    job: str
    tokens: tuple[str, ...]
    journal: bytes = b""


class JobClosed(Struct, frozen=True):
    """No ranks of the job are here any more: its keys go."""

    job: str


class StoreReplaced(Struct, frozen=True):
    """The keys of an open job are others now. Ranks that are connected belong to those before, and are cut off."""

    job: str
    store: KeyValueStore


class GenerationNamed(Struct, frozen=True):
    """What the keys of an open job are for, where that is not known any more, and whether its ranks have a token of their own
    (``KeyValueStore.own_token``)."""

    job: str
    generation: str
    own_token: bool = False


class JournalFailed(Struct, frozen=True):
    """An append or a rewrite could not be carried out (a full disk); the file is not to be added to."""

    job: str


Event = (
    ConnectionOpened | ConnectionClosed | FrameReceived | WaitExpired | JobOpened | JobClosed | StoreReplaced
    | GenerationNamed | JournalFailed
)  # fmt: skip

# Actions. They are carried out in order: what is journalled stands in the file before its answer is sent.


class SendFrame(Struct, frozen=True):
    """``data`` is a whole frame with its length."""

    connection: int
    data: bytes


class CloseConnection(Struct, frozen=True):
    """Once what was sent is out."""

    connection: int


class AbortConnection(Struct, frozen=True):
    """At once."""

    connection: int


class ArmWait(Struct, frozen=True):
    """Say ``WaitExpired`` after ``delay_ms``. A connection has one timer at most."""

    connection: int
    serial: int
    delay_ms: int


class CancelWait(Struct, frozen=True):
    """The timer of the connection is not needed any more."""

    connection: int


class AppendJournal(Struct, frozen=True):
    """Add a record to the file."""

    job: str
    record: bytes


class RewriteJournal(Struct, frozen=True):
    """The file becomes ``snapshot``, in one step."""

    job: str
    snapshot: bytes


class DeleteJournal(Struct, frozen=True):
    """The file goes, if there is one."""

    job: str


Action = (
    SendFrame | CloseConnection | AbortConnection | ArmWait | CancelWait | AppendJournal | RewriteJournal | DeleteJournal
)  # fmt: skip
