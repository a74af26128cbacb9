"""A job's own ``tide`` reaches the controller that runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidewright.cli.session import Session
from tidewright.cli.shell import run
from tidewright.wire.client import Client

TIDE = f'{sys.executable} -c "from tidewright.cli import main; main()"'


@pytest.mark.processes
def test_a_job_lists_itself_and_submits_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: object) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("TIDE_STATE", str(tmp_path / "elsewhere"))
    assert run(["--state", str(state), "up", "--slots", "2"]) == 0
    try:
        script = (
            f"echo $TIDE_STATE; {TIDE} ps --format name,state --no-headers; {TIDE} run --parsable --name other -- true"
        )
        assert run(["--state", str(state), "run", "--name", "inner", "--wait", "--", "sh", "-c", script]) == 0
        client = Client(state)
        assert b"".join(client.logs("inner")).decode().split() == [str(state), "inner", "running", "2"]
        assert client.wait("other", 20).exit_code == 0
    finally:
        run(["--state", str(state), "down", "--jobs"])


def test_the_environment_names_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_STATE", str(tmp_path / "here"))
    assert Session.of(None, None, None).state == tmp_path / "here"
    monkeypatch.setenv("TIDE_URL", "http://127.0.0.1:7700")
    monkeypatch.setenv("TIDE_TOKEN_FILE", str(tmp_path / "token"))
    found = Session.of(None, None, None)
    assert (found.url, found.token_file) == ("http://127.0.0.1:7700", tmp_path / "token")
    assert Session.of(str(tmp_path), None, None).url is None, "what is typed goes before the environment"
    typed = Session.of(None, "http://127.0.0.1:1", None)
    assert typed.url == "http://127.0.0.1:1" and typed.token_file is None, (
        "a token goes to the controller that it is for"
    )
