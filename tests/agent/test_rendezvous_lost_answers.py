"""Answers of the rendezvous store that are lost on their way: what was asked for is done once all the same."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.test_rendezvous_server import served, talk
from tests.sizes import seeds
from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.launch.inject._tidewright.rendezvous import frames as fr
from tidewright.launch.inject._tidewright.rendezvous.client import Late, Link


class Lossy:
    """Stands between ranks and the store, and breaks a connection now and then before or after an answer comes."""

    def __init__(self, server: RendezvousServer, dice: random.Random) -> None:
        self._rendezvous_server, self._dice = server, dice
        self.broken = self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, out = await asyncio.open_connection("127.0.0.1", self._rendezvous_server.port)
        try:
            while True:
                await self._frame(reader, out)
                if self._dice.random() < 0.1:
                    return
                answer = await theirs.readexactly(4)
                answer += await theirs.readexactly(fr.length(answer))
                if self._dice.random() < 0.1:
                    return
                writer.write(answer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.broken += 1
            writer.close()
            out.close()

    @staticmethod
    async def _frame(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(4)
        out.write(head + await reader.readexactly(fr.length(head)))


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    monkeypatch.setenv("TIDE_BOX", str(tmp_path))

    def write(port: int, token: str) -> None:
        (tmp_path / "reach.json").write_text(json.dumps({"address": "127.0.0.1", "port": port, "token": token}))

    return write


@pytest.mark.parametrize("seed", seeds(5))
def test_nothing_is_counted_twice_or_taken_twice(reach: Callable[[int, str], None], seed: int) -> None:
    times, taken, sums = 60, [], []

    def rank(link: Link, number: int) -> None:
        for turn in range(times):
            sums.append(fr.to_number(link.ask(fr.ADD, b"w", [b"n", fr.number(1)])[0]))
            link.ask(fr.PUSH, b"w", [b"q", b"%d/%d" % (number, turn)])
            taken.append(link.ask(fr.POP, b"w", [b"q"], wait_s=20)[0])
            link.ask(fr.APPEND, b"w", [b"text", b"x"])
            seen = b"seen %d" % number
            link.ask(fr.SET, b"w", [seen, b"%d" % turn])
            assert link.ask(fr.DELETE, b"w", [seen]) == [fr.number(1)]

    async def work(server: RendezvousServer) -> int:
        lossy = Lossy(server, random.Random(seed))
        await lossy.start()
        reach(lossy.port, server.open_job("1"))
        link = Link()  # two threads of one process, and another process
        ranks = [
            threading.Thread(target=rank, args=(each, at), daemon=True) for at, each in enumerate((link, link, Link()))
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            await asyncio.to_thread(each.join)
        text = await asyncio.to_thread(link.ask, fr.GET, b"w", [b"text"])
        assert len(text[0]) == 3 * times
        with pytest.raises(Late):
            await asyncio.to_thread(link.ask, fr.POP, b"w", [b"q"], 0.01)
        link.end()
        return lossy.broken

    assert served(work) > 20
    assert sorted(sums) == list(range(1, 3 * times + 1))
    assert sorted(taken) == sorted(b"%d/%d" % (number, turn) for number in range(3) for turn in range(times))


def counted(number: int, code: int, *parts: bytes) -> tuple[int, list[bytes]]:
    return fr.ONCE, [b"me", fr.number(number), bytes((code,)), *parts]


def test_the_next_agent_and_an_image_know_what_was_answered(tmp_path: Path) -> None:
    one = fr.number(1)

    async def first(server: RendezvousServer) -> bytes:
        await talk(server, server.open_job("1", "token"), [counted(1, fr.ADD, b"n", one)])
        return server.dump("1")

    async def again(server: RendezvousServer) -> list[tuple[int, list[bytes]]]:
        asked = [counted(1, fr.ADD, b"n", one), counted(2, fr.ADD, b"n", one), counted(2, fr.ADD, b"n", one)]
        return (await talk(server, server.open_job("1", "token"), asked))[1:]

    async def elsewhere(server: RendezvousServer) -> list[tuple[int, list[bytes]]]:
        server.load("1", image)
        return await again(server)

    image = served(first, tmp_path)
    expected = [(fr.OK, [fr.number(value)]) for value in (1, 2, 2)]
    assert served(again, tmp_path) == expected
    assert served(elsewhere) == expected


def test_a_set_whose_answer_is_lost_undoes_nothing_that_was_done_since() -> None:
    """And neither does a copy of it that comes after the next request was answered."""

    async def work(server: RendezvousServer) -> list[tuple[int, list[bytes]]]:
        reset, add = counted(1, fr.SET, b"n", b"0"), (fr.ADD, [b"n", fr.number(1)])
        later = counted(2, fr.SET, b"m", b"1")
        return (await talk(server, server.open_job("1"), [reset, add, reset, later, reset, (fr.GET, [b"n"])]))[1:]

    answers = served(work)
    assert [code for code, _ in answers] == [fr.OK, fr.OK, fr.OK, fr.OK, fr.BAD, fr.OK]
    assert answers[-1][1] == [b"1"]


@pytest.mark.parametrize("code", [fr.ONCE, fr.GET, fr.HELLO, 99])
def test_what_is_not_to_be_counted_is_refused(code: int) -> None:
    async def work(server: RendezvousServer) -> list[tuple[int, list[bytes]]]:
        return await talk(
            server, server.open_job("1"), [counted(1, code, b"n"), (fr.ONCE, [b"me"]), (fr.SET, [b"a", b"b"])]
        )

    codes = [code for code, _ in served(work)]
    assert codes == [fr.OK, fr.BAD, fr.BAD, fr.OK]
