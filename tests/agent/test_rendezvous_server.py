"""The rendezvous store: its own protocol, what it keeps, and whom it lets in."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.agent.rendezvous.store import KeyValueStore
from tidewright.base.errors import WorldError
from tidewright.launch.inject._tidewright.rendezvous import frames as fr

from ..sizes import examples


async def talk(server: RendezvousServer, token: str, requests: list[tuple[int, list[bytes]]], late_ms: int = 0):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answers = []
    writer.write(fr.pack(fr.HELLO, [token.encode()]))
    answers.append(await answer(reader))
    for code, parts in requests:
        writer.write(fr.pack(code, [b"w", fr.number(late_ms), *parts]))
        answers.append(await answer(reader))
    writer.close()
    return answers


async def answer(reader: asyncio.StreamReader) -> tuple[int, list[bytes]]:
    return fr.unpack(await reader.readexactly(fr.length(await reader.readexactly(4))))


def served(work, directory: Path | None = None, **limits: int):
    async def main():
        server = RendezvousServer(directory, **limits)
        await server.start()
        try:
            return await work(server)
        finally:
            await server.stop()

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_operations_answer_as_torchs_store_does() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1")
        return await talk(
            server,
            token,
            [
                (fr.SET, [b"a", b"1"]),
                (fr.GET, [b"a"]),
                (fr.ADD, [b"n", fr.number(5)]),
                (fr.ADD, [b"n", fr.number(-2)]),
                (fr.GET, [b"n"]),
                (fr.CHECK, [b"a", b"zz"]),
                (fr.CAS, [b"new", b"", b"x"]),
                (fr.CAS, [b"new", b"y", b"z"]),
                (fr.CAS, [b"missing", b"y", b"z"]),
                (fr.DELETE, [b"a"]),
                (fr.PUSH, [b"q", b"1"]),
                (fr.DEPTH, [b"q"]),
                (fr.POP, [b"q"]),
                (fr.MSET, [b"k", b"v", b"l", b"w"]),
                (fr.MGET, [b"l", b"k"]),
                (fr.APPEND, [b"k", b"!"]),
                (fr.GET, [b"k"]),
            ],
        )

    codes, parts = zip(*served(work), strict=True)
    assert set(codes) == {fr.OK}
    assert parts[2] == [b"1"] and parts[5] == [b"3"] and fr.to_number(parts[4][0]) == 3
    assert fr.to_number(parts[6][0]) == 0
    assert (parts[7], parts[8], parts[9]) == ([b"x"], [b"x"], [b"y"])
    assert parts[13] == [b"1"] and parts[15] == [b"w", b"v"] and parts[17] == [b"v!"]


def test_a_read_waits_for_its_key_and_gives_up_in_time() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1")
        late = await talk(server, token, [(fr.GET, [b"k"])], late_ms=20)
        reading = asyncio.create_task(talk(server, token, [(fr.GET, [b"k"])]))
        await asyncio.sleep(0.05)
        await talk(server, token, [(fr.SET, [b"k", b"v"])])
        return late, await reading

    late, read = served(work)
    assert late[1][0] == fr.LATE and read[1] == (fr.OK, [b"v"])


def test_only_a_jobs_own_token_opens_its_keys() -> None:
    async def work(server: RendezvousServer):
        one, two = server.open_job("1"), server.open_job("2")
        await talk(server, one, [(fr.SET, [b"k", b"v"])])
        return await talk(server, two, [(fr.CHECK, [b"k"])]), await refused(server)

    async def refused(server: RendezvousServer):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(fr.pack(fr.HELLO, [b"guess"]))
        found = await answer(reader)
        rest = await reader.read()
        writer.close()
        return found, rest

    other, (no, rest) = served(work)
    assert fr.to_number(other[1][1][0]) == 0
    assert no[0] == fr.BAD and rest == b""


def test_a_stranger_may_say_little() -> None:
    async def work(server: RendezvousServer):
        server.open_job("1")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(fr.HEAD.pack(fr.SHORT + 1) + b"x")
        assert await reader.read() == b""
        writer.close()

    served(work)


def test_ranks_of_an_earlier_time_are_hung_up_on() -> None:
    """Those that wait, and those that ask: a rank whose node was cut off takes nothing from those that came instead."""

    async def work(server: RendezvousServer) -> None:
        token = server.open_job("1")
        lines = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in lines:
            writer.write(fr.pack(fr.HELLO, [token.encode()]))
            assert (await answer(reader))[0] == fr.OK
        waiting, asking = lines
        waiting[1].write(fr.pack(fr.POP, [b"w", fr.number(0), b"q"]))
        await asyncio.sleep(0.05)
        server.load("1")
        assert await waiting[0].read() == b""
        asking[1].write(fr.pack(fr.PUSH, [b"w", fr.number(0), b"q", b"stale"]))
        assert await asking[0].read() == b""
        assert (await talk(server, token, [(fr.DEPTH, [b"q"])]))[1:] == [(fr.OK, [fr.number(0)])]

    served(work)


def test_a_job_that_is_over_leaves_no_file_though_nobody_asked_for_it(tmp_path: Path) -> None:
    async def work(server: RendezvousServer, file: bool) -> None:
        assert list(tmp_path.glob("*.meet")) == [tmp_path / "1.meet"] * file
        if file:
            server.close_job("1")
        else:
            server.open_job("1")

    served(lambda server: work(server, False), tmp_path)
    served(lambda server: work(server, True), tmp_path)
    assert not list(tmp_path.glob("*.meet"))


def test_sums_are_numbers_of_64_bits_and_ranks_are_ranks() -> None:
    most = 2**63 - 1

    async def work(server: RendezvousServer):
        return await talk(
            server, server.open_job("1"),
            [
                (fr.ADD, [b"n", fr.number(most)]),
                (fr.ADD, [b"n", fr.number(2)]),
                *((fr.GATHER, [rank, size, b"me"]) for rank, size in ((b"2", b"2"), (b"-1", b"2"), (b"0", b"9" * 30))),
            ],
        )  # fmt: skip

    codes, parts = zip(*served(work), strict=True)
    assert parts[1:3] == ([fr.number(most)], [fr.number(-(2**63) + 1)])
    assert codes[3:] == (fr.BAD, fr.BAD, fr.BAD)


def test_keys_travel_with_an_image() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1")
        await talk(server, token, [(fr.SET, [b"k", b"v"]), (fr.PUSH, [b"q", b"1"])])
        data = server.dump("1")
        server.load("9", data)
        return await talk(server, server.open_job("9"), [(fr.GET, [b"k"]), (fr.DEPTH, [b"q"])])

    answers = served(work)
    assert answers[1] == (fr.OK, [b"v"]) and fr.to_number(answers[2][1][0]) == 1


def test_damaged_and_missing_keys_are_refused() -> None:
    server = RendezvousServer()
    with pytest.raises(WorldError, match="no rendezvous keys"):
        server.dump("1")

    async def work(server: RendezvousServer):
        with pytest.raises(WorldError, match="damaged"):
            server.load("1", b"\xffnonsense")

    served(work)


@pytest.mark.parametrize("cut_off", [0, 1, 7])
def test_an_agent_that_was_killed_starts_with_all_it_had_answered(tmp_path: Path, cut_off: int) -> None:
    async def first(server: RendezvousServer):
        token = server.open_job("1", "token")
        await talk(server, token, [(fr.ADD, [b"n", fr.number(1)]) for _ in range(10)])
        if cut_off:  # a record that was being written
            with (tmp_path / "1.meet").open("ab") as file:
                file.write(fr.pack(fr.ADD, [b"w", b"n", fr.number(1)])[:-cut_off])

    async def second(server: RendezvousServer):
        return await talk(server, server.open_job("1", "token"), [(fr.GET, [b"n"])])

    served(first, tmp_path)
    assert served(second, tmp_path)[1] == (fr.OK, [b"10"])
    journal_file = tmp_path / "1.meet"
    assert journal_file.exists() and journal_file.stat().st_mode & 0o077 == 0


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_leave_the_server_standing(junk: bytes) -> None:
    """Frames are parsed from whatever a socket brings."""
    if len(junk) >= 4:
        try:
            size = fr.length(junk[:4])
            fr.unpack(junk[4 : 4 + size])
        except (ValueError, IndexError):
            pass


def test_junk_on_the_wire_ends_that_connection_only() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, fr.pack(fr.SET, [b"x"])):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(junk)
            writer.write_eof()
            await reader.read()
            writer.close()
        bad = await talk(server, token, [(99, [b"x"]), (fr.ADD, [b"n", b"short"]), (fr.SET, [b"only"])])
        return bad, await talk(server, token, [(fr.SET, [b"a", b"b"])])

    bad, good = served(work)
    assert {code for code, _ in bad[1:]} == {fr.BAD} and good[1][0] == fr.OK


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40))
def test_rounds_never_share_a_number_between_attempts(size: int, arrivals: list[tuple[int, int]]) -> None:
    """Ranks come under new names at any time; a round ends exactly when all are in it, and its number is new."""
    keys, numbers, here = KeyValueStore(), [], {}
    for rank, name in ((rank % size, b"%d-%d" % (rank % size, name)) for rank, name in arrivals):
        known = any(name in found.over for found in keys.rounds.values())
        answer_ = keys.apply(fr.GATHER, b"w", [b"%d" % rank, b"%d" % size, name]).answer
        if known:
            continue
        here[rank] = name
        assert (answer_ is not None) == (len(here) == size)
        if answer_ is not None:
            numbers.append(fr.to_number(answer_[0]))
            here = {}
    assert numbers == sorted(set(numbers))


def test_a_rank_that_ended_is_not_waited_for() -> None:
    keys = KeyValueStore()
    keys.apply(fr.SET, b"w", [b"ended/1", b"1"])
    assert keys.apply(fr.GATHER, b"w", [b"0", b"2", b"name"]).answer is not None


def test_strangers_who_say_nothing_keep_nobody_out() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1")
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
        answers = await talk(server, token, [(fr.SET, [b"a", b"1"]), (fr.GET, [b"a"])])
        assert [code for code, _ in answers] == [fr.OK] * 3
        assert server._machine.unknown <= 8
        for _, writer in silent:
            writer.close()

    served(work, most_unknown=8)


async def prove(
    server: RendezvousServer, token: bytes, store: bytes = b""
) -> tuple[list[tuple[int, list[bytes]]], bytes]:
    """A rank's way in; ``store`` in place of the store's own challenge. What it answered, and what was sent to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    rank = b"r" * fr.NONCE
    sent = fr.pack(fr.CHALLENGE, [rank])
    writer.write(sent)
    first = await answer(reader)
    proof = fr.pack(fr.PROVE, [fr.proof(b"rank", token, rank, store or first[1][0])])
    writer.write(proof)
    second = await answer(reader)
    writer.close()
    return [first, second], sent + proof


def test_a_ticket_is_proved_and_not_sent() -> None:
    async def work(server: RendezvousServer):
        token = server.open_job("1").encode()
        server.open_job("2")
        return (
            token,
            await prove(server, token),
            await prove(server, b"guess"),
            await prove(server, token, b"o" * fr.NONCE),
        )

    token, (good, sent), (bad, _), (old, _) = served(work)
    store = good[0][1][0]
    assert good[1] == (fr.OK, [fr.proof(b"store", token, b"r" * fr.NONCE, store)]) and token not in sent
    assert bad[1][0] == old[1][0] == fr.BAD, "a proof for another challenge is none"
    assert good[0][1] != bad[0][1] != old[0][1]


def test_a_rank_leaves_a_store_that_cannot_prove_the_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidewright.launch.inject._tidewright.rendezvous import client as ranks

    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = bytearray()

        def pretend() -> None:
            line, _ = listener.accept()
            with line:
                heard.extend(line.recv(1000))
                line.sendall(fr.pack(fr.OK, [b"s" * fr.NONCE]))
                heard.extend(line.recv(1000))
                line.sendall(fr.pack(fr.OK, [b"p" * 32]))

        impostor = threading.Thread(target=pretend)
        impostor.start()
        with (
            socket.create_connection(listener.getsockname()) as line,
            pytest.raises(OSError, match="does not know this job"),
        ):
            ranks._greet(line, b"the token")
        impostor.join()
    assert b"the token" not in heard


def test_requests_that_come_at_once_are_answered_in_order_as_fast_as_they_are_taken() -> None:
    """More than the socket's buffers hold, and the peer sends nothing after them."""
    value, times = b"v" * 100_000, 200

    async def work(server: RendezvousServer) -> None:
        token = server.open_job("1")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(fr.pack(fr.HELLO, [token.encode()]) + fr.pack(fr.SET, [b"w", fr.number(0), b"k", value]))
        for index in range(times):
            writer.write(fr.pack(fr.ADD, [b"w", fr.number(0), b"n", fr.number(1)]))
            writer.write(fr.pack(fr.GET if index % 2 else fr.WAIT, [b"w", fr.number(0), b"k"]))
        writer.write_eof()
        await asyncio.sleep(0.1)
        assert [(await answer(reader))[0] for _ in range(2)] == [fr.OK] * 2
        for index in range(times):
            assert fr.to_number((await answer(reader))[1][0]) == index + 1
            assert (await answer(reader))[1] == ([value] if index % 2 else [])
        assert await reader.read() == b""
        writer.close()

    served(work)


def test_a_rank_that_hangs_up_while_it_waits_is_forgotten_at_once() -> None:
    async def work(server: RendezvousServer) -> None:
        token = server.open_job("1")
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(fr.pack(fr.HELLO, [token.encode()]) + fr.pack(fr.POP, [b"w", fr.number(0), b"q"]))
        while not server._machine.waiting("1"):
            await asyncio.sleep(0.01)
        writer.close()
        while server._machine.waiting("1"):
            await asyncio.sleep(0.01)

    served(work)


def test_keys_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    """A journal, and the keys in an image, from before tokens belonged to a generation."""
    old = {"keys": {b"w": {b"k": b"v"}}, "queues": {}, "answers": {b"me": (1, [b"a"])}, "sitting": "g",
           "rounds": {b"w": {"number": 3, "here": {0: b"zero"}, "over": {b"x": 3}}}}  # fmt: skip
    text = msgspec.msgpack.encode(old)
    (tmp_path / "1.meet").write_bytes(fr.HEAD.pack(len(text)) + text + fr.pack(fr.SET, [b"w", b"l", b"w"]))

    async def work(server: RendezvousServer):
        token = server.open_job("1", "token")
        assert server.generation("1") == "g" and not server.own_token("1")
        server.load("2", text, "h")
        assert server.generation("2") == "h" and server.own_token("2")
        gather = (fr.GATHER, [b"1", b"2", b"one"])
        return await talk(server, token, [(fr.MGET, [b"k", b"l"]), gather])

    answers = served(work, tmp_path)
    assert answers[1:] == [(fr.OK, [b"v", b"w"]), (fr.OK, [fr.number(4)])]
