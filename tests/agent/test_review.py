"""What a review of the agent found: outputs that are no files, whose output it is, and what a slot's load means."""

from __future__ import annotations

import asyncio
import os
import stat

from tidewright.agent.processes.usage import read_steps


def test_an_output_that_nobody_reads_is_an_error_not_a_hang(play):
    async def body(bench):
        os.mkfifo(bench.state / "pipe")
        await bench.launch("echo", "hi", output="pipe")
        report = await bench.state_is("failed")
        assert report.fault == "user" and "pipe without a reader" in report.error

    play(body)


def test_an_output_that_somebody_reads_is_written(play):
    async def body(bench):
        os.mkfifo(bench.state / "pipe")
        reader = os.open(bench.state / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            await bench.launch("echo", "hi", output="pipe")
            await bench.state_is("exited")
            assert os.read(reader, 100) == b"hi\n"
        finally:
            os.close(reader)

    play(body)


def test_an_output_the_user_chose_has_the_users_mode_and_logs_of_ours_are_private(play):
    async def body(bench):
        await bench.launch("true", output="out/put.txt", world=2)
        await bench.state_is("exited")
        assert stat.S_IMODE((bench.state / "out" / "put.txt").stat().st_mode) == 0o644
        assert stat.S_IMODE((bench.state / "out").stat().st_mode) == 0o755
        assert stat.S_IMODE((bench.state / "logs" / "1" / "rank1.0.log").stat().st_mode) == 0o600

    play(body)


def test_a_slot_without_a_job_is_not_busy_whatever_the_machine_does(play):
    async def body(bench):
        await bench.launch("sh", "-c", "while :; do :; done")
        await bench.state_is("running")
        await bench.usage()
        await asyncio.sleep(0.5)
        first, *rest = (await bench.usage()).devices
        assert first.percent > 0 and [use.percent for use in rest] == [0.0, 0.0, 0.0]

    play(body)


def test_a_step_file_that_is_a_pipe_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "steps")
    assert read_steps(tmp_path / "steps") is None
    (tmp_path / "right").write_text("17\n")
    assert read_steps(tmp_path / "right") == (17, None)
    for text, said in (
        ("17 2176\n", (17, 2176)),
        ("17 x\n", None),
        ("1 2 3\n", None),
        ("-1 5\n", None),
        ("9" * 30 + " 5\n", None),
        ("", None),
    ):
        (tmp_path / "right").write_text(text)
        assert read_steps(tmp_path / "right") == said


def test_a_program_that_stopped_itself_ends_when_told_to(play):
    async def body(bench):
        await bench.launch("sh", "-c", "trap 'exit 3' TERM; echo up; kill -STOP $$; sleep 100")
        await bench.state_is("running")
        while "up" not in bench.log():
            await asyncio.sleep(0.02)
        await bench.verb("stop", grace_us=60_000_000)
        assert (await bench.state_is("exited")).code == 3

    play(body)


def test_an_output_the_user_chose_is_begun_anew_by_a_job_and_kept_by_its_retries(play):
    async def body(bench):
        file = bench.state / "mine.txt"
        file.write_text("of an older job\n")
        for attempt, text in ((1, "first"), (2, "retry")):
            await bench.launch("echo", text, attempt=attempt, output="mine.txt")
            await bench.until(lambda report, now=attempt: (report.attempt, report.state) == (now, "exited"), 1)
        assert file.read_text() == "first\nretry\n"

    play(body)


def test_a_step_file_may_be_behind_links_and_must_be_the_ranks_own(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "steps").write_text("41\n")
    (tmp_path / "latest").symlink_to("runs")
    (tmp_path / "mine").symlink_to("latest/steps")
    assert read_steps(tmp_path / "latest" / "steps") == read_steps(tmp_path / "mine") == (41, None)
    assert (
        read_steps(tmp_path / "mine", os.geteuid()) == (41, None)
        and read_steps(tmp_path / "mine", os.geteuid() + 1) is None
    )
