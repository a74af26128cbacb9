"""A rendezvous in virtual time: a host's machines and disk, a network that breaks, ranks that ask, generations that change.

All chance comes from one seed. What is simulated is what runs: RendezvousMachine, GenerationMachine, EndpointPoll, FrameBuffer
and the frames of the wire. `Sim.run` raises AssertionError with the seed's story at the first promise that is not kept.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import random
from collections.abc import Callable
from typing import Any

from tidewright.agent.rendezvous import generations as gn
from tidewright.agent.rendezvous import polling
from tidewright.agent.rendezvous.store import KeyValueStore, decode, encode
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

from .rendezvous_host import JOB, Host, Killed, Line
from .rendezvous_ranks import CALM_MS, WORLD, Client, Rank, program

PATIENCE_MS = 60_000.0
"""Until when everything has to be done."""


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
