"""Output whose reader leaves, interrupts, and commands on several jobs: in processes, as a shell starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .stub import Terminal

TIDE = (sys.executable, "-c", "from tidewright.cli import main; main()")

INTERRUPTING = """import os, signal, sys
class Finder:
    def find_spec(self, name, *more):
        if name == "tidewright.cli.shell":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def piped(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``tide`` writing into a pipe that has no reader any more."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [*TIDE, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
        )
    finally:
        os.close(write)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("run", "--help"),
        ("completion", "bash"),
        ("simulate", "-t", "synthetic:jobs=50", "-p", "fifo"),
        ("compare", "-t", "synthetic:jobs=20", "-p", "fifo", "-j", "1"),
    ],
    ids=" ".join,
)
def test_a_reader_that_leaves_ends_the_command_as_sigpipe_would(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = piped(tmp_path, *arguments)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr and "error" not in done.stderr


def test_an_interrupt_while_modules_are_loaded_ends_quietly(tmp_path: Path) -> None:
    code = f"{INTERRUPTING}from tidewright.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "checkpoint"])
def test_each_job_is_tried_and_every_failure_said(tide: Terminal, verb: str) -> None:
    typed = tide(verb, "77", "17", "78", "18")
    assert typed.code == 1
    assert [line.split()[1] for line in typed.out.splitlines()] == ["17", "18"]
    assert "no job 77" in typed.err and "no job 78" in typed.err
