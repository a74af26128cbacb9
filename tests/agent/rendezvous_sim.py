"""A rendezvous in virtual time: a host's machines and disk, a network that breaks, ranks that ask, generations that change.

All chance comes from one seed. What is simulated is what runs: RendezvousMachine, GenerationMachine, EndpointPoll, FrameBuffer
and the frames of the wire. `Sim.run` raises AssertionError with the seed's story at the first promise that is not kept.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidewright.agent.rendezvous import generations as gn
from tidewright.agent.rendezvous import messages as ms
from tidewright.agent.rendezvous import polling
from tidewright.agent.rendezvous.framing import FrameBuffer
from tidewright.agent.rendezvous.machine import RendezvousMachine
from tidewright.agent.rendezvous.store import KeyValueStore, decode, encode
from tidewright.launch.inject._tidewright import frames as fr

JOB, WORLD, CONTROL = "1", b"w/1", b"w/1/control"
CALM_MS, PATIENCE_MS = 1500.0, 60_000.0
"""From when on nothing breaks any more, and until when everything has to be done then."""


def token(generation: str) -> str:
    """What opens the keys to the ranks of a generation."""
    return f"token of {generation}"


class Killed(Exception):
    """The agent is gone; what it had not done yet is not done."""


class Line:
    """One connection. Bytes stay in order each way, come late, in pieces, and not at all once it breaks."""

    def __init__(self, sim: Sim, client: Client, number: int) -> None:
        self.sim, self.client, self.number = sim, client, number
        self.deaf_up = self.deaf_down = False
        self._due = {True: 0.0, False: 0.0}

    def send(self, data: bytes, up: bool) -> None:
        dice = self.sim.dice
        while data:
            size = dice.randint(1, len(data)) if dice.random() < 0.15 else len(data)
            piece, data = data[:size], data[size:]
            self._due[up] = max(self._due[up], self.sim.now + dice.random() * 4)
            self.sim.at(self._due[up] - self.sim.now, self._arrive, piece, up)
        if self.sim.breaks(0.02):
            self.cut()

    def _arrive(self, piece: bytes, up: bool) -> None:
        if up and not self.deaf_up:
            self.sim.host.receive(self.number, piece)
        elif not up and not self.deaf_down:
            self.client.receive(self, piece)

    def cut(self) -> None:
        """It breaks. What was sent may still arrive; each end notices in its own time."""
        self.deaf_down |= self.sim.dice.random() < 0.5
        self.deaf_up |= self.sim.dice.random() < 0.5
        self.sim.at(self.sim.dice.random() * 20, self.client.broken, self)
        self.sim.at(10 + self.sim.dice.random() * 200, self.sim.host.hung_up, self.number)


class Host:
    """The agent on the node of rank 0, and its disk."""

    def __init__(self, sim: Sim) -> None:
        self.sim, self.alive, self.full = sim, False, False
        self.journal: bytes | None = None
        self.behind = False
        """A write has failed, and nothing was written since."""
        self.lines: dict[int, Line] = {}
        self.lives = 0
        self.task: tuple[str, str, bytes, bool] | None = None
        """What it was asked and has not finished: launched or restored, generation, keys, whether no other node joins."""
        self.boot()

    def boot(self) -> None:
        self.alive, self.lives = True, self.lives + 1
        self.machine = RendezvousMachine(journals=True, most_unknown=50)
        self.generations = gn.GenerationMachine()
        self.buffers: dict[int, FrameBuffer] = {}
        self.timers: dict[int, int] = {}
        self._events: deque[ms.Event] = deque()
        settled, busy = self.task is None, self.task
        self._decide(lambda: gn.GenerationAdopted(1, self.sim.generation, True, True, settled, self._held()))
        if busy and self.alive:
            self.work()

    def work(self) -> None:
        """Do, or do again, what it was asked."""
        if not self.alive or self.task is None:
            return
        verb, generation, keys, alone = self.task
        if verb == "fail":
            self._decide(lambda: gn.GenerationFailed(1, generation, "its image is damaged"))
        elif verb == "launch":
            self._decide(lambda: gn.GenerationLaunched(1, generation, True, self._held()))
        else:
            self._decide(lambda: gn.GenerationRestored(1, generation, True, alone, self._held(), keys.hex()))
        if self.alive:
            self.task = None
            self.sim.prepared(verb, generation)

    def _held(self) -> str:
        self._open()
        store = self.machine.store(JOB)
        assert store is not None
        return store.generation

    def _open(self) -> None:
        if not self.machine.tokens(JOB):
            self.handle(ms.JobOpened(JOB, ("nothing opens it yet",), self.journal or b""))
        store = self.machine.store(JOB)
        assert store is not None
        self.handle(ms.JobOpened(JOB, (token(store.generation),)))

    def _decide(self, event: Callable[[], gn.Event]) -> list[gn.Action]:
        """A decision of the coordinator, carried out; what it answers another node."""
        answers = []
        try:
            for action in self.generations.step(event()):
                match action:
                    case gn.OpenKeys():
                        self._open()
                    case gn.LoadKeys(_, generation, keys):
                        store = decode(bytes.fromhex(keys)) if keys else KeyValueStore()
                        store.generation = generation
                        store.abandon_rounds()
                        self.handle(ms.StoreReplaced(JOB, store))
                        self._open()
                    case gn.NameGeneration(_, generation):
                        self.handle(ms.GenerationNamed(JOB, generation))
                    case _:
                        answers.append(action)
        except Killed:
            return []
        return answers

    def polled(self, generation: str) -> list[gn.Action]:
        if not self.alive:
            return []
        store = self.machine.store(JOB)
        return self._decide(lambda: gn.EndpointPolled(1, generation, store.generation if store else ""))

    # the server's shell

    def connect(self, line: Line) -> None:
        self.lines[line.number], self.buffers[line.number] = line, FrameBuffer()
        self._tell(ms.ConnectionOpened(line.number, self.sim.dice.randbytes(fr.NONCE)))

    def receive(self, number: int, data: bytes) -> None:
        if self.alive and number in self.buffers:
            self.buffers[number].feed(data)
            self.advance(number, self.lives)

    def advance(self, number: int, life: int) -> None:
        while life == self.lives and self.alive and number in self.buffers and self.machine.accepts(number):
            frame = self.buffers[number].next(self.machine.longest_frame(number))
            if frame is None:
                return
            foreign = self.foreign(number)
            before = self.machine.store(JOB) and encode(self.machine.store(JOB)) if foreign else None
            self._tell(ms.FrameReceived(number, frame))
            if foreign and self.alive and self.machine.store(JOB):
                assert encode(self.machine.store(JOB)) == before, f"{foreign} wrote to another generation"

    def foreign(self, number: int) -> str:
        """The generation of a connection's rank when it is not the one of the keys."""
        store, line = self.machine.store(JOB), self.lines.get(number)
        strange = line is not None and store is not None and line.client.generation != store.generation
        return line.client.generation if strange else ""

    def hung_up(self, number: int) -> None:
        if self.alive and self.lines.pop(number, None):
            self.buffers.pop(number, None)
            self._tell(ms.ConnectionClosed(number))

    def expired(self, event: ms.WaitExpired, life: int) -> None:
        if life == self.lives and self.alive:
            self._tell(event)

    def _tell(self, event: ms.Event) -> None:
        with contextlib.suppress(Killed):
            self.handle(event)

    def handle(self, event: ms.Event) -> None:
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            for action in self.machine.step(self._events[0]):
                if self.sim.breaks(0.004) and self.sound():
                    self.die(action)
                self._run(action)
            self._events.popleft()
        if self.sim.dice.random() < 0.05:
            self.check_waiting()

    def sound(self) -> bool:
        """Whether it may be killed: with a full disk it does not promise to know everything afterwards."""
        return not self.full and not self.behind

    def die(self, action: ms.Action | None = None) -> None:
        """At any point: of a record that is being added any part is there, a rewrite is there whole or not at all."""
        if isinstance(action, ms.AppendJournal):
            self.journal = (self.journal or b"") + action.record[: self._torn(action.record)]
        self.alive = False
        for line in list(self.lines.values()):
            line.cut()
            line.deaf_up = True
        self.lines = {}
        self.sim.at(self.sim.dice.random() * 100, self.boot)
        self.sim.note("agent killed")
        raise Killed

    def _torn(self, record: bytes) -> int:
        """How much of a record is written; between two of its parts more often than chance would have it."""
        ends, at = [0], fr.HEAD.size + 1
        while at < len(record):
            ends.append(at)
            at += fr.HEAD.size + fr.HEAD.unpack_from(record, at)[0]
        return self.sim.dice.choice((self.sim.dice.choice(ends), self.sim.dice.randint(0, len(record))))

    def _run(self, action: ms.Action) -> None:
        number = getattr(action, "connection", 0)
        match action:
            case ms.SendFrame() if number in self.lines:
                known = number not in self.machine._unknown and action.data[4:5] == bytes([fr.OK])
                assert not (known and self.foreign(number)), "a rank read what another generation wrote"
                self.lines[number].send(action.data, up=False)
                self.sim.at(0, self.advance, number, self.lives)
            case ms.CloseConnection() | ms.AbortConnection() if number in self.lines:
                line = self.lines.pop(number)
                self.buffers.pop(number, None)
                self.sim.at(5, line.client.broken, line)
            case ms.ArmWait(_, serial, delay_ms):
                self.sim.at(delay_ms, self.expired, ms.WaitExpired(number, serial), self.lives)
            case ms.AppendJournal(job, record):
                if self.full:
                    self.journal, self.behind = (self.journal or b"") + record[: len(record) // 2], True
                    self._events.append(ms.JournalFailed(job))
                else:
                    self.journal, self.behind = (self.journal or b"") + record, False
            case ms.RewriteJournal(job, snapshot):
                if self.full:
                    self.behind = True
                    self._events.append(ms.JournalFailed(job))
                else:
                    self.journal, self.behind = snapshot, False
            case ms.DeleteJournal():
                self.journal = None

    def check_waiting(self) -> None:
        """No request waits whose condition holds."""
        for job in self.machine._jobs.values():
            for connection in job.waiting.connections():
                request = job.waiting.get(connection)
                assert request is not None
                found = decode(encode(job.store)).poll(request.code, request.world, request.parts)
                assert found.answer is None, f"a request waits though it can be answered: {request}"


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
        self.held = self.gone = self.zombie = self.told = False
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
        elif self.stage == "known" and not self.told:
            code, world, parts, wait_ms, _ = self.rank.pending
            self.told = True
            self.line.send(fr.pack(code, [world, fr.number(wait_ms), *parts]), up=True)

    def _connect(self) -> None:
        if not self.sim.host.alive:
            self.sim.at(5 + self.sim.dice.random() * 30, self.go)
            return
        self.line, self.frames, self.told = self.sim.line(self), FrameBuffer(), False
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
        op, self.told = self.rank.program[self.rank.at], False
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
            self.line, self.told, self.stage = None, False, ""
            self.sim.at(5 + self.sim.dice.random() * 20, self.go)

    def drop(self) -> None:
        """Close the connection."""
        if self.line is not None:
            self.line.cut()
            self.line, self.told, self.stage = None, False, ""


class Sim:
    """The network's and the controller's part, and the clock (ms)."""

    def __init__(self, seed: int) -> None:
        self.dice, self.now, self.seed = random.Random(seed), 0.0, seed
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self.story: list[str] = []
        self.size = self.dice.randint(1, 4)
        self.away = [rank for rank in range(1, self.size) if self.dice.random() < 0.6]
        self.programs = [program(self.dice, rank, self.size) for rank in range(self.size)]
        self.clients: list[Client] = []
        self.image: tuple[bytes, list[Rank]] | None = None
        self.generation = ""
        self.generations = self.cuts = 0
        self.host = Host(self)
        self.begin()

    def at(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heapq.heappush(self._agenda, (self.now + delay, self._serial, action, args))

    def breaks(self, chance: float) -> bool:
        return self.now < CALM_MS and self.dice.random() < chance

    def note(self, what: str) -> None:
        self.story.append(f"{self.now:.0f} {what}")

    def line(self, client: Client) -> Line:
        self._serial += 1
        return Line(self, client, self._serial)

    def run(self) -> Sim:
        try:
            self.at(self.dice.random() * 400, self.trouble)
            while self._agenda and not (self.now > CALM_MS and self.finished()):
                self.now, _, action, args = heapq.heappop(self._agenda)
                assert self.now < PATIENCE_MS, f"ranks wait without end: {self._waits()}"
                action(*args)
            assert self.finished(), f"nothing happens any more: {self._waits()}"
            self.judge()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n" + "\n".join(self.story)) from error
        return self

    def _waits(self) -> list[Any]:
        return [(each.rank.number, each.rank.at, each.rank.pending, each.stage) for each in self.clients]

    def finished(self) -> bool:
        return len(self.clients) == self.size and all(each.done for each in self.clients)

    # the controller

    def begin(self) -> None:
        """The next generation, from the last image or from the beginning."""
        self.generations += 1
        self.generation = f"generation {self.generations}"
        self.cuts += 1
        for each in self.clients:
            each.zombie = self.breaks(0.4)
            each.gone = not each.zombie
            if each.gone:
                each.drop()
        self.clients = []
        keys, ranks = self.image or (b"", [])
        self.next = [copy.deepcopy(rank) for rank in ranks] or [
            Rank(number, self.programs[number], b"%d/%d" % (self.generations, number)) for number in range(self.size)
        ]
        names = [name for one in decode(keys).rounds.values() for name in one.over] if keys else []
        for rank in self.next:  # it builds its connections anew, where the others have not built them with it
            if rank.pending and rank.pending[0] == fr.GATHER and rank.pending[2][2] not in names:
                rank.pending = (*rank.pending[:2], [*rank.pending[2][:2], self.dice.randbytes(8)], *rank.pending[3:])
        verb = "fail" if self.breaks(0.15) else "restore" if self.image else "launch"
        self.note(f"{self.generation}: {verb}")
        self.host.task = verb, self.generation, keys, not self.away
        self.at(self.dice.random() * 50, self.host.work)
        if self.away and verb != "fail":
            self._poll(polling.EndpointPoll("host", 1, self.generation, self.now / 1000), self.generation)

    def prepared(self, verb: str, generation: str) -> None:
        """The host has done its part: its ranks run."""
        if generation != self.generation:
            return
        if verb == "fail":
            self.at(self.dice.random() * 50, self.begin)
        else:
            self._start([rank for rank in range(self.size) if rank not in self.away])

    def _start(self, numbers: list[int]) -> None:
        for number in numbers:
            self.clients.append(Client(self, self.next[number], self.generation))
            self.at(self.dice.random() * 20, self.clients[-1].go)

    def _poll(self, poll: polling.EndpointPoll, generation: str) -> None:
        """The other node asks where its ranks meet."""
        if generation != self.generation:
            return
        step = poll.next(self.now / 1000, ending=False)
        assert isinstance(step, polling.PollHost), step
        lost = not self.host.alive or self.breaks(0.1)
        self.at(self.dice.random() * 20, self._polled, poll, generation, lost)

    def _polled(self, poll: polling.EndpointPoll, generation: str, lost: bool) -> None:
        if generation != self.generation:
            return
        answers = [] if lost else self.host.polled(generation)
        if answers:
            assert not isinstance(answers[0], gn.RefuseEndpoint), "refused, and nothing had failed"
            step = poll.answered(self.now / 1000, int(isinstance(answers[0], gn.ShowEndpoint)))
        else:
            step = poll.silent(self.now / 1000, "silent")
        if isinstance(step, polling.EndpointOpen):
            self._start(self.away)
        else:
            assert isinstance(step, polling.PollDelay), step
            self.at(step.seconds * 1000, self._poll, poll, generation)

    def trouble(self) -> None:
        """Now and then: an image, a suspension, a failover, a full disk, an agent that is killed."""
        if self.now > CALM_MS:
            return
        self.at(self.dice.random() * 400, self.trouble)
        kind = self.dice.choice(("image", "image", "suspend", "failover", "disk", "kill"))
        if kind in ("image", "suspend") and len(self.clients) == self.size and not self.finished():
            self.note(kind)
            for each in self.clients:
                each.held = True
            self.cuts += 1
            self._cut(kind, self.cuts)
        elif kind == "failover":
            self.begin()
        elif kind == "disk" and not self.host.full:
            self.note("disk full")
            self.host.full = True
            self.at(self.dice.random() * 150, self._room)
        elif kind == "kill" and self.host.alive and self.host.sound():
            with contextlib.suppress(Killed):
                self.host.die()

    def _room(self) -> None:
        self.host.full = False

    def _cut(self, kind: str, cut: int) -> None:
        """Once all stand still: the keys and the ranks, as an image has them."""
        if cut != self.cuts:
            return
        store = self.host.machine.store(JOB) if self.host.alive else None
        if store is None or not all(each.still for each in self.clients):
            self.at(3, self._cut, kind, cut)
            return
        for each in self.clients:
            each.drop()
        self.image = encode(store), [copy.deepcopy(each.rank) for each in self.clients]
        self.image[1].sort(key=lambda rank: rank.number)
        if kind == "suspend":
            self.begin()
            return
        for each in self.clients:
            each.held = False
            self.at(self.dice.random() * 30, each.go)

    # what was promised

    def judge(self) -> None:
        ranks = [each.rank for each in self.clients]
        sums = sorted(total for rank in ranks for total in rank.sums)
        assert sums == list(range(1, len(sums) + 1)), f"counted requests took effect not once: {sums}"
        pushed = sorted(op[3][1] for rank in ranks for op in rank.program if op[0] == "push")
        taken = sorted(item for rank in ranks for item in rank.taken)
        assert taken == pushed, f"pushed {pushed}, taken {taken}"
        store = self.host.machine.store(JOB) or KeyValueStore()
        appended = sum(op[0] == "append" for rank in ranks for op in rank.program)
        text = store.of(WORLD).get(b"text", b"")
        assert len(text) == appended, f"{appended} pieces were appended once each: {text!r}"
        self._judge_rounds(ranks)
        self.host.check_waiting()

    def _judge_rounds(self, ranks: list[Rank]) -> None:
        numbers = []
        for phase in sorted({phase for rank in ranks for phase in rank.rounds}):
            found = {rank.rounds[phase] for rank in ranks if phase in rank.rounds}
            assert len(found) == 1, f"ranks of one round know it by numbers {found}"
            numbers += found
        assert len(set(numbers)) == len(numbers), f"rounds that share a number: {numbers}"


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
