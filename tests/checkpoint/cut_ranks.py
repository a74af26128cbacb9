"""Simulated ranks over the wrapper's own ``ProcessControl``, ``OpStream`` and ``Channels``: what takes the place of gloo, of the
rendezvous store and of a program. Everything that must not happen is noted in ``Gang.violations`` when it does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkpoint.cut_kernel import Condition, Kernel, Memory, Owner, Words
from tidewright.launch.inject._tidewright import channels
from tidewright.launch.inject._tidewright import page as pg
from tidewright.launch.inject._tidewright import process_control as pc
from tidewright.launch.inject._tidewright.control import op_stream

WORLD = 7


class SimPage(pg.Page):
    """A page over ``Memory`` as ``owner`` sees it."""

    def __init__(self, kernel: Kernel, memory: Memory, owner: Owner, name: str) -> None:
        self.map = memory
        self.words = Words(kernel, memory, owner)
        self.heap = memory.heap
        self.path = Path(name)

    def close(self) -> None:
        pass


@dataclass
class Node:
    """``pages``: memory by rank and name; ``held``: ranks whose hold file is there."""

    name: str
    agent: Owner
    pages: dict[tuple[int, str], Memory] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Op:
    """One operation of a program. ``token``: the same on all who take part."""

    what: str
    token: int
    group: int = 0
    peer: int = -1
    tag: int = 0
    wait: bool = True


class Store:
    """What the agent of the first node keeps: keys, and rounds in which ranks gather (as ``meet_keys``)."""

    def __init__(self, kernel: Kernel) -> None:
        self.keys: dict[str, bytes] = {}
        self.changed = Condition(kernel)
        self.number, self.here, self.over = 0, {}, {}  # type: ignore[var-annotated]

    def gather(self, rank: int, size: int, name: int) -> int | None:
        if name not in self.over:
            self.here[rank] = name
            if any(other not in self.here and f"ended/{other}" not in self.keys for other in range(size)):
                return None
            self.number += 1
            self.over.update(dict.fromkeys(self.here.values(), self.number))
            self.here = {}
        return self.over[name]


class Link:
    """As ``meet.Link``: requests that wait are asked again after a drop, others are waited for by it."""

    def __init__(self, gang: Gang) -> None:
        self._gang, self._cond = gang, Condition(gang.kernel)
        self.shut = self.over = False
        self._busy = self._drops = 0
        self.waiting = 0

    def ask(self, act: Any, waits: bool = False) -> Any:
        kernel, store = self._gang.kernel, self._gang.store
        while True:
            drops = self._begin(waits)
            try:
                kernel.sleep(kernel.rng.uniform(1e-4, 2e-3))
                with store.changed:
                    while drops == self._drops:
                        found = act()
                        if found is not None:
                            store.changed.notify_all()
                            return found
                        if not waits:
                            return None
                        store.changed.wait()
            finally:
                self._end(waits)

    def _begin(self, waits: bool) -> int:
        with self._cond:
            while self.shut and not self.over:
                self._cond.wait()
            if self.over:
                raise RuntimeError("this process has left the store")
            self.waiting += waits
            self._busy += not waits
            return self._drops

    def _end(self, waits: bool) -> None:
        with self._cond:
            self.waiting -= waits
            self._busy -= not waits
            self._cond.notify_all()

    def drop(self) -> None:
        with self._cond:
            self.shut = True
            self._drops += 1
            while self._busy:
                self._cond.wait()
        self._gang.store.changed.notify_all()

    def reopen(self) -> None:
        with self._cond:
            self.shut = False
            self._cond.notify_all()

    def end(self) -> None:
        self.drop()
        with self._cond:
            self.over = True
            self._cond.notify_all()

    def before_fork(self) -> None:
        self._cond.acquire()

    def after_fork(self) -> None:
        self._cond.release()


class World:
    """As ``world.World``."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self.rank, self.size, self.name = rank, rank.number, rank.gang.size, "w"
        rank.control.join(WORLD, self.rank, self.size)

    def _ask(self, act: Any, waits: bool = False) -> Any:
        return self._rank.link.ask(act, waits)

    def gather(self) -> int:
        gang = self._rank.gang
        name = gang.serial()
        return int(self._ask(lambda: gang.store.gather(self.rank, self.size, name), waits=True))

    def tell(self, key: str, value: bytes) -> None:
        keys = self._rank.gang.store.keys
        self._ask(lambda: keys.update({key: value}) or True)

    def hear(self, wanted: list[str]) -> list[bytes]:
        keys = self._rank.gang.store.keys
        return list(self._ask(lambda: [keys[key] for key in wanted] if all(k in keys for k in wanted) else None, True))

    def check(self, key: str) -> bool:
        keys = self._rank.gang.store.keys
        return bool(self._ask(lambda: (key in keys,))[0])

    def agree(self, key: str, value: bytes) -> bytes:
        keys = self._rank.gang.store.keys
        return bytes(self._ask(lambda: keys.setdefault(key, value)))

    def ended(self) -> None:
        for key in ("ended", f"ended/{self.rank}"):
            self.tell(key, b"1")

    def gone(self) -> set[int]:
        if not self.check("ended"):
            return set()
        return {rank for rank in range(self.size) if rank != self.rank and self.check(f"ended/{rank}")}


class Wire:
    """One group's connections in one build, all ranks of it. What is sent here is lost with it."""

    def __init__(self, gang: Gang, ranks: tuple[int, ...]) -> None:
        self.gang, self.ranks = gang, ranks
        self.made: set[int] = set()
        self.closed: set[int] = set()
        self.issued: dict[int, dict[int, int]] = {}
        """Of each collective: tokens by rank."""
        self.done: dict[tuple[int, int], float] = {}
        self.posts: list[Post] = []
        self.changed = Condition(gang.kernel)

    def connect(self, rank: int) -> None:
        self.made.add(rank)
        self.changed.notify_all()
        with self.changed:
            while not self.made >= set(self.ranks) - self.gang.left():
                self.changed.wait()

    def close(self, rank: int) -> None:
        self.closed.add(rank)
        self.changed.notify_all()

    def collective(self, rank: int, number: int, token: int) -> Collective:
        tokens = self.issued.setdefault(number, {})
        tokens[rank] = token
        if len(set(tokens.values())) > 1:
            self.gang.violate(f"operation {number} is another one on other ranks: {tokens}")
        if len(tokens) == len(self.ranks):
            for each in self.ranks:
                self.done[number, each] = self.gang.soon()
            self.changed.notify_all()
        return Collective(self, rank, number)

    def post(self, post: Post) -> Post:
        self.posts.append(post)
        for other in self.posts:
            if other.meets(post):
                self._meet(*((post, other) if post.kind == pg.SEND else (other, post)))
                break
        self.changed.notify_all()
        return post

    def _meet(self, send: Post, receive: Post) -> None:
        send.met, receive.met = self.gang.soon(), self.gang.soon()
        receive.source = send.rank
        if send.what is not None:
            receive.into.append(send.what)


@dataclass(eq=False)
class Collective:
    """One rank's part in a collective."""

    wire: Wire
    rank: int
    number: int

    def is_completed(self) -> bool:
        done = self.wire.done.get((self.number, self.rank))
        if done is None and self.wire.closed:
            self.wire.gang.violate(
                f"ranks {self.wire.closed} left operation {self.number}, in which rank {self.rank} is"
            )
        return done is not None and self.wire.gang.kernel.now >= done

    def wait(self) -> None:
        with self.wire.changed:
            while not self.is_completed():
                done = self.wire.done.get((self.number, self.rank))
                self.wire.changed.wait(None if done is None else done - self.wire.gang.kernel.now)


@dataclass(eq=False)
class Post:
    """One end of a message. ``peer`` -1: any source."""

    wire: Wire
    kind: int
    rank: int
    peer: int
    tag: int
    what: object = None
    into: list[object] = field(default_factory=list)
    met: float | None = None
    source: int = -1

    def meets(self, other: Post) -> bool:
        if self is other or self.met is not None or self.tag != other.tag:
            return False
        send, receive = (self, other) if self.kind == pg.SEND else (other, self)
        if self.rank in self.wire.closed and (receive.kind != pg.ANY or send.what is not None):
            return False  # one that waits for any source keeps its connections open, until a message that means nothing
        return send.kind == pg.SEND != receive.kind and send.peer == receive.rank and receive.peer in (-1, send.rank)

    def wait(self, timeout: object = None) -> None:
        """As gloo: one that waits for any source does not notice that connections close."""
        with self.wire.changed:
            while self.met is None or self.wire.gang.kernel.now < self.met:
                if self.kind != pg.ANY and self.rank in self.wire.closed:
                    raise RuntimeError("connection closed")
                if self.kind != pg.ANY and self.met is None and self.peer in self.wire.closed:
                    raise RuntimeError("connection closed by peer")
                if timeout is not None and self.met is None:
                    return
                self.wire.changed.wait(None if self.met is None else self.met - self.wire.gang.kernel.now)

    def _source_rank(self) -> int:
        return self.source


class Backend:
    """What ``backend_group`` would have made."""

    def __init__(self, group: Group, build: int) -> None:
        gang = group.rank_.gang
        self.rank = group.rank_.number
        self.wire = gang.wires.setdefault((group.ident, build), Wire(gang, group.ranks))
        self.wire.connect(self.rank)

    def send(self, tensors: list[Any], peer: int, tag: int) -> Post:
        return self.wire.post(Post(self.wire, pg.SEND, self.rank, peer, tag, tensors[0]))

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Post:
        return self.wire.post(Post(self.wire, pg.RECV, self.rank, peer, tag, into=tensors))

    def recv_anysource(self, tensors: list[Any], tag: int) -> Post:
        return self.wire.post(Post(self.wire, pg.ANY, self.rank, -1, tag, into=tensors))


class Group:
    """As ``group.Group``, over a ``Backend``. Its ranks are those of the world, so that messages need no translation."""

    def __init__(self, rank: Rank, index: int, ranks: tuple[int, ...]) -> None:
        self.rank_, self.control, self.world = rank, rank.control, rank.world
        self.members, self.ranks = ranks, ranks if index else tuple(range(rank.gang.size))
        self.ident = op_stream.ident("group", index, *ranks)
        self.key = f"{index}"
        whole = len(ranks) == rank.gang.size
        self.sockets: set[str] = set()
        self.without: list[int] = []
        self.live: list[Collective] = []
        self.backend: Backend | None = None
        self.stream = op_stream.OpStream(self.control, self.ident, pg.GROUP, len(ranks), () if whole else ranks)
        self.channels = channels.Channels(self, channels.Posted)
        self.control.groups.append(self)
        number = self.stream.announce()
        self.backend = Backend(self, 0)
        self.stream.done = number

    def rank(self) -> int:
        return self.rank_.number

    def size(self) -> int:
        return len(self.ranks)

    @property
    def made(self) -> bool:
        return self.stream.done > 0

    def inner(self) -> Backend:
        if self.backend is None:
            raise RuntimeError(f"not connected: {self.without} {self.control.failure!r}")
        return self.backend

    def issue(self, token: int) -> Collective:
        number = self.stream.announce()
        work = self.inner().wire.collective(self.rank_.number, number, token)
        self.live.append(work)
        self.stream.done = number
        return work

    def settled(self) -> bool:
        if not self.stream.settled() or not self.channels.settled():
            return False
        self.live = [work for work in self.live if not work.is_completed()]
        return not self.live

    def drop(self) -> None:
        backend, self.backend = self.backend, None
        self.channels.drop()
        if backend is not None:
            backend.wire.close(backend.rank)

    def build(self, build: int) -> None:
        self.backend = Backend(self, build)
        self.channels.repost()


class Control(pc.ProcessControl):
    """The wrapper's own, but for where its page is and what wakes it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        super().__init__()
        self.link = rank.link

    def _create_page(self) -> SimPage:
        rank = self._rank
        rank.memory = Memory()
        name = f"{rank.number}.page"
        page = SimPage(rank.gang.kernel, rank.memory, rank.owner, name)
        rank.node.pages[rank.number, name] = rank.memory
        return page

    def _hold_begun(self) -> bool:
        return self._rank.number in self._rank.node.held

    def _introduce(self) -> None:
        self.words[pg.PID] = 100 + self._rank.number
        self.words[pg.FENCED] = 1

    def _await_version(self, version: int) -> None:
        rank, kernel = self._rank, self._rank.gang.kernel
        rank.owner.flush()
        if rank.memory.get(pg.VERSION, 0) & 0xFFFFFFFF == version:
            assert kernel.task is not None
            rank.memory.waiters.append(kernel.task)
            kernel.block()


class Rank:
    """A process and its program."""

    def __init__(self, gang: Gang, number: int, node: Node, program: list[Op]) -> None:
        self.gang, self.number, self.node, self.program = gang, number, node, program
        self.owner = gang.kernel.owner(f"rank {number}")
        self.memory = Memory()
        self.link = Link(gang)
        self.control = Control(self)
        self.at = 0
        self.over = False
        self.groups: dict[int, Group] = {}
        self.pending: list[Any] = []
        self.received: list[tuple[int, list[object]]] = []

    def what(self, token: int) -> str:
        return next(op.what for op in self.program if op.token == token)

    def run(self) -> None:
        kernel = self.gang.kernel
        kernel.sleep(kernel.rng.uniform(0, 0.01))
        try:
            self.world = World(self)
            for op in self.program:
                getattr(self, "_" + op.what)(op)
                self.at += 1
                if kernel.rng.random() < 0.3:
                    kernel.sleep(kernel.rng.choice((1e-4, 1e-3, 0.02)))
            self._await_all()
            self.control.end()
        except RuntimeError as error:
            self.gang.violate(f"the program of rank {self.number} fails at {self.at}: {error!r}")
        self.over = True
        for wire in self.gang.wires.values():
            wire.changed.notify_all()
        kernel.sleep(kernel.rng.choice((1e-3, 0.1)))
        kernel.kill(self.owner)

    def _await_all(self, op: Op | None = None) -> None:
        pending, self.pending = self.pending, []
        for work in pending:
            work.wait()

    def _group(self, op: Op) -> None:
        self.groups[op.group] = Group(self, op.group, self.gang.groups[op.group])

    def _collective(self, op: Op) -> None:
        self._later(self.groups[op.group].issue(op.token), op)

    def _later(self, work: Any, op: Op) -> None:
        if not op.wait:
            self.pending.append(work)
        elif isinstance(work, Collective):
            words = self.control.words
            words[self.groups[op.group].stream.at + pg.WAITING] = work.number
            work.wait()
            words[self.groups[op.group].stream.at + pg.WAITING] = 0
        else:
            work.wait()

    def _send(self, op: Op) -> None:
        self._later(self.groups[0].channels.post(pg.SEND, [op.token], op.peer, op.tag), op)

    def _recv(self, op: Op) -> None:
        into: list[object] = []
        self.received.append((op.token, into))
        self._later(self.groups[0].channels.post(pg.RECV, into, op.peer, op.tag), op)

    def _any(self, op: Op) -> None:
        into: list[object] = []
        self.received.append((op.token, into))
        self._later(self.groups[0].channels.post(pg.ANY, into, -1, op.tag), op)

    def _set(self, op: Op) -> None:
        keys = self.gang.store.keys
        self.link.ask(lambda: keys.update({f"word/{op.token}": b"1"}) or True)

    def _get(self, op: Op) -> None:
        keys, words = self.gang.store.keys, self.control.words
        words[pg.STORE_WAIT] = 1
        self.link.ask(lambda: keys.get(f"word/{op.token}"), waits=True)
        words[pg.STORE_WAIT] = min(1, self.link.waiting)

    def _step(self, op: Op) -> None:
        self.control.between_steps()

    def _fork(self, op: Op) -> None:
        self.control.before_fork()
        self.gang.kernel.pause()
        self.control.after_fork()

    def _compute(self, op: Op) -> None:
        self.gang.kernel.sleep(0.1)


class Gang:
    """All ranks, on their nodes."""

    def __init__(self, kernel: Kernel, size: int, nodes: int, length: int) -> None:
        self.kernel, self.size = kernel, size
        self.nodes = [Node(f"node {at}", kernel.owner(f"agent {at}")) for at in range(nodes)]
        self.store = Store(kernel)
        self.wires: dict[tuple[int, int], Wire] = {}
        self.violations: list[str] = []
        self._serials = 0
        self.groups, programs = make_programs(kernel.rng, size, length)
        self.ranks = [Rank(self, at, self.nodes[at * nodes // size], program) for at, program in enumerate(programs)]

    def start(self) -> None:
        for rank in self.ranks:
            self.kernel.spawn(rank.run, rank.owner)

    def violate(self, what: str) -> None:
        self.violations.append(what)

    def soon(self) -> float:
        return self.kernel.now + self.kernel.rng.choice((0.0, 1e-4, 3e-3))

    def serial(self) -> int:
        self._serials += 1
        return self._serials

    def left(self) -> set[int]:
        return {rank.number for rank in self.ranks if rank.over}

    def living(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.owner.alive and not rank.over]

    def any_lives(self) -> bool:
        return any(rank.owner.alive and not rank.over for rank in self.ranks)


def make_programs(rng: random.Random, size: int, length: int) -> tuple[list[tuple[int, ...]], list[list[Op]]]:
    """Groups, and programs that end by themselves: one global order of operations, each appended to those who take part."""
    groups = [tuple(range(size))]
    if size > 2:
        groups += [tuple(sorted(rng.sample(range(size), rng.randint(2, size)))) for _ in range(2)]
    programs: list[list[Op]] = [[] for _ in range(size)]
    made = 0
    for token in range(length):
        if made < len(groups) and (not made or rng.random() < 0.2):
            _append(programs, groups[made], Op("group", token, made))
            made += 1
            continue
        _append_one(rng, programs, groups[:made], token, size)
    # Groups of ranks that have ended are not connected again: no rank ends before others have done all but wait.
    _append(programs, groups[0], Op("collective", length, 0))
    return groups, programs


def _append_one(
    rng: random.Random, programs: list[list[Op]], groups: list[tuple[int, ...]], token: int, size: int
) -> None:
    kind = rng.random() if size > 1 else rng.choice((0.0, 0.85, 0.95))
    if kind < 0.5:
        at = rng.randrange(len(groups))
        _append(programs, groups[at], Op("collective", token, at, wait=rng.random() < 0.5))
    elif kind < 0.75:
        source, target = rng.sample(range(size), 2)
        tag, any_source = rng.choice((1, 2)), rng.random() < 0.25
        tag = (
            100 + token if any_source else tag
        )  # of its own: a message that is met in place of another may be missed elsewhere
        programs[source].append(Op("send", token, peer=target, tag=tag, wait=rng.random() < 0.4))
        receive = "any" if any_source else "recv"
        programs[target].append(Op(receive, token, peer=source, tag=tag, wait=rng.random() < 0.5))
    elif kind < 0.83:
        source, target = rng.sample(range(size), 2)
        programs[source].append(Op("set", token))
        programs[target].append(Op("get", token))
    elif kind < 0.9:
        _append(programs, range(size), Op("step", token))
    else:
        programs[rng.randrange(size)].append(Op(rng.choice(("fork", "compute", "await_all")), token))


def _append(programs: list[list[Op]], ranks: Any, op: Op) -> None:
    for rank in ranks:
        programs[rank].append(op)
