"""Ring 3: real agents, shims and ranks: launching, ending, dying, being adopted."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.agent_bench import PATIENCE_S, bearing, groups
from tidewright.agent.heartbeat import STUCK_S, Heartbeat
from tidewright.base.errors import WorldError
from tidewright.fabric.protocol import Fenced, Refused, Unknown
from tidewright.wire.agent import heartbeat_socket

pytestmark = pytest.mark.processes


def identity(bench, name: str, job: int = 1, rank: int = 0) -> int:
    """Pid in a rank's ``started`` or ``shim`` file."""
    text = (bench.state / "ranks" / f"{job}.0" / str(rank) / name).read_text()
    return int(text.split('"pid":')[1].split(",")[0])


async def gone(pid: int) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return
        except OSError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"process {pid} still lives")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -9 $$", 137)]
)
def test_exit_codes(play, script, code):
    async def body(bench):
        first = await bench.launch("sh", "-c", script)
        assert first.state == "starting"
        ended = await bench.state_is("exited")
        assert (ended.code, ended.lost, ended.error) == (code, False, "")
        assert (ended.first_failure is None) == (code == 0)
        states = [report.state for report in bench.heard]
        assert states == ["running", "exited"]
        await bench.verb("forget")
        assert (await bench.inventory()).jobs == ()
        assert not (bench.state / "ranks" / "1.0").exists()
        assert (bench.state / "logs" / "1" / "rank0.0.log").exists()

    play(body)


def test_a_rank_sees_its_own_environment_only(play, monkeypatch):
    async def body(bench):
        await bench.launch(
            "sh", "-c", "env; pwd; cat; taskset -p $$ || true", world=2, env={"MINE": "yes"}, master_port=1234
        )
        await bench.state_is("exited")
        said = dict(line.split("=", 1) for line in bench.log(rank=1).splitlines() if "=" in line)
        wanted = {
            "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "NODE_RANK": "0",
            "MASTER_PORT": "1234", "TIDE_JOB_ID": "1", "TIDE_ATTEMPT": "0", "TIDE_JOB_NAME": "t", "MINE": "yes",
            "OMP_NUM_THREADS": "1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "tide-1",
        }  # fmt: skip
        assert {name: said.get(name) for name in wanted} == wanted
        assert "PYTEST_CURRENT_TEST" not in said and "VIRTUAL_ENV" not in said and "TIDE_STEP_FILE" in said
        assert str(bench.state) in bench.log(rank=1).splitlines()

    play(body)


def test_launch_twice_starts_once(play):
    async def body(bench):
        await asyncio.gather(*(bench.launch("sh", "-c", "echo x; sleep 0.3") for _ in range(5)))
        await bench.state_is("exited")
        assert (await bench.launch("sh", "-c", "echo x")).state == "exited"
        assert bench.log() == "x\n"
        await bench.verb("forget")
        with pytest.raises(Refused, match="forgotten"):
            await bench.launch("sh", "-c", "echo x")

    play(body)


@pytest.mark.parametrize(
    ("command", "workdir", "text"),
    [
        ("no-such-program", "/", "no-such-program"),
        ("/etc/passwd", "/", "Permission"),
        ("true", "/no/such/dir", "/no/such/dir"),
    ],
)
def test_a_program_that_cannot_start_is_the_users_fault(play, command, workdir, text):
    async def body(bench):
        await bench.launch(command, workdir=workdir)
        report = await bench.state_is("failed")
        assert report.fault == "user" and text in report.error

    play(body)


def test_impossible_requests_are_refused(play):
    async def body(bench):
        with pytest.raises(Refused, match="indices"):
            await bench.launch("true", ranks=[{"rank": 0, "local_rank": 0, "devices": [9]}])
        report = await bench.launch("tr\0ue")
        assert (report.state, report.fault) == ("failed", "user") and "zero byte" in report.error
        with pytest.raises(Refused, match="not on this node"):
            await bench.verb("resume", job=77)
        with pytest.raises(Refused, match="no method"):
            await bench.call("explode", {})
        with pytest.raises(Refused, match="unknown field"):
            await bench.call("stop", {"job": 1, "attempt": 0, "now": True})
        assert (await bench.verb("stop", job=77)).lost

    play(body)


def test_the_users_output_path(play, tmp_path):
    async def body(bench):
        await bench.launch("sh", "-c", "echo hello", output=str(tmp_path / "out-%x-%j-%a-%%.txt"))
        report = await bench.state_is("exited")
        assert (tmp_path / "out-t-1-0-%.txt").read_text() == "hello\n"
        assert report.logs == ((0, str(tmp_path / "out-t-1-0-%.txt")),)
        await bench.launch("true", job=2, output="/proc/nowhere/x")
        failed = await bench.state_is("failed", job=2)
        assert failed.fault == "user" and "/proc/nowhere/x" in failed.error

    play(body)


def test_stop_is_gentle_then_hard_and_takes_the_children(play):
    async def body(bench):
        stubborn = "trap '' TERM; (setsid sleep 600 &) ; sleep 600 & echo up; while :; do wait; sleep 0.1; done"
        await bench.launch("sh", "-c", stubborn)
        await bench.logged("up")
        assert len(bearing("tidewright-")) >= 3
        report = await bench.verb("stop", grace_us=300_000)
        assert report.state == "stopping"
        ended = await bench.state_is("exited")
        assert ended.code == 137 and "killed after its grace" in ended.why
        assert bearing(f"TIDE_STEP_FILE={bench.state}") == []

    play(body)


def test_stop_lets_a_program_end_itself(play):
    async def body(bench):
        await bench.launch("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")
        await bench.logged("up")
        await bench.verb("stop", grace_us=20_000_000)
        ended = await bench.state_is("exited")
        assert ended.code == 3 and "bye" in bench.log()

    play(body)


def test_what_a_rank_leaves_behind_is_cleared_away(play):
    async def body(bench):
        await bench.launch("sh", "-c", "(setsid sleep 600 &) ; exit 4", grace_us=200_000)
        ended = await bench.state_is("exited")
        assert ended.code == 4
        assert bearing(f"TIDE_STEP_FILE={bench.state}") == []

    play(body)


def test_a_gang_tells_its_first_failure_and_ends_when_all_are_gone(play):
    async def body(bench):
        await bench.launch("sh", "-c", 'test "$RANK" = 1 && echo no more >&2 && exit 5; sleep 600', world=3)
        seen = await bench.until(lambda report: report.first_failure is not None)
        assert seen.state == "running"
        assert (seen.first_failure.rank, seen.first_failure.code) == (1, 5)
        await bench.verb("stop", grace_us=5_000_000)
        ended = await bench.state_is("exited")
        assert (ended.code, ended.first_failure.rank) == (5, 1), "not 143, which is what the stop made of the others"
        assert ended.why == "rank 1: exit code 5" and ended.first_failure.lines == ("no more",)

    play(body)


def test_the_agent_dies_and_the_next_adopts(play):
    async def body(bench):
        await bench.launch("sh", "-c", "sleep 0.5; exit 9")
        await bench.launch("sh", "-c", "exit 8", job=2)
        await bench.launch("sleep", "600", job=3)
        await bench.state_is("running", job=3)
        await bench.state_is("running", "exited")
        bench.kill()
        time.sleep(0.8)  # job 1 ends without an agent
        bench.start("--backend", "cpu", "--slots", "4")
        assert (await bench.state_is("exited")).code == 9
        assert (await bench.state_is("exited", job=2)).code == 8
        assert (await bench.state_is("running", job=3)).state == "running"
        await bench.verb("stop", job=3, grace_us=0)
        assert (await bench.state_is("exited", job=3)).code in (137, 143)
        assert bench.nodes[:3] == [True, False, True]

    play(body)


def test_the_agent_dies_during_launches(play):
    """Killed at arbitrary points between the side effects of twelve launches; each still runs exactly once."""

    async def body(bench):
        for job in range(12):
            await bench.launch("sh", "-c", "echo once; sleep 0.05", job=job)
            if job % 3 == 0:
                time.sleep(0.005 * job)
                bench.kill()
                bench.start("--backend", "cpu", "--slots", "4")
        for job in range(12):
            ended = await bench.state_is("exited", "failed", job=job)
            assert (ended.state, ended.code, bench.log(job)) == ("exited", 0, "once\n")

    play(body)


def test_the_agent_dies_while_stopping(play):
    async def body(bench):
        await bench.launch("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        await bench.logged("up")
        await bench.verb("stop", grace_us=500_000)
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        assert (await bench.state_is("exited")).code == 137

    play(body)


def test_a_killed_shim_loses_the_rank_and_leaves_nothing(play):
    async def body(bench):
        await bench.launch("sh", "-c", "(setsid sleep 600 &) ; echo up; sleep 600")
        await bench.logged("up")
        rank = identity(bench, "started")
        os.kill(identity(bench, "shim"), signal.SIGKILL)
        ended = await bench.state_is("exited")
        assert ended.lost and ended.code == 137 and ended.first_failure is not None
        await gone(rank)
        assert bearing(f"TIDE_STEP_FILE={bench.state}") == []

    play(body)


def test_shim_and_agent_killed_together(play):
    async def body(bench):
        await bench.launch("sh", "-c", "(setsid sleep 600 &) ; echo up; sleep 600")
        await bench.logged("up")
        bench.kill()
        os.kill(identity(bench, "shim"), signal.SIGKILL)
        bench.start("--backend", "cpu", "--slots", "4")
        assert (await bench.state_is("exited")).lost
        assert bearing(f"TIDE_STEP_FILE={bench.state}") == []

    play(body)


def test_a_rank_does_not_outlive_its_shim_even_without_an_agent(play):
    async def body(bench):
        await bench.launch("sh", "-c", "echo up; sleep 600")
        await bench.logged("up")
        bench.kill()
        rank = identity(bench, "started")
        os.kill(identity(bench, "shim"), signal.SIGKILL)
        await gone(rank)

    play(body)


def test_words_of_all_languages_reach_the_program(play):
    async def body(bench):
        await bench.launch("sh", "-c", 'echo "$0 $GREETING"', "日本", env={"GREETING": "żółć"})
        await bench.state_is("exited")
        assert bench.log().strip() == "日本 żółć"

    play(body)


def test_a_full_disk_fails_the_launch_and_leaves_nothing(play):
    async def body(bench):
        await bench.inventory()
        (bench.state / "ranks" / ".1.0.new").write_text("in the way")
        with pytest.raises(WorldError, match="cannot record the launch"):
            await bench.launch("true")
        (bench.state / "ranks" / ".1.0.new").unlink()
        assert groups(bench.state) == []
        await bench.launch("true")
        assert (await bench.state_is("exited")).code == 0

    play(body)


def test_a_killed_rank_is_not_lost(play):
    async def body(bench):
        await bench.launch("sleep", "600")
        await bench.state_is("running")
        os.kill(identity(bench, "started"), signal.SIGKILL)
        ended = await bench.state_is("exited")
        assert (ended.code, ended.lost) == (137, False)

    play(body)


def test_a_rank_whose_init_was_killed_is_lost(play):
    """Nothing in its namespaces can do that: it is no failure of the program's."""

    async def body(bench):
        await bench.launch("sleep", "600")
        await bench.state_is("running")
        started = json.loads(next(bench.state.glob("ranks/*/0*/started")).read_text())
        if not started.get("init"):
            pytest.skip("ranks have no namespaces of their own here")
        os.kill(started["init"], signal.SIGKILL)
        ended = await bench.state_is("exited")
        assert (ended.code, ended.lost) == (137, True)
        assert "init" in ended.why

    play(body)


def test_a_rank_that_is_stopped_by_its_init_is_not_lost(play):
    """A stop kills what lives by killing init: that is the stop's doing."""

    async def body(bench):
        await bench.launch("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
        await bench.state_is("running")
        await bench.verb("stop", grace_us=0)
        ended = await bench.state_is("exited")
        assert (ended.code, ended.lost) == (137, False)

    play(body)


def test_older_controllers_are_fenced(play):
    async def body(bench):
        bench.epoch = 7
        await bench.launch("sleep", "600")
        bench.epoch = 6
        with pytest.raises(Fenced, match="obeys epoch 7"):
            await bench.verb("stop")
        assert (await bench.inventory()).epoch == 7
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        with pytest.raises(Fenced):
            await bench.verb("stop")
        bench.epoch = 8
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")

    play(body)


def test_orders_that_reached_a_sleeping_agent_are_stale_once_their_caller_has_hung_up(play):
    async def body(bench):
        await bench.inventory()
        bench.process.send_signal(signal.SIGSTOP)
        bench.patience_s = 1.0
        launch = asyncio.ensure_future(bench.launch("sleep", "600"))
        await asyncio.sleep(0)
        bench.fabric._writer.transport.abort()
        with pytest.raises(Unknown):
            await launch
        bench.patience_s = PATIENCE_S
        bench.process.send_signal(signal.SIGCONT)
        assert (await bench.inventory()).jobs == ()
        assert "launch of a caller that has hung up since" in (bench.state / "agent.log").read_text()
        await bench.launch("sleep", "600")
        await bench.state_is("running")

    play(body)


def test_heartbeats_are_answered_while_the_event_loop_is_busy(tmp_path):
    pulse = Heartbeat()
    pulse.open(tmp_path / "p")
    for late_s, answer in ((0.0, b"."), (STUCK_S + 1, b"")):
        pulse._ticked = time.monotonic() - late_s
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(PATIENCE_S)
            line.connect(str(tmp_path / "p"))  # nothing but this thread and the pulse's runs here
            assert line.recv(1) == answer
    pulse.close()


def test_a_second_agent_is_an_error(play):
    async def body(bench):
        await bench.inventory()
        command = [sys.executable, "-m", "tidewright.agent", "--state", str(bench.state)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert second.returncode == 4 and f"pid {bench.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr

    play(body)


def test_sigterm_ends_the_agent_but_not_the_ranks(play):
    async def body(bench):
        await bench.launch("sleep", "600")
        await bench.state_is("running")
        rank = identity(bench, "started")
        assert bench.kill(signal.SIGTERM) == 0
        assert not (bench.state / "agent.pid").exists() and Path(f"/proc/{rank}").exists()
        os.kill(rank, signal.SIGKILL)
        await gone(rank)

    play(body)


def test_sockets_that_vanish_are_made_again(play):
    """Without them the next controller could not connect, and this one would take the agent for dead."""

    async def body(bench):
        await bench.launch("sh", "-c", "ulimit -Sn; exec sleep 600")
        paths = [bench.state / "agent.sock", heartbeat_socket(bench.state / "agent.sock")]
        for path in paths:
            path.unlink()
        async with asyncio.timeout(PATIENCE_S):
            while not all(path.exists() for path in paths):
                await asyncio.sleep(0.05)
        assert bench.nodes.count(False) == 0 and (await bench.inventory()).node.name == "n1"
        bench.fabric._writer.transport.abort()
        await bench.state_is("running")
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(PATIENCE_S)
            line.connect(str(paths[1]))
            assert line.recv(1) == b"."

    play(body)


def test_ranks_get_the_limit_of_open_files_that_the_agent_was_started_with(play):
    async def body(bench):
        await bench.inventory()
        bench.kill(signal.SIGTERM)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (777, before[1]))
        try:
            bench.execute("--backend", "cpu", "--slots", "4")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await bench.launch("sh", "-c", "ulimit -Sn; exec sleep 600")
        assert await bench.logged("777") == "777\n"
        raised = Path(f"/proc/{bench.process.pid}/limits").read_text()
        assert f"Max open files            {min(65536, before[1])} " in raised

    play(body)


def test_bad_frames_are_answered_and_hung_up_on(play):
    async def body(bench):
        await bench.inventory()
        path = str(bench.state / "agent.sock")
        assert oct(os.stat(path).st_mode & 0o777) == "0o600"
        for junk in (b"hello\n", b'{"id": "x"}\n', b"[" * 100_000 + b"\n", b"\xff\xfe\n"):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE_S)
                client.connect(path)
                client.sendall(junk)
                answer = await asyncio.to_thread(lambda sock: b"".join(iter(lambda: sock.recv(65536), b"")), client)
                assert b'"kind":"usage"' in answer
        assert (await bench.inventory()).node.name == "n1"

    play(body)


def test_usage_counts_processes_memory_and_steps(play):
    async def body(bench):
        await bench.launch("sh", "-c", 'echo 41 > "$TIDE_STEP_FILE"; echo up; while :; do :; done')
        await bench.logged("up")
        await bench.usage()
        await asyncio.sleep(0.3)
        used = await bench.usage()
        (job,) = used.jobs
        assert job.steps == 41 and job.rss_bytes > 0 and job.processes == 1 and job.cpu_seconds > 0
        assert len(used.devices) == 4
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")

    play(body)


def test_no_answer_is_unknown(tmp_path):
    from tidewright.fabric.local import LocalFabric

    async def body():
        fabric = LocalFabric(tmp_path / "absent.sock")
        with pytest.raises(WorldError, match="unknown"):
            await fabric.call("n1", "inventory", {}, op_id="", epoch=1, timeout=0.1)
        await fabric.close()

    asyncio.run(body())


def test_a_job_of_many_ranks_does_not_keep_others_from_starting(play):
    async def body(bench):
        seats = [{"rank": rank, "local_rank": rank, "devices": [0]} for rank in range(48)]
        await bench.launch("sleep", "60", world=48, ranks=seats)
        await bench.launch("true", job=2, ranks=[{"rank": 0, "local_rank": 0, "devices": [1]}])
        await bench.state_is("exited", job=2)
        [big] = [report for report in (await bench.inventory()).jobs if report.job == 1]
        assert big.state == "starting"
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")

    play(body)
