"""What real programs hold on to: kept over a suspension where CRIU can, refused in advance where it cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.checkpoint.programs import BAD, GOOD, LOOP
from tests.checkpoint.site import ENV, Site
from tests.sizes import examples
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.criu.blockers import connected
from tidewright.checkpoint.protocol import RestorePlacement
from tidewright.testing.checkpoint import check_goes_on

pytestmark = pytest.mark.processes


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


@pytest.mark.parametrize("what", GOOD)
def test_kept_over_a_move_and_back(site: Site, tmp_path: Path, what: str):
    (tmp_path / "read-only").write_text("first\nsecond\n")
    gang = site.start(command=python(GOOD[what] + LOOP))
    here = site.driver("a")
    check_goes_on(lambda: len(site.output("a")), "at first")
    assert here.can(gang, "cpu").ok, here.can(gang, "cpu").reason
    for node, other in (("a", "b"), ("b", "a")):
        driver = site.driver(other)
        image = driver.save(gang)
        driver.restore(image, RestorePlacement(node=other))
        gang = site.gang_of_last(gang)
        check_goes_on(lambda other=other: len(site.output(other)), f"after the move from {node} to {other}")
        driver.discard(image)
    lines = site.output("a")
    assert lines == [str(number) for number in range(len(lines))]


@pytest.mark.parametrize("what", BAD)
def test_refused_in_advance(site: Site, what: str):
    code, says = BAD[what]
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        env = {**ENV, "ELSEWHERE": str(elsewhere.getsockname()[1])}
        gang = site.start(command=python(f"{code}\nprint('ready', flush=True)\nimport time\ntime.sleep(1000)"), env=env)
        assert wait_until(lambda: site.output("a") == ["ready"], 10), site.log("a", 0).read_text()
        verdict = site.driver("a").can(gang, "cpu")
    assert not verdict.ok and says in verdict.reason, verdict.reason


def test_refused_without_namespaces(site: Site):
    gang = site.start(sandboxed=False)
    assert "without namespaces" in site.driver("a").can(gang, "cpu").reason
    assert "memory of a h100" in site.driver("a").can(site.start(), "h100").reason


DOOR = """
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    time.sleep(0.2)
    listening.accept()[0].close()
"""


def test_a_pending_connection_is_accepted_before_the_save(site: Site, tmp_path: Path):
    """CRIU saves no connection that was not accepted yet. At any moment there may be one, and soon there is none."""
    gang = site.start(command=python(DOOR))
    assert wait_until(lambda: len(site.output("a")) == 1, 10), site.log("a", 0).read_text()
    where, over = ("127.0.0.1", int(site.output("a")[0])), threading.Event()

    def knock() -> None:
        while not over.wait(0.1):
            with suppress(OSError), socket.create_connection(where, timeout=5) as visitor:
                visitor.recv(1)

    visitors = threading.Thread(target=knock)
    visitors.start()
    try:
        for number in range(examples(10)):
            place = tmp_path / str(number)
            place.mkdir()
            site.driver("a").dump(gang.ranks, place, leave_running=True)
    finally:
        over.set()
        visitors.join()


JOINED = """
import os, socket, time
os.makedirs("/run/tidewright/rank/ctl")
open("/run/tidewright/rank/ctl/100", "wb").write(bytes(4096))
peer = socket.create_connection(("127.0.0.1", int(os.environ["ELSEWHERE"])))
def check(number):
    pass
"""


def test_connections_of_a_world_are_looked_at_when_it_stands_still(site: Site, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        env = {**ENV, "ELSEWHERE": str(elsewhere.getsockname()[1])}
        gang = site.start(command=python(JOINED + LOOP), env=env)
        check_goes_on(lambda: len(site.output("a")), "at first")
        driver = site.driver("a")
        assert driver.can(gang, "cpu").ok, "the wrapper has not had its chance to close it"
        with pytest.raises(WorldError, match="has a connection to"):
            driver.dump(gang.ranks, tmp_path / "images", leave_running=False)
    before = len(site.output("a"))
    check_goes_on(lambda: len(site.output("a")) - before, "after the refusal")


def test_a_world_does_not_excuse_other_sockets(site: Site):
    """The wrapper closes its own connections at the cut, and only those."""
    code = JOINED + "other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nother.connect(peer.getpeername())\n"
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        env = {**ENV, "ELSEWHERE": str(elsewhere.getsockname()[1])}
        gang = site.start(command=python(code + LOOP), env=env)
        check_goes_on(lambda: len(site.output("a")), "at first")
        assert "has a UDP connection to 127.0.0.1 port" in site.driver("a").can(gang, "cpu").reason


ON_AN_INTERFACE = "import socket; s = socket.socket(17, 3, 0); s.bind((socket.if_nameindex()[-1][1], 0))"
WITHOUT_ONE = "import socket; s = socket.socket(17, 3, 0)"
ECHO = """
import ctypes, fcntl, socket, struct
assert ctypes.CDLL(None).unshare(0x40000000) == 0  # a network of its own, where anybody may send echo requests
open("/proc/sys/net/ipv4/ping_group_range", "w").write("0 0")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
s.bind((%r, 7))
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param(
            ON_AN_INTERFACE,
            "listens to packets on interface",
            marks=pytest.mark.skipif(len(socket.if_nameindex()) < 2, reason="no interface but loopback"),
        ),
        (WITHOUT_ONE, ""),
        (ECHO % "127.0.0.1", "has tied a socket for ICMP packets to 127.0.0.1"),
        (ECHO % "0.0.0.0", ""),
    ],
)
def test_sockets_of_one_process(code: str, says: str):
    ready = f"{code}\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(python(ready), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = connected([process.pid])
        process.communicate(b"\n")
    assert says in found[0] if says else found == []
