"""The host of a simulated rendezvous: the agent's machines, its disk, and the connections to it.

See rendezvous_sim.py. Checked here, at each step: no rank of another generation reads or writes, no request waits that could be
answered.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidewright.agent.rendezvous import generations as gn
from tidewright.agent.rendezvous import messages as ms
from tidewright.agent.rendezvous.framing import FrameBuffer
from tidewright.agent.rendezvous.machine import RendezvousMachine
from tidewright.agent.rendezvous.store import KeyValueStore, decode, encode
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

if TYPE_CHECKING:
    from .rendezvous_ranks import Client
    from .rendezvous_sim import Sim

JOB = "1"


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
