"""The rendezvous machines, one event at a time: who is answered by which write, and what the journal has by then."""

from __future__ import annotations

from collections import Counter

import pytest

from tidewright.agent.rendezvous import generations as gn
from tidewright.agent.rendezvous import journal_format, polling
from tidewright.agent.rendezvous import messages as ms
from tidewright.agent.rendezvous.framing import FrameBuffer
from tidewright.agent.rendezvous.machine import RendezvousMachine
from tidewright.agent.rendezvous.store import KeyValueStore, encode
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

WORLD = b"w"


class Server:
    """The machine of one open job, its journal, and what each connection was sent."""

    def __init__(self, journal: bytes = b"") -> None:
        self.machine = RendezvousMachine(journals=True, most_unknown=10_000)
        self.journal = journal
        self.sent: dict[int, list[tuple[int, list[bytes]]]] = {}
        self.last: list[ms.Action] = []
        self.connections = 0
        self.step(ms.JobOpened("1", ("token",), journal))

    def step(self, event: ms.Event) -> None:
        self.last = self.machine.step(event)
        for action in self.last:
            match action:
                case ms.SendFrame(connection, data):
                    self.sent[connection].append(fr.unpack(data[4:]))
                case ms.AppendJournal(_, record):
                    self.journal += record
                case ms.RewriteJournal(_, snapshot):
                    self.journal = snapshot

    def connect(self) -> int:
        self.connections += 1
        self.sent[self.connections] = []
        self.step(ms.ConnectionOpened(self.connections, b"n" * fr.NONCE))
        self.step(ms.FrameReceived(self.connections, fr.pack(fr.HELLO, [b"token"])[4:]))
        assert self.sent[self.connections].pop() == (fr.OK, [])
        return self.connections

    def ask(
        self, connection: int, code: int, *parts: bytes, wait_ms: int = 0, world: bytes = WORLD
    ) -> list[bytes] | None:
        """The answer, None while it waits."""
        self.step(ms.FrameReceived(connection, fr.pack(code, [world, fr.number(wait_ms), *parts])[4:]))
        return self.heard(connection)

    def heard(self, connection: int) -> list[bytes] | None:
        if not self.sent[connection]:
            return None
        code, parts = self.sent[connection].pop(0)
        assert code == fr.OK, (code, parts)
        return parts

    @property
    def store(self) -> KeyValueStore:
        found = self.machine.store("1")
        assert found is not None
        return found


def once(
    number: int, code: int, *parts: bytes, who: bytes = b"me"
) -> tuple[int, bytes, bytes, bytes, *tuple[bytes, ...]]:
    return (fr.ONCE, who, fr.number(number), bytes((code,)), *parts)


def test_a_write_looks_at_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server, polled = Server(), Counter[bytes]()
    poll = KeyValueStore.poll

    def counting(self: KeyValueStore, code: int, world: bytes, parts: list[bytes]):
        polled[parts[0]] += 1
        return poll(self, code, world, parts)

    monkeypatch.setattr(KeyValueStore, "poll", counting)
    waiting = [server.connect() for _ in range(1000)]
    assert all(server.ask(each, fr.GET, b"key") is None for each in waiting)
    writer = server.connect()
    for index in range(50):
        server.ask(writer, fr.SET, b"other %d" % index, b"x")
    assert not polled and server.machine.waiting("1") == 1000
    server.ask(writer, fr.SET, b"key", b"v")
    assert polled == {b"key": 1000} and all(server.heard(each) == [b"v"] for each in waiting)


def test_a_read_of_several_keys_is_answered_by_the_last_of_them() -> None:
    server = Server()
    reader, writer = server.connect(), server.connect()
    assert server.ask(reader, fr.MGET, b"a", b"b", b"c") is None
    for key in (b"c", b"b"):
        server.ask(writer, fr.SET, key, key)
        assert server.heard(reader) is None
    server.ask(writer, fr.DELETE, b"b")
    server.ask(writer, fr.SET, b"a", b"a")
    assert server.heard(reader) is None
    server.ask(writer, fr.SET, b"b", b"again")
    assert server.heard(reader) == [b"a", b"again", b"c"]


def test_items_of_a_queue_go_to_those_that_came_first() -> None:
    server = Server()
    first, second, writer = (server.connect() for _ in range(3))
    assert server.ask(first, fr.POP, b"q") is None and server.ask(second, fr.POP, b"q") is None
    server.ask(writer, fr.PUSH, b"q", b"1")
    assert server.heard(first) == [b"1"] and server.heard(second) is None


def test_an_item_is_not_left_to_a_rank_that_has_hung_up() -> None:
    server = Server()
    first, second, writer = (server.connect() for _ in range(3))
    server.ask(first, fr.POP, b"q")
    server.ask(second, fr.POP, b"q")
    server.step(ms.ConnectionClosed(first))
    server.ask(writer, fr.PUSH, b"q", b"1")
    assert server.heard(second) == [b"1"] and not server.sent[first]


def test_a_request_that_waits_twice_is_answered_twice_with_the_same() -> None:
    """Its first connection is broken, and the server does not know yet. Another rank stands between the two."""
    server = Server()
    broken, other, again, writer = (server.connect() for _ in range(4))
    request = once(1, fr.POP, b"q")
    assert server.ask(broken, *request) is None
    assert server.ask(other, *once(1, fr.POP, b"q", who=b"other")) is None
    assert server.ask(again, *request) is None
    server.ask(writer, fr.PUSH, b"q", b"1")
    assert server.heard(broken) == server.heard(again) == [b"1"] and server.heard(other) is None


def test_an_answer_does_not_come_late_too() -> None:
    server = Server()
    reader, writer = server.connect(), server.connect()
    server.ask(reader, fr.GET, b"a", wait_ms=50)
    (timer,) = [action for action in server.last if isinstance(action, ms.ArmWait)]
    server.ask(writer, fr.SET, b"a", b"1")
    assert ms.CancelWait(reader) in server.last and server.heard(reader) == [b"1"]
    assert server.ask(reader, fr.GET, b"b") is None
    server.step(ms.WaitExpired(timer.connection, timer.serial))
    assert not server.sent[reader]


def gather(server: Server, connection: int, rank: int, name: bytes, size: int = 2) -> list[bytes] | None:
    return server.ask(connection, fr.GATHER, b"%d" % rank, b"%d" % size, name)


def test_the_next_agent_gives_no_rounds_number_twice() -> None:
    """Killed once one rank has heard it, and asked by that rank for the next round before the other asks again."""
    server = Server()
    zero, one = server.connect(), server.connect()
    assert gather(server, zero, 0, b"zero") is None
    server.step(ms.FrameReceived(one, fr.pack(fr.GATHER, [WORLD, fr.number(0), b"1", b"2", b"one"])[4:]))
    assert server.heard(one) == [fr.number(1)]
    following = Server(server.journal)
    zero, one = following.connect(), following.connect()
    assert gather(following, one, 1, b"one, again") is None
    assert gather(following, zero, 0, b"zero") == [fr.number(1)]
    assert gather(following, zero, 0, b"zero, again") == following.heard(one) == [fr.number(2)]


def test_a_journal_leads_to_the_same_store() -> None:
    server = Server()
    zero, one, two = (server.connect() for _ in range(3))
    gather(server, zero, 0, b"a", 3)
    gather(server, one, 1, b"b", 3)
    server.ask(two, *once(1, fr.MSET, b"x", b"1", b"y", b"2"))
    server.ask(two, *once(2, fr.PUSH, b"q", b"i"))
    server.ask(two, fr.SET, b"ended/2", b"1")  # completes the round of the two others
    assert server.heard(zero) == server.heard(one) == [fr.number(1)]
    server.ask(two, fr.NEW, b"first", b"1")
    gather(server, zero, 0, b"c", 3)
    assert encode(journal_format.replay(server.journal)) == encode(server.store)


@pytest.mark.parametrize("code", [fr.MSET, fr.NEW])
def test_a_torn_record_is_not_a_shorter_operation(code: int) -> None:
    """What was answered to a counted request would stand there, and half of it was done."""
    server = Server()
    before = encode(server.store)
    record = journal_format.record(fr.ONCE, WORLD, once(1, code, b"a", b"1", b"b", b"2")[1:])
    for size in range(len(record)):
        assert encode(journal_format.replay(server.journal + record[:size])) == before


@pytest.mark.parametrize(("code", "parts"), [(fr.MSET, [b"a", b"1", b"b"]), (fr.NEW, [b"a"]), (fr.CAS, [b"a"])])
def test_what_is_refused_changes_nothing(code: int, parts: list[bytes]) -> None:
    server = Server()
    connection = server.connect()
    server.ask(connection, fr.SET, b"kept", b"1")
    before, journal = encode(server.store), server.journal
    with pytest.raises(AssertionError):
        server.ask(connection, code, *parts)
    assert (encode(server.store), server.journal) == (before, journal)


def test_a_rank_that_came_anew_is_not_replaced_by_its_earlier_request() -> None:
    server = Server()
    broken, again, one, writer = (server.connect() for _ in range(4))
    assert gather(server, broken, 0, b"before") is None
    assert gather(server, again, 0, b"now") is None
    server.ask(writer, fr.SET, b"key", b"1")  # once every write looked at every request, and the first joined again
    assert gather(server, one, 1, b"one") == server.heard(again) == [fr.number(1)]
    assert server.heard(broken) is None


def test_ranks_that_wait_join_again_when_their_world_is_emptied() -> None:
    server = Server()
    zero, one, writer = (server.connect() for _ in range(3))
    assert gather(server, zero, 0, b"zero") is None
    server.ask(writer, fr.NEW, b"k", b"v")
    assert gather(server, one, 1, b"one") == server.heard(zero) == [fr.number(1)]


def test_a_failed_write_has_the_journal_rewritten_by_the_next() -> None:
    server = Server()
    connection = server.connect()
    server.ask(connection, fr.SET, b"a", b"1")
    assert any(isinstance(action, ms.AppendJournal) for action in server.last)
    server.step(ms.JournalFailed("1"))
    server.ask(connection, fr.SET, b"b", b"2")
    assert ms.RewriteJournal("1", journal_format.snapshot(server.store)) in server.last


def test_what_is_journalled_stands_before_its_answer() -> None:
    server = Server()
    server.ask(server.connect(), fr.ADD, b"n", fr.number(1))
    assert [type(action) for action in server.last] == [ms.AppendJournal, ms.SendFrame]


def test_frames_come_in_any_pieces() -> None:
    frames = [fr.pack(fr.SET, [b"k", b"v" * size]) for size in (0, 1, 300)]
    for size in (1, 2, 5, 1000):
        buffer, found, text = FrameBuffer(), [], b"".join(frames)
        while text:
            buffer.feed(text[:size])
            text = text[size:]
            while (frame := buffer.next(fr.LONGEST)) is not None:
                found.append(frame)
        assert found == [frame[4:] for frame in frames] and not len(buffer)
    with pytest.raises(ValueError, match="not a frame"):
        buffer.feed(fr.HEAD.pack(fr.SHORT + 1))
        buffer.next(fr.SHORT)


LOAD, OPEN = gn.LoadKeys(1, "g", "keys"), gn.OpenKeys(1)


@pytest.mark.parametrize(
    ("event", "actions"),
    [
        (gn.GenerationRestored(1, "g", True, False, "", "keys"), (LOAD,)),
        (gn.GenerationRestored(1, "g", True, False, "before", "keys"), (LOAD,)),
        (gn.GenerationRestored(1, "g", True, False, "g", "keys"), ()),
        (gn.GenerationRestored(1, "g", True, True, "g", "keys"), (LOAD,)),
        (gn.GenerationRestored(1, "", True, False, "", "keys"), (gn.LoadKeys(1, "", "keys"),)),
        (gn.GenerationRestored(1, "g", False, False, "", "keys"), ()),
        (gn.GenerationLaunched(1, "g", True, "before"), (gn.LoadKeys(1, "g"),)),
        (gn.GenerationLaunched(1, "g", True, "g"), ()),
        (gn.GenerationLaunched(1, "g", False, "before"), ()),
        (gn.GenerationAdopted(1, "g", True, True, True, "g"), (OPEN,)),
        (gn.GenerationAdopted(1, "g", True, True, True, ""), (OPEN, gn.NameGeneration(1, "g"))),
        (gn.GenerationAdopted(1, "g", True, True, False, ""), (OPEN,)),
        (gn.GenerationAdopted(1, "g", True, False, True, ""), ()),
        (gn.GenerationAdopted(1, "g", False, True, True, ""), ()),
        (gn.EndpointPolled(1, "g", "g"), (OPEN, gn.ShowEndpoint())),
        (gn.EndpointPolled(1, "", "g"), (OPEN, gn.ShowEndpoint())),
        (gn.EndpointPolled(1, "g", "before"), (gn.HideEndpoint(),)),
        (gn.EndpointPolled(1, "g", "g", True, True), (gn.NameGeneration(1, "g"), OPEN, gn.ShowEndpoint())),
        (gn.EndpointPolled(1, "g", "g", True, False), (OPEN, gn.ShowEndpoint())),
        (gn.EndpointPolled(1, "g", "before", True, True), (gn.HideEndpoint(),)),
        (gn.JobLeft(1), (gn.CloseKeys(1),)),
    ],
)
def test_a_generation_goes_by_its_table(event: gn.Event, actions: tuple[gn.Action, ...]) -> None:
    assert gn.GenerationMachine().step(event) == actions


def test_a_generation_that_failed_is_refused_until_the_job_has_left() -> None:
    machine = gn.GenerationMachine()
    assert machine.step(gn.GenerationFailed(1, "g", "damaged")) == ()
    assert machine.step(gn.EndpointPolled(1, "g", "g")) == (gn.RefuseEndpoint(1, "damaged"),)
    assert machine.step(gn.EndpointPolled(1, "next", "g")) == (gn.HideEndpoint(),)
    machine.step(gn.JobLeft(1))
    assert machine.step(gn.EndpointPolled(1, "g", "g")) == (OPEN, gn.ShowEndpoint())


def test_a_poll_backs_off_waits_out_silence_and_gives_up() -> None:
    poll = polling.EndpointPoll("host", 1, "g", 100.0)
    pauses = []
    for _ in range(8):
        assert poll.next(100.0, ending=False) == polling.PollHost()
        step = poll.answered(100.0, polling.CLOSED)
        assert isinstance(step, polling.PollDelay)
        pauses.append(step.seconds)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]
    assert poll.silent(130.0, "gone") == polling.PollDelay(0.25)
    assert poll.silent(130.1, "gone") == polling.PollFailed("gone")
    assert poll.answered(131.0, 7) == polling.EndpointOpen(7)
    assert poll.silent(160.0, "gone") == polling.PollDelay(0.25)
    assert poll.next(161.0, ending=True) == polling.PollFailed("its ranks are being ended")
    late = poll.next(1000.0, ending=False)
    assert isinstance(late, polling.PollFailed) and "for 900 s" in late.reason
    assert polling.EndpointPoll("host", 1, "", 0.0).silent(0.0, "gone") == polling.PollFailed("gone")
