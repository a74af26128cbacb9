"""Who keeps a connection when there are too many, what a log takes, and a socket whose file vanishes."""

from __future__ import annotations

import logging
import resource
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.wire.connections import Connections, Limits, TooManyConnections, peer_of, raise_open_files
from tidewright.wire.log_limit import LogLimit
from tidewright.wire.socket_file import SocketFile


def _full(total: int = 4, each: int = 2) -> tuple[Connections, list[str]]:
    return Connections(Limits(total=total, each=each)), []


def test_the_oldest_silent_connection_of_a_peer_goes_for_its_next_one() -> None:
    table, closed = _full()
    for name in ("a1", "a2", "a3"):
        table.admit(name, "a", lambda name=name: closed.append(name))
    assert closed == ["a1"] and len(table) == 2
    table.busy("a2")
    table.admit("a4", "a", lambda: closed.append("a4"))
    assert closed == ["a1", "a3"]
    table.busy("a4")
    with pytest.raises(TooManyConnections):
        table.admit("a5", "a", lambda: None)
    table.closed("a2")
    table.admit("a6", "a", lambda: None)
    assert len(table) == 2 and table.rejected == 3


def test_when_all_room_is_taken_the_peer_with_most_silent_ones_pays() -> None:
    table, closed = _full(total=5, each=4)
    for name in ("b1", "a1", "a2", "a3", "c1"):
        table.admit(name, name[0], lambda name=name: closed.append(name))
    table.admit("d1", "d", lambda: None)
    assert closed == ["a1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["open", "busy", "silent", "closed"])), max_size=60))
def test_counts_hold_and_a_busy_connection_is_never_closed(script: list[tuple[str, str]]) -> None:
    table, numbers = Connections(Limits(total=5, each=3)), 0
    alive: dict[int, str] = {}
    busy: set[int] = set()

    def gone(key: int) -> None:
        assert key not in busy
        del alive[key]

    for peer, what in script:
        mine = [key for key, owner in alive.items() if owner == peer]
        if what == "open":
            numbers += 1
            try:
                table.admit(numbers, peer, lambda key=numbers: gone(key))
                alive[numbers] = peer
            except TooManyConnections:
                pass
        elif mine and what == "busy":
            table.busy(mine[0])
            busy.add(mine[0])
        elif mine and what == "silent":
            table.silent(mine[0])
            busy.discard(mine[0])
        elif mine:
            table.closed(mine[0])
            table.closed(mine[0])
            busy.discard(mine[0])
            del alive[mine[0]]
        assert len(table) == len(alive) <= 5
        assert all(list(alive.values()).count(one) <= 3 for one in "abc")


def test_peers_are_addresses_networks_and_users(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as six, socket.socket() as four:
        assert peer_of(four, ("10.0.0.7", 1)) == "10.0.0.7"
        assert peer_of(six, ("2001:db8::1:2:3", 1, 0, 0)) == peer_of(six, ("2001:db8::9", 2, 0, 0))
        assert peer_of(six, ("fe80::1%eth0", 1, 0, 0)) != peer_of(six, ("2001:db8::9", 2, 0, 0))
        assert peer_of(six, ("::ffff:10.0.0.7", 1, 0, 0)) == "10.0.0.7"
    here, there = socket.socketpair()
    with here, there:
        assert peer_of(here, "") == Path("/proc/self").stat().st_uid


def test_the_limit_of_open_files_is_raised_and_the_old_one_returned() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_open_files() == 256
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(65536, before[1])
        assert raise_open_files() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_log_takes_so_many_of_one_message_and_counts_the_rest() -> None:
    now = 0.0
    limit = LogLimit(burst=3, period_s=60, clock=lambda: now)

    def written(text: str, *args: object) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, args, None)
        return record.getMessage() if limit.filter(record) else None

    assert [written("peer %d", n) for n in range(5)] == ["peer 0", "peer 1", "peer 2", None, None]
    assert written("another") == "another"
    now = 61.0
    assert written("peer %d", 5) == "peer 5 (and 2 more like it, left out)"
    assert written("peer %d", 6) == "peer 6"


def test_a_socket_whose_file_vanishes_is_seen_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "x.sock"
    path.parent.mkdir()
    file = SocketFile(path)
    assert not file.gone
    with file.bind(1):
        assert not file.gone and not stat.S_IMODE(path.stat().st_mode) & 0o077
        path.unlink()
        assert file.gone
        path.write_text("something else")
        assert file.gone
        with file.bind(1):
            assert not file.gone and path.is_socket()
    file.remove()
    assert not path.exists() and not file.gone
