"""The key-value store of one job, and the table of operations on it, as torch's Store defines them.

Pure: no network, no file, no clock. The same operations in the same order lead to the same store; a journal (journal.py)
relies on it. So whatever changes a store is one operation of the table, and `OperationResult.changed` says that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from ...launch.inject._tidewright.rendezvous import frames as fr

ROUNDS_KEPT = 2
RANKS_MOST = 1 << 20
ANSWERS_KEPT = 10_000
"""More than threads of one job ask at a time."""
ENDED = b"ended/"
"""Prefix of the key that a rank leaves when it ends; gather rounds do not wait for it any more."""

Parts = Sequence[bytes]


class Condition(NamedTuple):
    """What a request can wait for: a key, an item of a queue, the end of a gather round, the answer to a client's request."""

    kind: str
    world: bytes
    name: bytes = b""


KEY, QUEUE, ROUND, CLIENT = "key", "queue", "round", "client"


class OperationResult(NamedTuple):
    """What an operation did. ``answer`` is None when the request has to wait, for ``awaits``."""

    answer: list[bytes] | None = None
    changed: bool = False
    """The store is another one: the operation belongs into the journal."""
    wakes: Sequence[Condition] = ()
    """What requests may have waited for and is there now."""
    awaits: Sequence[Condition] = ()
    emptied: bytes | None = None
    """Prefix of the worlds that were emptied: who waited in a gather round there has to join again."""


class GatherRound(msgspec.Struct):
    """Ranks of a world that come together to build their connections: who has joined, and the rounds that are complete."""

    number: int = 0
    here: dict[int, bytes] = {}
    """What each rank calls itself this time."""
    over: dict[bytes, int] = {}
    """The round of those who were in one of the last."""
    missing: int = 0
    """The rank that was last found missing: it is looked for first, so that a check seldom costs more than one look."""

    def waits_for(self, size: int, keys: dict[bytes, bytes]) -> int | None:
        """A rank that has neither joined nor ended; None when there is none."""
        start = self.missing if self.missing < size else 0
        for rank in chain(range(start, size), range(start)):
            if rank not in self.here and b"%s%d" % (ENDED, rank) not in keys:
                self.missing = rank
                return rank
        return None

    def complete(self) -> None:
        """All have come: number the round, and begin the next."""
        self.number += 1
        self.over = {name: number for name, number in self.over.items() if number > self.number - ROUNDS_KEPT}
        self.over.update(dict.fromkeys(self.here.values(), self.number))
        self.here, self.missing = {}, 0


class KeyValueStore(msgspec.Struct):
    """The keys of one job, by world (one process group of torch with all its groups)."""

    keys: dict[bytes, dict[bytes, bytes]] = {}
    queues: dict[bytes, dict[bytes, list[bytes]]] = {}
    rounds: dict[bytes, GatherRound] = {}
    answers: dict[bytes, tuple[int, list[bytes]]] = {}
    """What each client that counts its requests was answered last; who asked most recently comes last."""
    generation: str = msgspec.field(default="", name="sitting")
    """The request by which its ranks started or came back from images, of all the times that they did."""
    own_token: bool = False
    """Its ranks have an access token of this generation, and that of the job opens nothing."""

    def apply(self, code: int, world: bytes, parts: Parts) -> OperationResult:
        """Do one operation. Raises KeyError, IndexError, ValueError and TypeError for what is none; nothing is changed then."""
        return OPERATIONS[code](self, world, parts)

    def poll(self, code: int, world: bytes, parts: Parts) -> OperationResult:
        """Do an operation that has waited, now that something it waits for may be there."""
        return _poll_round(self, world, *_seat(parts)) if code == fr.GATHER else self.apply(code, world, parts)

    def abandon_rounds(self) -> None:
        """Forget who has joined rounds that are not complete, for ranks that are gone."""
        for one in self.rounds.values():
            one.here = {}

    def of(self, world: bytes) -> dict[bytes, bytes]:
        """The keys of a world."""
        return self.keys.setdefault(world, {})

    def queue(self, world: bytes, name: bytes) -> list[bytes]:
        """The queue of that name, made when it is missing."""
        return self.queues.setdefault(world, {}).setdefault(name, [])


def encode(store: KeyValueStore) -> bytes:
    """A store as it lies in journals and travels with images."""
    return msgspec.msgpack.encode(store)


def decode(data: bytes) -> KeyValueStore:
    """The store that ``encode`` made ``data`` of. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=KeyValueStore)


def _written(world: bytes, keys: Iterable[bytes], answer: list[bytes] | None = None) -> OperationResult:
    """Keys were set."""
    wakes = [Condition(KEY, world, key) for key in keys]
    if any(condition.name.startswith(ENDED) for condition in wakes):
        wakes.append(Condition(ROUND, world))
    return OperationResult([] if answer is None else answer, True, wakes)


def _await_keys(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult | None:
    """Waits for one missing key at a time; the last one, because ranks mostly write in order. None when all are there."""
    keys = store.keys.get(world, {})
    missing = next((key for key in reversed(parts) if key not in keys), None)
    return None if missing is None else OperationResult(awaits=(Condition(KEY, world, missing),))


def _set(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    key, value = parts[0], parts[1]
    store.of(world)[key] = value
    return _written(world, (key,))


def _get(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    return _await_keys(store, world, parts) or OperationResult([store.of(world)[key] for key in parts])


def _add(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    """As TCPStore: the sum is kept as decimal text, and is a signed number of 64 bits."""
    keys = store.of(world)
    total = int(keys.get(parts[0], b"0")) + fr.to_number(parts[1])
    total = (total + 2**63) % 2**64 - 2**63
    keys[parts[0]] = str(total).encode()
    return _written(world, parts[:1], [fr.number(total)])


def _check(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    keys = store.of(world)
    return OperationResult([fr.number(all(key in keys for key in parts))])


def _cas(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    """As TCPStore: a missing key is set when nothing is expected, else the expected value comes back."""
    key, expected, desired = parts
    keys = store.of(world)
    if key not in keys and expected:
        return OperationResult([expected])
    if keys.get(key, b"") != expected:
        return OperationResult([keys[key]])
    keys[key] = desired
    return _written(world, (key,), [desired])


def _delete(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    found = store.of(world).pop(parts[0], None) is not None
    return OperationResult([fr.number(found)], found)


def _wait(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    return _await_keys(store, world, parts) or OperationResult([])


def _count(store: KeyValueStore, world: bytes, _: Parts) -> OperationResult:
    return OperationResult([fr.number(len(store.of(world)))])


def _append(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    keys = store.of(world)
    keys[parts[0]] = keys.get(parts[0], b"") + parts[1]
    return _written(world, parts[:1])


def _mset(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    pairs = dict(zip(parts[::2], parts[1::2], strict=True))
    store.of(world).update(pairs)
    return _written(world, pairs)


def _list(store: KeyValueStore, world: bytes, _: Parts) -> OperationResult:
    return OperationResult(sorted(store.of(world)))


def _push(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    name, item = parts[0], parts[1]
    store.queue(world, name).append(item)
    return OperationResult([], True, (Condition(QUEUE, world, name),))


def _pop(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    queue = store.queue(world, parts[0])
    return (
        OperationResult([queue.pop(0)], True) if queue else OperationResult(awaits=(Condition(QUEUE, world, parts[0]),))
    )


def _depth(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    return OperationResult([fr.number(len(store.queue(world, parts[0])))])


def _new(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    """Empty the world and any whose name begins so; ``parts`` are then its first key and value."""
    first = {parts[0]: parts[1]} if parts else {}
    for names in (store.keys, store.queues, store.rounds):
        for name in [name for name in names if name.startswith(world)]:
            del names[name]
    if first:
        store.keys[world] = first
    return _written(world, first)._replace(emptied=world)


def _once(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    """An operation that must not be done twice, for a client that may not have heard that it was."""
    who, number, code = parts[0], fr.to_number(parts[1]), parts[2][0]
    if code not in fr.COUNTED:
        raise ValueError("not an operation to be counted")
    last = store.answers.get(who)
    if last is not None and last[0] >= number:
        if last[0] > number:
            raise ValueError("a request that came too late: a later one was answered")
        return OperationResult(last[1])
    done, client = OPERATIONS[code](store, world, parts[3:]), Condition(CLIENT, b"", who)
    if done.answer is None:
        return done._replace(awaits=(*done.awaits, client))
    store.answers.pop(who, None)
    store.answers[who] = number, done.answer
    if len(store.answers) > ANSWERS_KEPT:
        del store.answers[next(iter(store.answers))]
    return done._replace(changed=True, wakes=(*done.wakes, client))


def _seat(parts: Parts) -> tuple[int, int, bytes]:
    """Rank, size of the world, and the name that the rank uses once."""
    rank, size, name = int(parts[0]), int(parts[1]), parts[2]
    if not 0 <= rank < size <= RANKS_MOST:
        raise ValueError("not a rank of a world")
    return rank, size, name


def _gather(store: KeyValueStore, world: bytes, parts: Parts) -> OperationResult:
    """``parts``: see ``_seat``. The number of a round is answered when all ranks have joined that have not left ``ended/RANK``.

    A rank that comes again under a new name (restored from an image, say) belongs to the round that is open now. So no two
    attempts to build ever share a number, and only the ranks themselves need agree on one.
    """
    rank, size, name = _seat(parts)
    found = store.rounds.setdefault(world, GatherRound())
    joins = name not in found.over and found.here.get(rank) != name
    if joins:
        found.here[rank] = name
    outcome = _poll_round(store, world, rank, size, name)
    return outcome._replace(changed=True) if joins else outcome


def _poll_round(store: KeyValueStore, world: bytes, rank: int, size: int, name: bytes) -> OperationResult:
    """Whether the round of a rank that has joined is complete. One that has joined again under another name is not in it."""
    found = store.rounds.setdefault(world, GatherRound())
    if name in found.over:
        return OperationResult([fr.number(found.over[name])])
    if found.here.get(rank) != name or found.waits_for(size, store.of(world)) is not None:
        return OperationResult(awaits=(Condition(ROUND, world),))
    found.complete()
    return OperationResult([fr.number(found.number)], True, (Condition(ROUND, world),))


OPERATIONS: dict[int, Callable[[KeyValueStore, bytes, Parts], OperationResult]] = {
    fr.SET: _set, fr.GET: _get, fr.ADD: _add, fr.CHECK: _check, fr.CAS: _cas, fr.DELETE: _delete, fr.WAIT: _wait,
    fr.COUNT: _count, fr.APPEND: _append, fr.MGET: _get, fr.MSET: _mset, fr.KEYS: _list, fr.PUSH: _push, fr.POP: _pop,
    fr.DEPTH: _depth, fr.NEW: _new, fr.GATHER: _gather, fr.ONCE: _once,
}  # fmt: skip
