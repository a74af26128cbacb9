"""What is said between a rank and the rendezvous store of its job, byte for byte. Shared by both ends.

A frame is its length (32 bits), a number (of the operation, or of the outcome) and byte strings, each after its length.
"""

from __future__ import annotations

import struct

(
    HELLO, SET, GET, ADD, CHECK, CAS, DELETE, WAIT, COUNT, APPEND, MGET, MSET, KEYS, PUSH, POP, DEPTH, NEW, GATHER, ONCE,
    CHALLENGE, PROVE,
) = range(1, 22)  # fmt: skip
WRITES = frozenset({SET, ADD, CAS, DELETE, APPEND, MSET, PUSH, POP, NEW, GATHER, ONCE})
"""Operations that change something."""
COUNTED = frozenset({SET, MSET, ADD, CAS, DELETE, APPEND, PUSH, POP, NEW})
"""Operations that change something else, or answer otherwise, when they are done again. They are asked for by ONCE, whose
parts are who asks, the number of its request, and the operation with its own: who did not hear the answer asks again."""
NONCE = 32
"""Bytes of a challenge. CHALLENGE carries the rank's and is answered by the store's; PROVE carries ``proof("rank", …)`` of
both and is answered by ``proof("store", …)``. HELLO, which carries the ticket itself, is how ranks of older images begin."""
OK, LATE, BAD = 0, 1, 2
"""Outcomes. LATE: the time given with the request passed before the keys were there."""

LONGEST, SHORT = 64 << 20, 1 << 10
"""Largest frame that is accepted, bytes: from an authenticated peer, and from any other."""

HEAD = struct.Struct("<I")
_NUMBER = struct.Struct("<q")


def pack(code, parts):
    """A frame, ready to be sent."""
    body = [bytes((code,))]
    for part in parts:
        body.append(HEAD.pack(len(part)))
        body.append(part)
    text = b"".join(body)
    return HEAD.pack(len(text)) + text


def length(head, longest=LONGEST):
    """How many bytes follow the four of ``head``."""
    found = HEAD.unpack(head)[0]
    if not 0 < found <= longest:
        raise ValueError("not a frame")
    return found


def unpack(text):
    """The code and the parts of a frame without its length."""
    parts, at = [], 1
    while at < len(text):
        if at + 4 > len(text):
            raise ValueError("a frame that ends too early")
        size = HEAD.unpack_from(text, at)[0]
        at += 4
        if at + size > len(text):
            raise ValueError("a frame that ends too early")
        parts.append(bytes(text[at : at + size]))
        at += size
    return text[0], parts


def proof(side, ticket, rank, store):
    """What only a holder of a job's ticket can answer to two challenges."""
    import hmac  # loaded by the first who connects

    return hmac.new(ticket, b"tidewright meeting 1 " + side + b"\0" + rank + store, "sha256").digest()


def number(value):
    """A signed 64-bit number as a part."""
    return _NUMBER.pack(value)


def to_number(part):
    """The number of a part."""
    if len(part) != _NUMBER.size:
        raise ValueError("not a number")
    return _NUMBER.unpack(part)[0]
