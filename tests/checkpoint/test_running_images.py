"""Images of ranks that run on: their connections last, whatever dies meanwhile, and the program notices next to nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.checkpoint.programs import GOOD, LOOP
from tests.checkpoint.site import Site
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.criu.blockers import obstacles
from tidewright.checkpoint.criu.criu_process import tasks
from tidewright.checkpoint.criu.driver import Criu, CriuDriver
from tidewright.checkpoint.criu.tcp_repair import lift_repair
from tidewright.checkpoint.processes import stat
from tidewright.checkpoint.protocol import RestorePlacement
from tidewright.testing.checkpoint import check_goes_on

QUICK = ("pool", "sockets", "locks", "files")
"""What make test has time for: that which a process shares with others. Over a move all are tried (test_programs.py)."""
pytestmark = pytest.mark.processes

TALK = """
import json, os, signal, socket, time
noticed = []
for name in ("SIGCONT", "SIGCHLD"):
    signal.signal(getattr(signal, name), lambda number, _: noticed.append(signal.Signals(number).name))
def pair():
    listening = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(listening.getsockname())
    near, _ = listening.accept()
    return far, near, listening
far, near, kept = pair()
asking, answering, _ = pair()
if os.fork() == 0:
    signal.signal(signal.SIGCONT, lambda *_: noticed.append("child"))
    while True:
        try:
            question = answering.recv(1)
            answering.sendall(b"!" if not noticed else b"?")
        except PermissionError:
            time.sleep(0.001)
ours = (far, near, asking, answering)
number = 0
def talk():
    while True:
        try:
            return near.recv(9), asking.recv(1)
        except PermissionError:  # a connection in repair mode; killing CRIU shows one for moments
            time.sleep(0.001)
def say(sock, words):
    while True:
        try:
            return sock.sendall(words)
        except PermissionError:
            time.sleep(0.001)
while True:
    say(far, b"loopback!"); say(asking, b"x")
    heard, answer = talk()
    assert heard == b"loopback!"
    if answer == b"?":
        noticed.append("SIGCONT of the child")
    if os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
        noticed.append("waitid")
    repair = [each.getsockopt(6, 19) for each in ours]
    print(json.dumps([number, repair, [each.getsockopt(1, 2) for each in ours], noticed]), flush=True)
    number += 1
    time.sleep(0.002)
"""
"""TCP within a process and with its forked child. A line a round: number, TCP_REPAIR and SO_REUSEADDR of all connections,
and what was noticed by handlers, in the child, and by waiting for it."""


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def rounds(site: Site, rank: int = 0) -> list[Any]:
    return [json.loads(line) for line in site.output("a", rank)]


def goes_on(site: Site, when: str, rank: int = 0) -> list[Any]:
    """The last round of a program that still talks, in order from its first."""
    before = len(site.output("a", rank))
    check_goes_on(lambda: len(site.output("a", rank)) - before, when)
    logged = rounds(site, rank)
    assert [each[0] for each in logged] == list(range(len(logged)))
    return logged[-1]


def talking(site: Site, world: int = 1, pause_s: float = 0.002) -> Any:
    gang = site.start(world, command=python(TALK.replace("sleep(0.002)", f"sleep({pause_s})")))
    for rank in range(world):
        check_goes_on(lambda rank=rank: len(site.output("a", rank)), "at first")
    return gang


def same_but(last: list[Any], first: list[Any]) -> None:
    """No connection is in repair mode or has other options, and nothing was noticed."""
    assert (last[1:3], last[3]) == (first[1:3], []), (first, last)


@pytest.mark.parametrize(
    "what", [what if what in QUICK else pytest.param(what, marks=pytest.mark.full) for what in GOOD]
)
def test_kept_over_images_that_run_on(site: Site, tmp_path: Path, what: str):
    (tmp_path / "read-only").write_text("first\nsecond\n")
    gang = site.start(command=python(GOOD[what] + LOOP))
    check_goes_on(lambda: len(site.output("a")), "at first")
    for number in range(3):
        site.driver("a").dump(gang.ranks, tmp_path / str(number), leave_running=True)
        before = len(site.output("a"))
        check_goes_on(lambda before=before: len(site.output("a")) - before, f"after image {number}")
    lines = site.output("a")
    assert lines == [str(number) for number in range(len(lines))]


def test_a_running_image_is_not_noticed(site: Site, tmp_path: Path):
    gang = talking(site)
    for number in range(3):
        site.driver("a").dump(gang.ranks, tmp_path / str(number), leave_running=True)
        same_but(goes_on(site, f"after image {number}"), rounds(site)[0])


def test_a_gang_that_is_saved_in_part_runs_on_unnoticed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gang = talking(site, 2)
    note = CriuDriver._note

    def fail_for_one(self: CriuDriver, handle: Any, *more: Any) -> None:
        if handle.rank == 1:
            wait_until(lambda: (tmp_path / "images" / "0" / "meta.json").exists(), 10)
            raise WorldError("rank 1: no room")
        note(self, handle, *more)

    monkeypatch.setattr(CriuDriver, "_note", fail_for_one)
    for leave_running in (True, False):
        with pytest.raises(WorldError, match="rank 1: no room"):
            site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=leave_running)
        for rank in (0, 1):
            same_but(goes_on(site, "after the dump was given up", rank), rounds(site, rank)[0])


def test_ranks_left_stopped_talk_again_once_they_are_let_run(site: Site, tmp_path: Path):
    """A suspension that is given up after the dump: its record cannot be written."""
    gang = talking(site)
    site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=False)
    assert {found.state for pid in tasks(gang.ranks[0]) if (found := stat(pid))} == {"T"}
    site.driver("other agent").resume(gang.ranks)
    assert goes_on(site, "after the dump was undone")[1] == [0, 0, 0, 0]
    assert lift_repair(tasks(gang.ranks[0])) == 0


def killed_when_written(site: Site, path: Path) -> Criu:
    """A CRIU that is killed once all is written: every connection is in repair mode then."""
    start = " ".join(site.criu.command)
    path.write_text(
        f'#!/bin/sh\n{start} "$@" &\nuntil [ -e "$5/inventory.img" ]; do sleep 0.002; done\nkill -9 $!\nwait $!\nexit 1\n'
    )
    path.chmod(0o755)
    return Criu((str(path),), site.criu.version)


@pytest.mark.parametrize("leave_running", [pytest.param(False, marks=pytest.mark.full), True])
def test_connections_outlive_a_criu_that_is_killed(site: Site, tmp_path: Path, leave_running: bool):
    """Of a program that says nothing within the moments from the death of CRIU to the end of repair mode (docs/why/criu.md)."""
    gang = talking(site, pause_s=0.6)
    for number in range(2):
        goes_on(site, "before")
        driver = site.driver("a", killed_when_written(site, tmp_path / "killed"))
        with pytest.raises(WorldError):
            driver.dump(gang.ranks, tmp_path / str(number), leave_running=leave_running)
        last = goes_on(site, "after CRIU was killed")
        assert last[1] == [0, 0, 0, 0] and 0 not in last[2][1::2], "a server could not listen on its port again"


DUMPER = """
import sys, time, msgspec
from pathlib import Path
from tidewright.checkpoint.criu.driver import Criu, CriuDriver
from tidewright.checkpoint.protocol import RankHandle
handle, criu = (msgspec.json.decode(text, type=kind) for text, kind in zip(sys.argv[1:3], (RankHandle, Criu)))
def seal(*_):
    print("all stands still", flush=True)
    time.sleep(600)
CriuDriver._note = seal
CriuDriver("a", criu).dump([handle], Path(sys.argv[3]), leave_running=sys.argv[4] == "yes")
"""


@pytest.mark.parametrize("leave_running", ["yes", "no"])
def test_ranks_run_on_unnoticed_when_the_agent_is_killed_between_dump_and_end(
    site: Site, tmp_path: Path, leave_running: str
):
    """They need no other agent for it; and the one that comes finds no debugger at any moment."""
    gang = talking(site)
    known = [msgspec.json.encode(each).decode() for each in (gang.ranks[0], site.criu)]
    with subprocess.Popen(
        [sys.executable, "-c", DUMPER, *known, str(tmp_path / "images"), leave_running], stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None and agent.stdout.readline() == b"all stands still\n"
        pids = tasks(gang.ranks[0])
        assert {found.state for pid in pids if (found := stat(pid))} == {"t"}
        assert not [each for each in obstacles(pids, gang.ranks[0].pid, gang.ranks[0].init) if "debugger" in each]
        agent.kill()
    same_but(goes_on(site, "after the agent was killed"), rounds(site)[0])
    site.driver("b").dump(gang.ranks, tmp_path / "images", leave_running=True)
    same_but(goes_on(site, "after the next image"), rounds(site)[0])


TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()  # PTRACE_SEIZE, as gdb and strace do
print("seized", flush=True)
time.sleep(600)
"""


def test_a_debugger_is_found(site: Site):
    gang = talking(site)
    with subprocess.Popen([*python(TRACER), str(gang.ranks[0].pid)], stdout=subprocess.PIPE) as tracer:
        try:
            assert tracer.stdout is not None and tracer.stdout.readline() == b"seized\n"
            assert "is being traced by a debugger" in site.driver("a").can(gang, "cpu").reason
        finally:
            tracer.kill()
    assert wait_until(lambda: site.driver("a").can(gang, "cpu").ok, 10)


WAITS = """
import ctypes, errno, os, select, time
libc = ctypes.CDLL(None, use_errno=True)
poll, epoll = select.poll(), select.epoll()
class Span(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def nap():
    return libc.nanosleep(ctypes.byref(Span(30, 0)), None)
def wait():
    events = (ctypes.c_char * 12)()
    return libc.epoll_wait(epoll.fileno(), events, 1, 30_000)
print("waiting", flush=True)
result = {"nanosleep": nap, "epoll_wait": wait}[os.environ["CALL"]]()
print(result, errno.errorcode.get(ctypes.get_errno()), flush=True)
"""


@pytest.mark.parametrize("call", ["nanosleep", "epoll_wait"])
def test_what_is_left_to_notice_is_one_interrupted_call(site: Site, tmp_path: Path, call: str):
    """As docs/checkpoints.md says: signal(7) lists calls that end so under any debugger, or when a process is stopped."""
    gang = site.start(command=python(WAITS), env={"PATH": os.environ["PATH"], "CALL": call})
    assert wait_until(lambda: site.output("a") == ["waiting"], 10)
    time.sleep(0.05)  # between the line and the call
    site.driver("a").dump(gang.ranks, tmp_path / "image", leave_running=True)
    assert wait_until(lambda: len(site.output("a")) == 2, 10) and site.output("a")[1] == "-1 EINTR"


def test_a_program_that_has_stopped_its_child_finds_it_stopped(site: Site, tmp_path: Path):
    code = "import os, signal, time\npid = os.fork()\nif not pid: time.sleep(600)\nos.kill(pid, signal.SIGSTOP)\n"
    gang = site.start(command=python(code + "print(pid, flush=True)\ntime.sleep(600)"))
    assert wait_until(lambda: len(site.output("a")) == 1, 10)
    site.driver("a").dump(gang.ranks, tmp_path / "image", leave_running=True)
    states = {found.state for pid in tasks(gang.ranks[0]) if (found := stat(pid)) and pid != gang.ranks[0].pid}
    assert states == {"T"}
    for pid in tasks(gang.ranks[0]):
        os.kill(pid, signal.SIGCONT)


def test_a_suspension_is_noticed_by_one_sigcont_and_nothing_else(site: Site):
    """As docs/checkpoints.md says."""
    gang = talking(site)
    site.driver("b").restore(site.driver("a").save(gang), RestorePlacement(node="b"))
    check_goes_on(lambda: len(site.output("b")), "after the suspension")
    logged = [json.loads(line) for line in site.output("b") if line.strip("\0")][-1]
    assert logged[1] == [0, 0, 0, 0] and logged[3].count("SIGCONT") == 1
    assert set(logged[3]) <= {"SIGCONT", "SIGCONT of the child", "SIGCHLD", "waitid"}


def traced(pid: int) -> bool:
    """Whether a process stands still under ptrace."""
    now = stat(pid)
    return now is not None and now.state == "t"


ECHO = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
near, _ = listening.accept()
while True:
    near.sendall(near.recv(100))
"""


def test_a_client_from_outside_stays_connected_over_a_running_image(site: Site, tmp_path: Path):
    """A notebook's, say. What it sends while the rank stands still arrives afterwards."""
    gang = site.start(command=python(ECHO))
    assert wait_until(lambda: len(site.output("a")) == 1, 10)
    with socket.create_connection(("127.0.0.1", int(site.output("a")[0])), timeout=10) as client:
        for number in range(3):
            client.sendall(b"before")
            assert client.recv(100) == b"before"
            dump = threading.Thread(
                target=site.driver("a").dump, args=(gang.ranks, tmp_path / str(number)), kwargs={"leave_running": True}
            )
            dump.start()
            wait_until(lambda dump=dump: not dump.is_alive() or traced(gang.ranks[0].pid), 10)  # type: ignore[misc]
            client.sendall(b"meanwhile")
            dump.join()
            assert client.recv(100) == b"meanwhile"
            assert (tmp_path / str(number) / "0" / "manifest.json").exists()
