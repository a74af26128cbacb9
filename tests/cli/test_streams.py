"""Readers that leave, streams that are closed, and Ctrl-C: real processes, without a traceback whatever the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import heed_ctrl_c
from tidewright.cli.entry import INTERRUPTED, exit_with
from tidewright.cli.shell import run

TIDE = (sys.executable, "-c", "from tidewright.cli import main; main()")
SIMULATE = ("simulate", "-t", "synthetic:jobs=20", "-c", "2x4", "-p", "fifo")


def without_reader(words: tuple[str, ...], stream: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``tide`` with a pipe whose reader is gone as its stdout or stderr; the other one is kept."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
        return subprocess.run([*TIDE, *words], timeout=60, check=False, **streams)  # type: ignore[call-overload,no-any-return]
    finally:
        os.close(writer)


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "words",
    [
        ("--help",), pytest.param(("ps", "--help"), marks=FULL), pytest.param(("--version",), marks=FULL),
        pytest.param(("completion", "bash"), marks=FULL), pytest.param(SIMULATE, marks=FULL), (*SIMULATE, "-o", "json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_reader_that_leaves_ends_a_command_quietly(words: tuple[str, ...]) -> None:
    ran = without_reader(words, "stdout")
    assert ran.returncode == 141 and b"Error" not in ran.stderr and b"error" not in ran.stderr


def test_so_does_a_reader_of_messages(tmp_path: Path) -> None:
    ran = without_reader(("--state", str(tmp_path), "ps"), "stderr")
    assert ran.returncode == 141 and not ran.stdout


def test_another_pipe_that_breaks_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("tidewright.cli.completion.command.callback", lambda shell: breaks())
    assert run(["completion", "bash"]) == 1
    assert "error: [Errno 32] Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("completion", "bash"), pytest.param(SIMULATE, marks=FULL)], ids=" ".join)
@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_a_closed_stream_is_the_null_device(closed: str, words: tuple[str, ...]) -> None:
    line = f'exec "$@" {closed}>&-'
    ran = subprocess.run(["sh", "-c", line, "sh", *TIDE, *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr and (len(ran.stdout) > 20) == (closed != "1")


def test_ctrl_c_is_no_traceback(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    os.mkfifo(trace)
    words = ("simulate", "-t", str(trace), "-c", "1x1")
    with (
        subprocess.Popen(
            [*TIDE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c
        ) as process,
        trace.open("w"),  # the command has opened it
    ):
        wchan, end = Path(f"/proc/{process.pid}/wchan"), time.monotonic() + 20
        while not wchan.read_text().endswith("pipe_read") and time.monotonic() < end:
            time.sleep(0.01)  # a signal just before the read would be noticed only after it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (INTERRUPTED, b"", b"\ninterrupted\n")


def test_ctrl_c_before_and_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[object] = []
    monkeypatch.setattr(signal, "signal", lambda *given: later.append(given))

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        exit_with(interrupted)
    assert ended.value.code == INTERRUPTED and later == [(signal.SIGINT, signal.SIG_DFL)]
