"""Ranks with namespaces of their own: what they see, how they end, and that nothing of them escapes."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoint.site import Site
from tidewright.checkpoint import cgroup
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.cuda.swap import write_flag
from tidewright.checkpoint.processes import PROC, alive, grouped, members
from tidewright.checkpoint.protocol import RestorePlacement
from tidewright.testing.checkpoint import check_goes_on

pytestmark = pytest.mark.processes


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def said(site: Site) -> str:
    return site.log("a", 0).read_text()


def test_what_a_rank_sees(site: Site):
    text = """
        echo $$; readlink /proc/self/fd/1; ls /proc | grep -c '^[0-9]'
        echo x >/run/tidewright/rank/mine; touch /run/tidewright/lib/x 2>/dev/null || echo read-only
        echo '#' >>/run/tidewright/logs/other; exit 7
    """
    directory = site.launch("a", command=shell(text))
    assert site.ended(directory)["code"] == 7
    pid, output, processes, lib = said(site).split()
    assert (pid, output, lib) == ("100", "/run/tidewright/out", "read-only") and int(processes) < 8
    assert (directory / "box" / "mine").read_text() == "x\n" and (site.root / "a" / "logs" / "other").exists()
    assert not (Path("/run/tidewright") / "out").exists(), "its mounts are seen on the host"


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [("exit 3", 3, 0), ("kill -9 $$", 0, 9), ("kill -TERM $$; sleep 9", 0, 15), ("exit 0", 0, 0)],
)
def test_exit_status_is_the_rank_s_own(site: Site, text: str, code: int, number: int):
    found = site.ended(site.launch("a", command=shell(text)))
    assert (found["code"], found["signal"]) == (code, number)


def test_sigterm_from_the_host_has_its_default(site: Site):
    gang = site.start()
    os.kill(gang.ranks[0].init, signal.SIGTERM)  # init itself is not to be ended so
    check_goes_on(lambda: len(site.output("a")), "after init was sent SIGTERM")
    os.kill(gang.ranks[0].pid, signal.SIGTERM)
    assert wait_until(lambda: not alive(gang.ranks[0].pid, gang.ranks[0].start), 10)
    assert wait_until(lambda: not (PROC / str(gang.ranks[0].init)).exists(), 10)


def test_what_is_left_behind_gets_sigterm_and_is_then_killed(site: Site):
    text = """
        (trap 'echo terminated; exit' TERM; echo up; while :; do sleep 0.01; done) & (trap '' TERM; exec sleep 1000) &
        (setsid sleep 1001 &) ; while ! grep -q up /run/tidewright/out; do sleep 0.01; done; exit 5
    """
    directory = site.launch("a", command=shell(text))
    assert site.ended(directory)["code"] == 5 and "terminated" in said(site)
    assert not (PROC / str(site.handles[-1].init)).exists()


@pytest.mark.parametrize("victim", ["shim", "init"])
def test_everything_dies_with_the_shim_or_init(site: Site, victim: str):
    gang = site.start(command=shell("(setsid sleep 1000 &); sleep 0.1; echo up; sleep 1001"))
    handle = gang.ranks[0]
    assert wait_until(lambda: "up" in said(site), 10)
    found = members(handle)
    assert len(found) >= 4, "init, main and two sleepers"
    os.kill(getattr(handle, victim), signal.SIGKILL)
    assert wait_until(lambda: not any((PROC / str(pid)).exists() for pid in found), 10)
    directory = site.root / "a" / "0.1"
    if victim == "init":
        ended = site.ended(directory)
        assert ended["signal"] == 9 and ended["outside"]
    else:
        assert not (directory / "exit").exists()


def test_failures_to_start_are_reported_as_without_a_sandbox(site: Site):
    for more, fault, text in (
        ({"command": ["no-such-program"]}, "user", "cannot run no-such-program"),
        ({"workdir": "/no/such/place"}, "user", "working directory /no/such/place"),
        ({"cgroups": ["/sys/fs/cgroup/no/such"]}, "world", "cannot prepare the rank"),
        ({"box": {"rank": "/no/such/box"}}, "world", "/no/such/box"),
    ):
        error = site.read(site.launch("a", **more), "error")
        assert error["fault"] == fault and text in error["error"], error


def test_a_rank_comes_back_in_its_group_and_on_its_cores(site: Site):
    freezer = cgroup.detect()
    groups = freezer.create(f"tidewright-test-{os.getpid()}")
    core = max(os.sched_getaffinity(0))
    try:
        gang = site.start(cgroups=list(groups))
        driver = site.driver("a")
        check_goes_on(lambda: len(site.output("a")), "at first")
        assert grouped(groups) in ([gang.ranks[0].pid], []), "init is to stay outside"
        image = driver.save(gang)
        restore = driver.restore_spec(Path(image.location) / "0")
        directory = site.launch("a", restore=restore, cgroups=list(groups), cpus=[core])
        back = site.handle(directory, 0, groups)
        assert grouped(groups) == ([back.pid] if groups else [])
        assert os.sched_getaffinity(back.pid) == {core}
        assert (PROC / str(back.pid) / "personality").read_text().strip() == "00000000", "its children have its layout"
        before = len(site.output("a"))
        check_goes_on(lambda: len(site.output("a")), "after the restore")
        freezer.freeze(back)
        before = len(site.output("a"))
        time.sleep(0.1)
        assert len(site.output("a")) == before
        freezer.thaw(back)
        os.kill(back.pid, signal.SIGTERM)
        assert site.ended(directory)["signal"] == signal.SIGTERM
    finally:
        site.clean()
        assert wait_until(lambda: cgroup.remove(groups), 5)


READS = """
import itertools, os, time
flag = "/run/tidewright/rank/turn"
while not os.path.exists(flag):
    time.sleep(0.001)
file = open(flag, "rb")
def same():
    return os.path.samestat(os.fstat(file.fileno()), os.stat(flag))
for number in itertools.count():
    assert same() or same()  # the image may be taken between two looks: the path leads to another file then
    assert os.pread(file.fileno(), 2, 0) in (b"0", b"1")
    print(number, flush=True)
    time.sleep(0.005)
"""


@pytest.mark.parametrize("found", ["", "1"])
def test_a_file_of_the_agent_s_that_is_open_when_an_image_is_taken(site: Site, found: str):
    """The flag of a time slice: made again where a rank comes back to a device of its own, left alone where the agent made it."""
    gang = site.start(command=[sys.executable, "-I", "-c", READS])
    write_flag(site.root / "turn.new", False)
    (site.root / "turn.new").rename(site.root / "a" / "0.1" / "box" / "turn")  # never there and empty
    check_goes_on(lambda: len(site.output("a")), "at first")
    image = site.driver("a").save(gang)
    flag = site.root / "b" / "0.2" / "box" / "turn"
    if found:
        flag.parent.mkdir(parents=True)
        write_flag(flag, found == "1")
    site.driver("b").restore(image, RestorePlacement(node="b"))
    check_goes_on(lambda: len(site.output("b")), "after the restore")
    assert flag.read_text() == (found or "0")


CLOCK = "import time\nwhile True:\n    print(time.monotonic(), flush=True)\n    time.sleep(0.005)"


def test_clocks_do_not_see_a_suspension(site: Site):
    """Nor another host's: time since boot goes on where it stood."""
    gang = site.start(command=[sys.executable, "-I", "-c", CLOCK])
    driver = site.driver("b")
    check_goes_on(lambda: len(site.output("a")), "at first")
    for pause_s in (1.5, 0.0):
        image = driver.save(gang)
        time.sleep(pause_s)
        driver.restore(image, RestorePlacement(node="b"))
        gang = site.gang_of_last(gang)
        check_goes_on(lambda: len(site.output("b")), "after the restore")
        driver.discard(image)
    times = [float(line) for line in site.output("b")]
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert min(steps) > 0 and max(steps) < 1.4, max(steps)


BIRTHS = """
import subprocess, time
while True:
    child = subprocess.Popen(["sleep", "1000"])
    print(child.pid, flush=True)
    time.sleep(0.01)
    child.kill()
    child.wait()
"""


def test_descendants_may_take_any_pid_after_a_restore(site: Site):
    """CRIU's own helpers must not have pids that the image needs, nor leave them to children born afterwards."""
    gang = site.start(command=[sys.executable, "-I", "-c", BIRTHS])
    driver = site.driver("a")
    for _ in range(2):
        check_goes_on(lambda: len(site.output("a")), "")
        image = driver.save(gang)
        driver.restore(image, RestorePlacement(node="a"))
        gang = site.gang_of_last(gang)
        driver.discard(image)
    check_goes_on(lambda: len(site.output("a")), "at last")
    assert min(int(line) for line in site.output("a")) > 100
