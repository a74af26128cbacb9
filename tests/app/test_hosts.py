"""Several agents of one machine: how they are named on a command line, and remembered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidewright.app import hosts
from tidewright.app.compose import DaemonSettings, local_agents
from tidewright.app.hosts import Agents, Host
from tidewright.base.errors import UsageError

CORES = sorted(os.sched_getaffinity(0))


def test_hosts_as_they_are_written() -> None:
    assert hosts.parse_host("east") == Host("east")
    assert hosts.parse_host("east=2") == Host("east", 2)
    core = CORES[0]
    assert hosts.parse_host(f"east=2:{core}") == Host("east", 2, (core,))
    assert hosts.parse_host(f"east=:{core}-{core}") == Host("east", 0, (core,))
    for host in (Host("a"), Host("a", 3), Host("a", 2, (core,)), Host("a", 0, (core,))):
        assert hosts.parse_host(str(host)) == host


@pytest.mark.parametrize(
    "text", ["", "=2", "east=x", "east=2:", "a b", "east=65", "east=1:3-1", "east=1:99999", "../x=1"]
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts.parse_host(text)
    assert caught.value.remedy


@pytest.mark.parametrize("number", range(2, 6))
def test_cores_are_dealt_out(number: int) -> None:
    made = hosts.even_hosts(number, 0)
    assert [host.name for host in made] == [f"host-{at + 1}" for at in range(number)]
    used = [core for host in made for core in host.cores]
    assert set(used) == set(CORES) if number <= len(CORES) else set(used) <= set(CORES)
    assert all(host.cores and host.slots == len(host.cores) for host in made)
    assert [host.slots for host in hosts.even_hosts(number, 3)] == [3] * number


def test_one_host_is_the_usual_agent(tmp_path: Path) -> None:
    chosen = hosts.chosen([], 1, [], 0)
    assert chosen == Agents()
    (agent,) = local_agents(DaemonSettings(tmp_path, agents=chosen))
    assert agent.state == tmp_path and "--name" not in agent.argv and "--token-file" not in agent.argv


def test_each_host_has_a_directory_and_cores_of_its_own_and_all_share_a_token(tmp_path: Path) -> None:
    chosen = hosts.chosen([f"east=2:{CORES[0]}", "west"], 0, [], 0)
    assert chosen is not None
    agents = local_agents(DaemonSettings(tmp_path, agents=chosen, images="file:///images", image_quota=7 << 30))
    assert [agent.state for agent in agents] == [tmp_path / "hosts" / "east", tmp_path / "hosts" / "west"]
    tokens = {agent.argv[agent.argv.index("--token-file") + 1] for agent in agents}
    (token,) = tokens
    assert Path(token).stat().st_mode & 0o777 == 0o600 and len(Path(token).read_text().strip()) >= 32
    assert agents[0].argv[-2:] == ["--cores", str(CORES[0])] and "--cores" not in agents[1].argv
    assert all("file:///images" in agent.argv for agent in agents)
    assert all(agent.argv[agent.argv.index("--quota") + 1] == str(7 << 30) for agent in agents)


def test_agents_of_others_are_used_and_none_is_kept(tmp_path: Path) -> None:
    chosen = hosts.chosen([], 0, ["a.sock", "a.sock", "/b.sock"], 0)
    assert chosen == Agents(sockets=(str(Path("a.sock").absolute()), "/b.sock"))
    assert local_agents(DaemonSettings(tmp_path, agents=chosen)) == ()


def test_contradictions_are_refused() -> None:
    for given in ((["a"], 2, []), (["a", "a=2"], 0, []), ([], 17, [])):
        with pytest.raises(UsageError):
            hosts.chosen(*given, 0)  # type: ignore[arg-type]
    assert hosts.chosen([], 0, [], 4) is None


def test_they_are_remembered(tmp_path: Path) -> None:
    assert hosts.recall(tmp_path) == Agents()
    agents = Agents((Host("a", 2, (0,)), Host("b")), ("/x.sock",))
    hosts.remember(tmp_path, agents)
    assert hosts.recall(tmp_path) == agents
    hosts.remember(tmp_path, Agents())
    assert not (tmp_path / hosts.FILE).exists()
    (tmp_path / hosts.FILE).write_text("{")
    with pytest.raises(UsageError, match="unreadable"):
        hosts.recall(tmp_path)
