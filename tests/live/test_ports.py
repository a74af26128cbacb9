"""Ports for gangs: none that the kernel gives to somebody else meanwhile."""

from __future__ import annotations

import socket

from tidewright.live.controller.port_allocator import TORCH, PortAllocator, ephemeral_ports


def test_no_port_is_one_that_the_kernel_gives_away() -> None:
    ports, ephemeral = PortAllocator(), ephemeral_ports()
    taken = [ports.take() for _ in range(200)]
    assert len(set(taken)) == 200
    assert not [port for port in taken if port in ephemeral or port in TORCH]


def test_a_port_in_use_is_passed_over() -> None:
    ports = PortAllocator()
    first, second = ports.take(), ports.take()
    ports._ports, ports._next = [first, second], 0
    assert ports.take() == first
    with socket.socket() as other:
        other.bind(("", second))
        other.listen()
        assert ports.take() == first


def test_a_later_controller_finds_the_port_that_an_attempt_was_given() -> None:
    names = [f"{job}.1 of 5" for job in range(20)]
    found = [PortAllocator().take(name) for name in names]
    assert [PortAllocator().take(name) for name in names] == found
    assert len(set(found)) > 15
    with socket.socket() as other:
        other.bind(("", found[0]))
        other.listen()
        assert PortAllocator().take(names[0]) != found[0]


def test_where_the_kernel_gives_all_away_any_port_will_do() -> None:
    assert 0 < PortAllocator(range(1, 65_536)).take() < 65_536
