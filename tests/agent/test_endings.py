"""Which rank's end is an attempt's cause, what is said of it, and how the kernel's own kills are distinguished from others."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidewright.agent.machine.attempt import AttemptState
from tidewright.agent.machine.outcomes import RankOutcome, describe
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.machine.scripts import Instant, Scripts
from tidewright.agent.processes.log_tail import last_lines
from tidewright.launch import oom
from tidewright.wire.agent import LaunchArgs, RankSeat


def gang(world: int = 3) -> AttemptState:
    seats = tuple(RankSeat(rank, rank, (rank,)) for rank in range(world))
    args = LaunchArgs(job=1, attempt=1, command=("x",), world_size=world, ranks=seats)
    scripts = Scripts()
    scripts.now = Instant(0, 11.0, 0.0)
    return AttemptState(args, AttemptRecord(phase="running"), scripts)


ENDS = [RankOutcome(139, ended=10.0), RankOutcome(1, ended=10.2), RankOutcome(143, ended=11.5)]
"""A crash, a rank that noticed it, and one that we stopped at 11."""


@pytest.mark.parametrize("heard", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("stopped", range(4))
def test_the_rank_that_ended_first_is_the_cause_in_whatever_order_ends_are_heard_of(
    heard: tuple[int, ...], stopped: int
) -> None:
    attempt = gang()
    for at, number in enumerate(heard):
        if at == stopped:  # the request to stop was made at 11, and comes between any two of these
            attempt.end_by("stop")
            attempt.record.ending_at, attempt.record.why = 11.0, "stopped on request"
        if stopped == 3 and number == 2:
            continue  # it was never stopped: it runs on
        attempt.outcomes[number] = ENDS[number]
        attempt.note_failure(number, ENDS[number])
    attempt.record.phase = "exited"
    report = attempt.report()
    assert report.first_failure is not None and report.first_failure.rank == 0
    assert report.why == "rank 0: killed by signal 11 (SIGSEGV)"


def test_what_we_stopped_is_no_failure() -> None:
    attempt = gang()
    attempt.end_by("stop")
    for rank in attempt.numbers:
        attempt.outcomes[rank] = RankOutcome(143, ended=attempt.record.ending_at + 1)
        attempt.note_failure(rank, attempt.outcomes[rank])
    assert attempt.record.first_failure is None


def test_last_lines_are_whole_printable_and_few(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"x" * 5000 + b"\n" + b"".join(b"line %d\n" % at for at in range(50)) + b"\n\n\x1b[31mred\x07\xff\n"
    )
    lines = last_lines(log)
    assert len(lines) == 10 and lines[0] == "line 41" and lines[-1] == "red \ufffd"
    assert last_lines(tmp_path / "none") == () and last_lines(tmp_path) == ()
    os.mkfifo(tmp_path / "pipe")
    assert last_lines(tmp_path / "pipe") == ()


def test_words() -> None:
    assert describe(3) == "exit code 3"
    assert describe(137, "by the kernel: out of memory") == "killed by signal 9 (SIGKILL), by the kernel: out of memory"


def records(path: Path, now_s: float, *pids: int) -> str:
    lines = [
        f"6,{at},{int((now_s - 5) * 1e6)},-;Out of memory: Killed process {pid} (python3)"
        for at, pid in enumerate(pids)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("counted", "pids", "killed", "says"),
    [
        (3, (), True, ""),
        (4, (77,), True, "by the kernel: out of memory"),
        (4, (5,), True, "while the kernel killed processes"),
        (4, (5,), False, "while the kernel killed processes"),
        (4, None, True, "probably by the kernel"),
        (4, None, False, ""),
    ],
)
def test_the_verdict_on_a_rank_that_was_killed(
    tmp_path: Path, counted: int, pids: tuple[int, ...] | None, killed: bool, says: str
) -> None:
    import time

    vmstat = tmp_path / "vmstat"
    vmstat.write_text(f"nr_free 5\noom_kill {counted}\n")
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    kmsg = records(tmp_path / "kmsg", now, *pids) if pids is not None else str(tmp_path / "forbidden")
    found = oom.verdict(3, 77, killed, vmstat=str(vmstat), kmsg=kmsg)
    assert found.startswith(says) and bool(found) == bool(says)


MEMORY = Path("/sys/fs/cgroup/memory")
HOG = """
import os, sys
open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write("0")
print("about to take all of it", flush=True)
held = [bytearray(1 << 20) for _ in range(512)]
"""


@pytest.mark.processes
@pytest.mark.skipif(
    os.geteuid() != 0 or not (MEMORY / "memory.limit_in_bytes").exists(),
    reason="needs root and a cgroup of memory (v1)",
)
def test_a_rank_that_the_kernel_kills_for_want_of_memory(play) -> None:  # type: ignore[no-untyped-def]
    group = MEMORY / f"tidewright-test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))

    async def body(bench) -> None:  # type: ignore[no-untyped-def]
        await bench.launch("sh", "-c", f'test "$RANK" = 1 && exec {sys.executable} -c "$HOG" {group}; sleep 600', world=2,
                           env={"HOG": HOG})  # fmt: skip
        seen = await bench.until(lambda report: report.first_failure is not None)
        failure = seen.first_failure
        assert (failure.rank, failure.code) == (1, 137)
        assert failure.why == "killed by signal 9 (SIGKILL), by the kernel: out of memory"
        assert failure.lines == ("about to take all of it",)
        await bench.verb("stop", grace_us=0)
        ended = await bench.state_is("exited")
        assert ended.why == f"rank 1: {failure.why}" and ended.code == 137

    try:
        play(body)
    finally:
        subprocess.run(["rmdir", str(group)], check=True)
