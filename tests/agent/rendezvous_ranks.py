"""The ranks of a simulated rendezvous: their programs, what images have of them, and how they ask (launch's Link).

See rendezvous_sim.py. Checked here: a rank reads what it wrote, is let in, and is answered.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidewright.agent.rendezvous.framing import FrameBuffer
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

from .rendezvous_host import Line, token

if TYPE_CHECKING:
    from .rendezvous_sim import Sim

WORLD, CONTROL = b"w/1", b"w/1/control"
CALM_MS = 1500.0
"""From when on nothing breaks any more."""


@dataclass
class Rank:
    """All that an image of a rank has. ``pending``: the request under way (code, world, parts, wait in ms, whether it waits)."""

    number: int
    program: tuple[tuple[Any, ...], ...]
    who: bytes
    at: int = 0
    asked: int = 0
    pending: tuple[int, bytes, list[bytes], int, bool] | None = None
    sums: list[int] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    rounds: dict[int, int] = field(default_factory=dict)


class Client:
    """A rank that runs, as launch's Link asks: one request at a time, again after every break, counted where it matters."""

    def __init__(self, sim: Sim, rank: Rank, generation: str) -> None:
        self.sim, self.rank, self.generation = sim, rank, generation
        self.line: Line | None = None
        self.held = self.gone = self.zombie = self.sent = False
        """Standing still; ended; of an earlier generation, and not ended; its request was sent on this line."""
        self.stage = ""

    @property
    def done(self) -> bool:
        return self.rank.at == len(self.rank.program)

    @property
    def still(self) -> bool:
        return self.rank.pending is None or self.rank.pending[4]

    def go(self) -> None:
        """Do what comes next."""
        self.gone |= self.zombie and self.sim.now > CALM_MS
        if self.gone or (self.held and self.still):
            return
        if self.rank.pending is None:
            if self.done:
                return
            self.rank.pending = self._request(self.rank.program[self.rank.at])
        if self.line is None:
            self._connect()
        elif self.stage == "known" and not self.sent:
            code, world, parts, wait_ms, _ = self.rank.pending
            self.sent = True
            self.line.send(fr.pack(code, [world, fr.number(wait_ms), *parts]), up=True)

    def _connect(self) -> None:
        if not self.sim.host.alive:
            self.sim.at(5 + self.sim.dice.random() * 30, self.go)
            return
        self.line, self.frames, self.sent = self.sim.line(self), FrameBuffer(), False
        self.sim.host.connect(self.line)
        self.stage, self.nonce = "challenged", self.sim.dice.randbytes(fr.NONCE)
        self.line.send(fr.pack(fr.CHALLENGE, [self.nonce]), up=True)

    def _request(self, op: tuple[Any, ...]) -> tuple[int, bytes, list[bytes], int, bool]:
        code, world, parts, wait_ms, waits = op[1:6]
        if code in fr.COUNTED:
            self.rank.asked += 1
            return fr.ONCE, world, [self.rank.who, fr.number(self.rank.asked), bytes((code,)), *parts], wait_ms, waits
        return code, world, [*parts, self.sim.dice.randbytes(8)] if code == fr.GATHER else parts, wait_ms, waits

    def receive(self, line: Line, data: bytes) -> None:
        if self.gone or line is not self.line:
            return
        self.frames.feed(data)
        while self.line is line and (frame := self.frames.next(fr.LONGEST)):
            outcome, parts = fr.unpack(frame)
            if self.stage == "challenged":
                self.stage = "proved"
                self.store_nonce = parts[0]
                line.send(
                    fr.pack(fr.PROVE, [fr.proof(b"rank", token(self.generation).encode(), self.nonce, parts[0])]),
                    up=True,
                )
            elif self.stage == "proved":
                self._proved(outcome, parts)
            else:
                self._answered(outcome, parts)

    def _proved(self, outcome: int, parts: list[bytes]) -> None:
        if outcome == fr.BAD:
            assert self.zombie or self.gone, "a rank is not let in"
            return
        proof = fr.proof(b"store", token(self.generation).encode(), self.nonce, self.store_nonce)
        assert parts == [proof], "the server does not prove that it knows the token"
        self.stage = "known"
        self.go()

    def _answered(self, outcome: int, parts: list[bytes]) -> None:
        op, self.sent = self.rank.program[self.rank.at], False
        assert outcome != fr.BAD, (self.rank.number, op, parts)
        if outcome == fr.LATE:
            self.rank.pending = None if op[0] != "never" else self.rank.pending
            assert op[3] is not None and op[4], "late, without a time"
        if outcome == fr.OK or op[0] == "never":
            self._learn(op, parts)
            self.rank.pending, self.rank.at = None, self.rank.at + 1
        self.sim.at(self.sim.dice.random() * 10, self.go)

    def _learn(self, op: tuple[Any, ...], parts: list[bytes]) -> None:
        rank = self.rank
        if op[0] == "add":
            rank.sums.append(fr.to_number(parts[0]))
        elif op[0] == "pop":
            rank.taken.append(parts[0])
        elif op[0] == "read":
            assert parts == op[6], f"rank {rank.number} wrote {op[6]} and read {parts}"
        elif op[0] == "gather":
            rank.rounds[op[6]] = fr.to_number(parts[0])

    def broken(self, line: Line) -> None:
        if line is self.line:
            self.line, self.sent, self.stage = None, False, ""
            self.sim.at(5 + self.sim.dice.random() * 20, self.go)

    def drop(self) -> None:
        """Close the connection."""
        if self.line is not None:
            self.line.cut()
            self.line, self.sent, self.stage = None, False, ""


def program(dice: random.Random, rank: int, size: int) -> tuple[tuple[Any, ...], ...]:
    """(name, code, world, parts, wait in ms, whether it waits, what is to be learned) of each request of a rank."""
    ops: list[tuple[Any, ...]] = []
    for phase in range(3):
        mine, value = b"own/%d" % rank, b"%d/%d" % (rank, phase)
        # In turn: one rank gives to all, who wait for it together; each gives to the next.
        shared = phase == 1
        give, take = (b"all", b"all") if shared else (b"to/%d" % ((rank + 1) % size), b"to/%d" % rank)
        gifts = [b"%s.%d" % (value, copy) for copy in range(size * (rank == 0) if shared else 1)]
        blocks: list[list[tuple[Any, ...]]] = [
            [("add", fr.ADD, WORLD, [b"n", fr.number(1)], 0, False)],
            [
                *(("push", fr.PUSH, WORLD, [give, gift], 0, False) for gift in gifts),
                ("pop", fr.POP, WORLD, [take], dice.choice((0, 0, 40)), True),
            ],
            [("append", fr.APPEND, WORLD, [b"text", b"%d" % rank], 0, False)],
            [("set", fr.SET, WORLD, [mine, value], 0, False), ("read", fr.GET, WORLD, [mine], 0, True, [value])],
            [
                ("mset", fr.MSET, WORLD, [mine + b"a", value, mine + b"b", value], 0, False),
                ("read", fr.MGET, WORLD, [mine + b"a", mine + b"b"], 0, True, [value, value]),
            ],
        ]
        dice.shuffle(blocks)
        ops += [op for block in blocks if dice.random() < 0.9 or block[-1][0] == "pop" for op in block]
        flags = [b"flag/%d/%d" % (phase, other) for other in range(size)]
        ops.append(("flag", fr.SET, WORLD, [flags[rank], b"1"], 0, False))
        ops.append(("flags", dice.choice((fr.WAIT, fr.MGET)), WORLD, flags, dice.choice((0, 0, 30)), True))
        if dice.random() < 0.2:
            ops.append(("never", fr.GET, WORLD, [b"never"], 15, True))
        if phase == 2 and rank == 0 and size > 1:
            ops.append(("ended", fr.SET, CONTROL, [b"ended/0", b"1"], 0, False))
        else:
            ops.append(("gather", fr.GATHER, CONTROL, [b"%d" % rank, b"%d" % size], 0, True, phase))
    return tuple(ops)
