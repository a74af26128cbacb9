"""What ranks of a job have left for each other, and the operations on it, as torch's Store defines them.

Pure: no network, no file. The same operations in the same order lead to the same keys, which is how an agent finds them
again in its file (meet.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..launch.inject._tidewright import frames as fr


class Round(msgspec.Struct):
    """Ranks of a world that come together to build their connections: who is here, and the rounds that are complete."""

    number: int = 0
    here: dict[int, bytes] = {}
    """What each rank calls itself this time."""
    over: dict[bytes, int] = {}
    """The round of those who were in one of the last."""


class Shelf(msgspec.Struct):
    """The keys of one job, by world."""

    keys: dict[bytes, dict[bytes, bytes]] = {}
    queues: dict[bytes, dict[bytes, list[bytes]]] = {}
    rounds: dict[bytes, Round] = {}
    answers: dict[bytes, tuple[int, list[bytes]]] = {}
    """What each of those who count their requests was answered last; who asks most recently comes last."""
    sitting: str = ""
    """The time its ranks have come here for, of all the times that they started or came back from images."""

    def act(self, code: int, world: bytes, parts: Sequence[bytes]) -> list[bytes] | None:
        """Do one operation. None: a key is not there yet, ask again when something was written."""
        return _ACTS[code](self, self.keys.setdefault(world, {}), world, parts)

    def queue(self, world: bytes, key: bytes) -> list[bytes]:
        """The queue of that name, made when it is missing."""
        return self.queues.setdefault(world, {}).setdefault(key, [])


Keys = dict[bytes, bytes]
Answer = list[bytes] | None


def _set(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    keys[parts[0]] = parts[1]
    return []


def _get(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    return [keys[key] for key in parts] if all(key in keys for key in parts) else None


def _add(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    """As TCPStore: the sum is kept as decimal text, and is a signed number of 64 bits."""
    total = int(keys.get(parts[0], b"0")) + fr.to_number(parts[1])
    total = (total + 2**63) % 2**64 - 2**63
    keys[parts[0]] = str(total).encode()
    return [fr.number(total)]


def _check(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    return [fr.number(all(key in keys for key in parts))]


def _cas(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    """As TCPStore: a missing key is set when nothing is expected, else the expected value comes back."""
    key, expected, desired = parts
    if key not in keys and expected:
        return [expected]
    if keys.get(key, b"") == expected:
        keys[key] = desired
    return [keys[key]]


def _delete(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    return [fr.number(keys.pop(parts[0], None) is not None)]


def _wait(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    return [] if all(key in keys for key in parts) else None


def _count(_: Shelf, keys: Keys, __: bytes, ___: Sequence[bytes]) -> Answer:
    return [fr.number(len(keys))]


def _append(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    keys[parts[0]] = keys.get(parts[0], b"") + parts[1]
    return []


def _mset(_: Shelf, keys: Keys, __: bytes, parts: Sequence[bytes]) -> Answer:
    keys.update(zip(parts[::2], parts[1::2], strict=True))
    return []


def _list(_: Shelf, keys: Keys, __: bytes, ___: Sequence[bytes]) -> Answer:
    return sorted(keys)


def _push(shelf: Shelf, _: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    shelf.queue(world, parts[0]).append(parts[1])
    return []


def _pop(shelf: Shelf, _: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    queue = shelf.queue(world, parts[0])
    return [queue.pop(0)] if queue else None


def _depth(shelf: Shelf, _: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    return [fr.number(len(shelf.queue(world, parts[0])))]


def _new(shelf: Shelf, _: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    """Empty the world and any whose name begins so; ``parts`` are then its first key and value."""
    for names in (shelf.keys, shelf.queues, shelf.rounds):
        for name in [name for name in names if name.startswith(world)]:
            del names[name]
    if parts:
        shelf.keys[world] = {parts[0]: parts[1]}
    return []


ROUNDS_KEPT = 2
RANKS_MOST = 1 << 20
ANSWERS_KEPT = 10_000
"""More than threads of one job ask at a time."""


def _once(shelf: Shelf, keys: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    """An operation that must not be done twice, for somebody who may not have heard that it was."""
    who, number, code = parts[0], fr.to_number(parts[1]), parts[2][0]
    if code not in fr.COUNTED:
        raise ValueError("not an operation to be counted")
    last = shelf.answers.get(who)
    if last is not None and last[0] >= number:
        if last[0] > number:
            raise ValueError("a request that came too late: a later one was answered")
        return last[1]
    answer = _ACTS[code](shelf, keys, world, parts[3:])
    if answer is not None:
        shelf.answers.pop(who, None)
        shelf.answers[who] = number, answer
        if len(shelf.answers) > ANSWERS_KEPT:
            del shelf.answers[next(iter(shelf.answers))]
    return answer


def _gather(shelf: Shelf, keys: Keys, world: bytes, parts: Sequence[bytes]) -> Answer:
    """``parts``: rank, size of the world, and a name of this rank that it uses once. The number of a round is answered
    when all ranks are here that have not left ``ended/RANK``.

    Whoever comes again under a new name (restored from an image, say) belongs to the round that is open now. So no two
    attempts to build ever share a number, and nobody but the ranks themselves need agree on one.
    """
    rank, size, name = int(parts[0]), int(parts[1]), parts[2]
    if not 0 <= rank < size <= RANKS_MOST:
        raise ValueError("not a rank of a world")
    found = shelf.rounds.setdefault(world, Round())
    if name not in found.over:
        found.here[rank] = name
        if any(other not in found.here and b"ended/%d" % other not in keys for other in range(size)):
            return None
        found.number += 1
        found.over = {name: number for name, number in found.over.items() if number > found.number - ROUNDS_KEPT}
        found.over.update(dict.fromkeys(found.here.values(), found.number))
        found.here = {}
    return [fr.number(found.over[name])]


_ACTS = {
    fr.SET: _set, fr.GET: _get, fr.ADD: _add, fr.CHECK: _check, fr.CAS: _cas, fr.DELETE: _delete, fr.WAIT: _wait,
    fr.COUNT: _count, fr.APPEND: _append, fr.MGET: _get, fr.MSET: _mset, fr.KEYS: _list, fr.PUSH: _push, fr.POP: _pop,
    fr.DEPTH: _depth, fr.NEW: _new, fr.GATHER: _gather, fr.ONCE: _once,
}  # fmt: skip
