"""The rendezvous of one job on two nodes when its ranks are restored: keys of before, and those that the first one leaves now."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from tests.agent.test_rendezvous_server import talk
from tidewright.agent.layout import AgentLayout
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.peer_rpc import PeerServer
from tidewright.agent.processes.attempt import Attempt
from tidewright.agent.rendezvous import journal as journal_module
from tidewright.agent.rendezvous.coordinator import RendezvousCoordinator
from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.base.errors import WorldError
from tidewright.launch.inject._tidewright.rendezvous import frames as fr
from tidewright.wire.agent import LaunchArgs, Peer, RankSeat

TOKEN, JOB = "secret", 1


class Node:
    """An agent as far as the rendezvous goes."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root / name
        self.layout = AgentLayout(self.root)
        self.layout.ranks.mkdir(parents=True)
        self.name, self.rendezvous_server = name, RendezvousServer(self.root / "meetings")
        self.rendezvous = RendezvousCoordinator(name, "127.0.0.1", TOKEN, self.rendezvous_server)
        self.peer_server = PeerServer(TOKEN, {"meeting": self.rendezvous.endpoint})

    @property
    def peer(self) -> Peer:
        return Peer(node=self.name, address="127.0.0.1", port=self.peer_server.port)

    def attempt(self, rank: int, peers: tuple[Peer, ...], generation: str) -> Attempt:
        seats = (RankSeat(rank, 0, (0,)),)
        args = LaunchArgs(job=JOB, attempt=1, command=("x",), ranks=seats, world_size=2, peers=peers)
        found = Attempt.create(self.layout, args, {}, AttemptRecord(peers=peers, rendezvous_generation=generation))
        (found.ranks[0].directory / "box").mkdir(parents=True, exist_ok=True)
        return found

    @property
    def token(self) -> str:
        return self.rendezvous.access_token(JOB, self.rendezvous_server.generation(str(JOB)))

    async def say(self, *requests: tuple[int, list[bytes]]) -> list[list[bytes]]:
        answers = await talk(self.rendezvous_server, self.token, list(requests))
        assert {code for code, _ in answers} == {fr.OK}
        return [parts for _, parts in answers[1:]]


class Two:
    """The node that hosts the rendezvous and another, with a rank each to restore in the generation ``again``."""

    def __init__(self, root: Path) -> None:
        self.host, self.guest = Node("host", root), Node("guest", root)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Two]:
        for node in (self.host, self.guest):
            await node.rendezvous_server.start()
            await node.peer_server.open("127.0.0.1")
        peers = (self.host.peer, self.guest.peer)
        self.hosts = self.host.attempt(0, peers, "again")
        self.guests = self.guest.attempt(1, peers, "again")
        try:
            yield self
        finally:
            for node in (self.host, self.guest):
                await node.peer_server.close()
                await node.rendezvous_server.stop()


def left(**keys: bytes) -> str:
    """What an image says was left by ranks."""
    other = RendezvousServer()
    other.open_job("1")
    for name, value in keys.items():
        other._machine.store("1").apply(fr.SET, b"w", [name.encode(), value])
    return base64.b64encode(other.dump("1")).decode()


def run(root: Path, work: Callable[[Two], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Two(root).up() as two:
            await work(two)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_door_opens_once_what_was_left_is_back(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.host.rendezvous.open(JOB)  # the job was here before
        knocking = asyncio.create_task(two.guest.rendezvous.write(two.guests, "again"))
        await asyncio.sleep(0.2)
        assert not knocking.done()
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        await knocking
        reach = json.loads((two.guests.ranks[0].directory / "box" / "reach.json").read_text())
        assert (reach["port"], reach["token"]) == (two.host.rendezvous_server.port, two.host.token)
        await two.host.say((fr.SET, [b"new", b"2"]))
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))  # a second try in the same generation
        assert await two.host.say((fr.MGET, [b"old", b"new"])) == [[b"1", b"2"]]

    run(tmp_path, work)


def test_a_later_generation_goes_back_to_what_its_image_says(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        await two.host.say((fr.SET, [b"new", b"2"]))
        two.hosts.record.rendezvous_generation = "once more"
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        assert await two.host.say((fr.KEYS, [])) == [[b"old"]]
        with pytest.raises(WorldError, match="damaged"):
            two.hosts.record.rendezvous_generation = "and again"
            two.host.rendezvous.unpack(two.hosts, base64.b64encode(b"\xffnonsense").decode())

    run(tmp_path, work)


def test_ranks_that_join_others_overwrite_nothing(tmp_path: Path) -> None:
    """A node that alone released its ranks brings them back into the generation that the others never left."""

    async def work(two: Two) -> None:
        two.host.rendezvous.reset(two.hosts)
        await two.host.say((fr.SET, [b"since", b"2"]))
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        assert await two.host.say((fr.KEYS, [])) == [[b"since"]]

    run(tmp_path, work)


def test_only_the_host_puts_back(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.guest.rendezvous.unpack(two.guests, left(old=b"1"))
        assert two.guest.rendezvous_server.generation("1") == ""

    run(tmp_path, work)


def test_who_waits_hears_that_the_host_failed(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        knocking = asyncio.create_task(two.guest.rendezvous.write(two.guests, "again"))
        await asyncio.sleep(0.05)
        two.host.rendezvous.fail(two.hosts, "its image is damaged")
        with pytest.raises(WorldError, match="its image is damaged"):
            await knocking

    run(tmp_path, work)


def test_who_is_to_end_waits_no_more(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        knocking = asyncio.create_task(two.guest.rendezvous.write(two.guests, "again"))
        await asyncio.sleep(0.05)
        two.guests.record.ending = "stop"
        with pytest.raises(WorldError, match="being ended"):
            await knocking

    run(tmp_path, work)


def test_ranks_that_nobody_joins_begin_at_their_image_each_time(tmp_path: Path) -> None:
    """The agent was killed once they ran, before it had noted that."""

    async def work(two: Two) -> None:
        two.hosts.args = structs.replace(two.hosts.args, world_size=1, peers=())
        for _ in range(2):
            two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
            assert await two.host.say((fr.KEYS, [])) == [[b"old"]]
            await two.host.say((fr.ADD, [b"n", fr.number(1)]))

    run(tmp_path, work)


def test_an_attempt_finds_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        two.hosts.record.rendezvous_generation = two.guests.record.rendezvous_generation = "from the beginning"
        knocking = asyncio.create_task(two.guest.rendezvous.write(two.guests, "from the beginning"))
        await asyncio.sleep(0.05)
        assert not knocking.done()
        two.host.rendezvous.reset(two.hosts)
        await knocking
        await two.host.say((fr.SET, [b"new", b"2"]))
        two.host.rendezvous.reset(two.hosts)  # the next agent begins again
        assert await two.host.say((fr.KEYS, [])) == [[b"new"]]

    run(tmp_path, work)


def test_nobody_takes_itself_for_the_host(tmp_path: Path) -> None:
    """A controller that has just been started may not know yet where the others are."""

    async def work(two: Two) -> None:
        for peers in ((), (two.guest.peer,)):
            two.guests.record.peers = peers
            with pytest.raises(WorldError, match="not connected"):
                await two.guest.rendezvous.write(two.guests, "again")

    run(tmp_path, work)


def test_what_was_left_and_is_no_text_is_damaged(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        with pytest.raises(WorldError, match="damaged"):
            two.host.rendezvous.unpack(two.hosts, "a")

    run(tmp_path, work)


def test_who_waits_outlasts_an_agent_that_is_started_again(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        port = two.host.peer_server.port
        await two.host.peer_server.close()
        knocking = asyncio.create_task(two.guest.rendezvous.write(two.guests, "again"))
        await asyncio.sleep(0.5)
        two.host.peer_server = PeerServer(TOKEN, {"meeting": two.host.rendezvous.endpoint})
        await two.host.peer_server.open("127.0.0.1", port)
        two.host.rendezvous.unpack(two.hosts, "")
        await knocking

    run(tmp_path, work)


def test_a_host_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.guest.rendezvous = RendezvousCoordinator(
            "guest", "127.0.0.1", TOKEN, two.guest.rendezvous_server, open_s=0.3
        )
        with pytest.raises(WorldError, match=r"node host has not opened the rendezvous of job 1"):
            await two.guest.rendezvous.write(two.guests, "again")

    run(tmp_path, work)


def test_the_next_agent_lets_ranks_meet_before_it_is_asked_to(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        two.host.rendezvous_server = RendezvousServer(two.host.root / "meetings")
        await two.host.rendezvous_server.start()
        two.host.rendezvous = RendezvousCoordinator("host", "127.0.0.1", TOKEN, two.host.rendezvous_server)
        two.host.rendezvous.adopt(two.hosts)
        assert await two.host.say((fr.GET, [b"old"])) == [[b"1"]]
        assert two.host.rendezvous_server.generation("1") == "again"

    run(tmp_path, work)


def test_a_full_disk_costs_the_ranks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted is counted once, and the file is whole again once there is room."""
    write, room = journal_module.write_all, [True]

    def limited(handle: int, data: bytes) -> None:
        write(handle, data if room[0] else data[:3])
        if not room[0]:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module, "write_all", limited)

    async def work(two: Two) -> None:
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        one = fr.number(1)
        for room[0] in (True, False, False, True, True):
            await two.host.say((fr.ADD, [b"n", one]))
        two.host.rendezvous_server = RendezvousServer(two.host.root / "meetings")
        await two.host.rendezvous_server.start()
        two.host.rendezvous = RendezvousCoordinator("host", "127.0.0.1", TOKEN, two.host.rendezvous_server)
        two.host.rendezvous.adopt(two.hosts)
        assert await two.host.say((fr.MGET, [b"old", b"n"])) == [[b"1", b"5"]]

    run(tmp_path, work)


async def enters(node: Node, token: str) -> bool:
    return (await talk(node.rendezvous_server, token, []))[0][0] == fr.OK


def test_ranks_of_an_earlier_generation_are_not_let_in_again(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        before = two.host.token
        assert await enters(two.host, before)
        two.hosts.record.rendezvous_generation = "once more"
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        assert two.host.token != before and await enters(two.host, two.host.token)
        assert not await enters(two.host, before) and not await enters(two.host, two.host.rendezvous.access_token(JOB))
        await two.host.rendezvous.write(two.hosts, "once more")
        assert json.loads((two.hosts.ranks[0].directory / "box" / "reach.json").read_text())["token"] == two.host.token

    run(tmp_path, work)


def test_an_agent_of_an_earlier_version_has_its_ranks_let_in(tmp_path: Path) -> None:
    """It asks for the port, and derives the token of the job. Ranks here that have theirs of the generation stay."""

    async def work(two: Two) -> None:
        assert await two.host.rendezvous.endpoint({"job": JOB, "sitting": "again"}) == 0
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        job = two.host.rendezvous.access_token(JOB)
        assert not await enters(two.host, job)
        assert await two.host.rendezvous.endpoint({"job": JOB, "sitting": "again"}) == two.host.rendezvous_server.port
        assert await enters(two.host, job) and await enters(two.host, two.host.token)
        two.hosts.record.rendezvous_generation = "once more"
        two.host.rendezvous.unpack(two.hosts, left(old=b"1"))
        assert not await enters(two.host, job)

    run(tmp_path, work)


def test_a_host_of_an_earlier_version_is_understood(tmp_path: Path) -> None:
    async def work(two: Two) -> None:
        async def port(args: dict[str, object]) -> int:
            return 4711

        two.host.peer_server._handlers["meeting"] = port
        await two.guest.rendezvous.write(two.guests, "again")
        reach = json.loads((two.guests.ranks[0].directory / "box" / "reach.json").read_text())
        assert (reach["port"], reach["token"]) == (4711, two.guest.rendezvous.access_token(JOB))

    run(tmp_path, work)


def test_keys_of_an_earlier_version_open_to_the_token_of_the_job(tmp_path: Path) -> None:
    """Its ranks run on under the next agent, and come back with the token that they have."""

    async def work(two: Two) -> None:
        two.host.rendezvous.open(JOB)
        two.host.rendezvous_server.name_generation(str(JOB), "again")
        two.host.rendezvous_server = RendezvousServer(two.host.root / "meetings")
        await two.host.rendezvous_server.start()
        two.host.rendezvous = RendezvousCoordinator("host", "127.0.0.1", TOKEN, two.host.rendezvous_server)
        two.host.rendezvous.adopt(two.hosts)
        assert await enters(two.host, two.host.rendezvous.access_token(JOB)) and await enters(two.host, two.host.token)

    run(tmp_path, work)
