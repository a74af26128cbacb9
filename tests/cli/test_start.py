"""``tide ps`` starts fast because of what it does not load; bench/cli_start.py measures it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from tidewright.cli.shell import run
code = run({arguments!r})
heavy = sorted({{"numpy", "starlette", "uvicorn", "rich", "yaml", "asyncio", "matplotlib"}} & set(sys.modules))
print(code, ",".join(heavy), file=sys.stderr)
"""


def loaded(*arguments: str) -> str:
    """The exit code and heavy modules after a command in a fresh interpreter, as its last line says."""
    code = CODE.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["ps"], ["why", "1"], ["nodes"], ["cancel", "1"], ["logs", "1"], ["usage"]])
def test_questions_load_nothing_heavy(tmp_path: Path, command: list[str]) -> None:
    assert loaded("--state", str(tmp_path), *command) == "5 "


def test_the_guard_sees_what_is_loaded() -> None:
    assert "numpy" in loaded("simulate", "-t", "no-such-trace")


def test_help_loads_nothing_heavy() -> None:
    assert loaded("--help") == "0 "
    assert loaded("run", "--help") == "0 "
