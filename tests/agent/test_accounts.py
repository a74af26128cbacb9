"""Ranks of a root agent that run as another account: what they are, and that everything works that works as root."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.agent_bench import Bench
from tests.agent.test_agent_images import stored
from tests.criu_here import criu_here
from tidewright.agent.processes.accounts import Account, lookup
from tidewright.base.atomic import write_atomically
from tidewright.base.errors import UsageError
from tidewright.checkpoint.criu.driver import Criu
from tidewright.fabric.protocol import Refused
from tidewright.launch import account as acts
from tidewright.model.job import Level

FOUND = criu_here()
PYTHON = "/usr/bin/python3"
UID = 61234
"""A number without an entry, so that nothing of this machine belongs to it."""
root = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(PYTHON), reason="needs root, and a system's Python")
images = pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}")

WHO = """
import json, os, sys, time
status = dict(line[:-1].split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()], "cwd": os.getcwd(),
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "new": status["NoNewPrivs"], "env": {name: os.environ.get(name) for name in ("HOME", "USER", "LOGNAME")},
    "fds": [fd for fd in range(3, 1000) if os.path.exists(f"/proc/self/fd/{fd}")],
}), flush=True)
"""
COUNT = (
    WHO
    + """
stop = []
import signal
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), os._exit(75)))
held = open(sys.argv[2], "a") if len(sys.argv) > 2 else None
at = -1
while at < int(sys.argv[1]) - 1 or (held and not os.path.exists(sys.argv[2] + ".end")):
    at += 1
    print(at, flush=True)
    if held:
        print(at, file=held, flush=True)
    time.sleep(0.01)
open("/proc/self/fd/1", "a").write("reopened\\n")
sys.exit(7)
"""
)


def said(bench: Bench) -> dict[str, Any]:
    return json.loads(bench.log().splitlines()[0])


async def begin(bench: Bench, count: int = 150, *more: str, **options: Any) -> None:
    options = {"run_as": str(UID), "workdir": "/", **options}
    await bench.launch(PYTHON, "-c", COUNT, str(count), *more, **options)


async def come_so_far(bench: Bench, lines: int) -> None:
    while bench.log().count("\n") < lines:
        await asyncio.sleep(0.01)


async def away(bench: Bench, serial: int = 1) -> None:
    await bench.verb("suspend", level=int(Level.FULL), serial=serial)
    report = await bench.until(lambda report: report.state == "suspended" or bool(report.error))
    assert report.state == "suspended", report.error


def again(*command: str, **more: Any) -> dict[str, Any]:
    return {
        "job": 1, "attempt": 0, "name": "t", "command": (PYTHON, "-c", COUNT, *command), "workdir": "/",
        "env": {"PATH": "/usr/bin:/bin"}, "world_size": 1, "run_as": str(UID),
        "ranks": [{"rank": 0, "local_rank": 0, "devices": [1]}], **more,
    }  # fmt: skip


@root
@pytest.mark.processes
@pytest.mark.parametrize("level", [-1, int(Level.FREEZE), int(Level.COOPERATIVE), int(Level.NONE)])
def test_a_rank_is_nothing_but_its_account(play, level: int) -> None:
    async def body(bench: Bench) -> None:
        await begin(bench, 1, level=level)
        assert (await bench.state_is("exited")).code == 7
        found = said(bench)
        assert found["ids"] == [[UID] * 3, [UID] * 3, [UID]]
        assert {int(each, 16) for each in found["caps"]} == {0} and found["new"] == "1"
        assert found["env"] == {"HOME": "/", "USER": str(UID), "LOGNAME": str(UID)}
        assert found["fds"] == []
        assert "reopened" in bench.log()
        log = next(bench.state.glob("logs/1/*.log")).stat()
        assert (log.st_uid, stat.S_IMODE(log.st_mode)) == (UID, 0o600)

    play(body)


@root
@images
@pytest.mark.processes
def test_into_an_image_and_back_with_a_file_of_its_own(play, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        place = Path("/dev/shm") / f"tide-test-{os.getpid()}"
        place.mkdir(mode=0o755)
        os.chown(place, UID, UID)
        try:
            await begin(bench, 120, str(place / "held"))
            for serial in (1, 2):
                await come_so_far(bench, 30 * serial)
                await away(bench, serial)
                if serial == 2:
                    await stored(bench, 2)
                await bench.verb("resume", serial=serial, launch=again("120", str(place / "held")))
                report = await bench.until(lambda report: report.state == "running" or bool(report.error))
                assert report.state == "running", report.error
                (pid,) = [int(path.name) for path in Path("/proc").iterdir() if _counts(path)]
                assert acts._credentials(_account(), pid) == ""
            (place / "held.end").touch()
            assert (await bench.state_is("exited")).code == 7
            numbers = "".join(f"{at}\n" for at in range((place / "held").read_text().count("\n")))
            assert (place / "held").read_text() == numbers
            assert bench.log().partition("\n")[2] == numbers + "reopened\n"
        finally:
            for each in place.iterdir():
                each.unlink()
            place.rmdir()

    play(body)


def _counts(path: Path) -> bool:
    try:
        return path.name.isdecimal() and path.stat().st_uid == UID
    except OSError:
        return False


def _account() -> dict[str, Any]:
    return {"name": str(UID), "uid": UID, "gid": UID, "groups": [UID], "home": "/"}


@root
@images
@pytest.mark.processes
def test_an_image_of_a_root_process_does_not_come_back_where_jobs_have_an_account(play) -> None:
    async def body(bench: Bench) -> None:
        await begin(bench, 5000, run_as="")
        await come_so_far(bench, 20)
        await away(bench)
        await bench.verb("resume", serial=1, launch=again("150"))
        report = await bench.until(lambda report: bool(report.error))
        assert report.state == "suspended" and "taken of a process of user 0" in report.error

    play(body)


@root
@images
@pytest.mark.processes
@pytest.mark.parametrize("way", ["directory", "file"])
def test_a_restore_opens_no_file_that_the_account_may_not(play, tmp_path: Path, way: str) -> None:
    """While a job is in its image, the name of a file that it writes is made to lead to one of root's."""

    async def body(bench: Bench) -> None:
        place, secret = Path("/dev/shm") / f"tide-test-{os.getpid()}", tmp_path / "vault"
        (place / "d").mkdir(parents=True)
        secret.mkdir()
        (secret / "held").write_text("")
        for each in (place, place / "d"):
            os.chown(each, UID, UID)
        try:
            await begin(bench, 150, str(place / "d" / "held"))
            await come_so_far(bench, 20)
            await away(bench)
            (secret / "held").write_bytes((place / "d" / "held").read_bytes())
            before = (secret / "held").read_bytes()
            (place / "d" / "held").unlink()
            if way == "directory":
                (place / "d").rmdir()
                (place / "d").symlink_to(secret)
            else:
                (place / "d" / "held").symlink_to(secret / "held")
            await bench.verb("resume", serial=1, launch=again("150", str(place / "d" / "held")))
            report = await bench.until(lambda report: bool(report.error))
            assert report.state == "suspended"
            assert (secret / "held").read_bytes() == before
        finally:
            for each in (place / "d" / "held", place / "d"):
                if each.is_symlink() or each.is_file():
                    each.unlink()
                elif each.is_dir():
                    each.rmdir()
            place.rmdir()

    play(body)


@root
@pytest.mark.processes
def test_freezing_and_saving_oneself(play) -> None:
    async def body(bench: Bench) -> None:
        await begin(bench, 5000, level=int(Level.FREEZE))
        await come_so_far(bench, 10)
        await bench.verb("suspend", level=int(Level.FREEZE))
        await bench.state_is("suspended")
        before = bench.log()
        await asyncio.sleep(0.1)
        assert bench.log() == before
        await bench.verb("resume")
        await bench.state_is("running")
        await come_so_far(bench, before.count("\n") + 5)
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        await begin(bench, 5000, job=2, level=int(Level.COOPERATIVE))
        await bench.logged("\n1\n", job=2)
        await bench.verb("suspend", job=2, level=int(Level.COOPERATIVE))
        assert (await bench.state_is("exited", job=2)).code == 75
        assert "saved" in bench.log(2)

    play(body)


@root
@pytest.mark.processes
@pytest.mark.parametrize("level", [-1, int(Level.NONE)])
def test_a_log_of_the_users_choice_is_opened_as_the_account(play, tmp_path: Path, level: int) -> None:
    async def body(bench: Bench) -> None:
        await begin(bench, 1, output=str(tmp_path / "crontab"), level=level)
        report = await bench.state_is("failed")
        assert "cannot write the log" in report.error and not (tmp_path / "crontab").exists()

    play(body)


@root
@pytest.mark.processes
def test_root_is_no_account_for_jobs(play) -> None:
    async def body(bench: Bench) -> None:
        for name in ("root", "0", "61234:0", "no-such-user", "4294967295"):
            with pytest.raises(Refused, match="--jobs-as"):
                await begin(bench, run_as=name)

    play(body)


def test_names_and_numbers() -> None:
    nobody = pwd.getpwnam("nobody")
    assert lookup("nobody").uid == nobody.pw_uid == lookup(str(nobody.pw_uid)).uid
    assert lookup("61234:61235") == Account("61234", 61234, 61235, (61235,), "/")
    for text in ("root", "0:5", "5:0", "", "a/b", "99999999999"):
        with pytest.raises(UsageError, match="--jobs-as"):
            lookup(text)


@root
def test_a_link_in_a_box_is_not_followed(tmp_path: Path) -> None:
    """The owner of a directory may put anything into it at any time."""
    from tidewright.agent.checkpointing.control_pages import LocalPages
    from tidewright.agent.processes.rank_dir import gather, read_complaints
    from tidewright.agent.processes.rank_files import listed_inside, open_inside, read_inside

    box, secret = tmp_path / "box", tmp_path / "secret"
    (box / "ctl").mkdir(parents=True)
    secret.write_text('{"level": "none", "why": "root\'s"}\n')
    for name in ("step", "said.jsonl", "ctl/1.page", ".reach.json.new", "reach.json", "ctl/hold"):
        (box / name).symlink_to(secret)
    assert dict(gather(box)) == {} and read_complaints(box) == []
    write_atomically(box / "reach.json", b"new")
    assert (box / "reach.json").read_bytes() == b"new" and "root's" in secret.read_text()
    with pytest.raises(OSError):
        LocalPages({0: box}).hold()
    (box / "two").hardlink_to(secret)
    with pytest.raises(OSError):
        read_inside(box, "two", 100)
    away = tmp_path / "away"
    away.mkdir()
    (away / "x").write_text("x")
    (box / "dir").symlink_to(away)
    with pytest.raises(OSError):
        open_inside(box, "dir/x")
    assert list(listed_inside(box, "dir")) == []


def test_specs_of_before_have_no_account() -> None:
    from tidewright.agent.processes.rank import Spec

    old = b'{"command":["a"],"env":{},"workdir":"/","log":"l","own_log":false,"cpus":[],"cgroups":[],"grace_us":1}'
    assert msgspec.json.decode(old, type=Spec).account is None


@root
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("secret", "cannot reach"), ("unwritable", "may not"), ("group", "groups that"),
        ("nothing", ""), ("readable", ""), ("own", ""), ("gone", ""),
    ],
)  # fmt: skip
def test_what_a_process_holds_beyond_its_account_is_seen(tmp_path: Path, what: str, says: str) -> None:
    """As after a restore: files are open, by root's hand, that the account could not open."""
    file = Path("/etc/passwd") if what in ("readable", "unwritable") else tmp_path / "file"
    if file.parent == tmp_path:
        file.write_text("x")
    if what == "own":
        os.chown(file, UID, UID)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(null, each)
            os.closerange(3, writing)
            os.closerange(writing + 1, 1000)
            if what != "nothing":
                os.open(file, os.O_RDWR if what == "unwritable" else os.O_RDONLY)
            acts.become({**_account(), "groups": [UID, 4] if what == "group" else [UID]})
            os.chdir("/")
            os.write(writing, b".")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.read(reading, 1)
        if what == "gone":
            file.unlink()
        why = acts.excess(_account(), [pid])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    # The interpreter of these tests may lie where the account cannot go: descriptors are looked at before what is mapped.
    assert os.geteuid() == 0 and says in why and (str(file) in why) == (what in ("secret", "unwritable"))
