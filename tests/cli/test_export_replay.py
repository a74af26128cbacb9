"""``tide export`` and ``tide replay`` on the state directory of real daemons; a planted secret turns up nowhere."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewright.cli.shell import run

pytestmark = pytest.mark.processes
SECRET = "hunter2-do-not-print"


class Real:
    """Types ``tide`` commands at real daemons, with a secret in the environment."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state, self._capsys = state, capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        ended = run(["--state", str(self.state), *arguments])
        said = self._capsys.readouterr()
        assert ended == code, said.err
        return said.out + said.err


@pytest.fixture
def tide(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    real = Real(tmp_path / "state", capsys)
    yield real
    real("down", "--jobs")


def _replayed(tide: Real, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    text = tide("replay", *arguments, "-o", "json")
    body = text[text.index("[") : text.rindex("]") + 1]
    return json.loads(body), text


def _redacted_is_the_same(tide: Real, hidden: Path) -> None:
    redacted = hidden.with_name("redacted.ndjson")
    tide("journal", "export", "--redact", str(redacted))
    assert redacted.stat().st_mode & 0o777 == 0o600 and not list(hidden.parent.glob(".*.part"))
    words = [
        "long",
        "zoologists",
        "sleep",
        "API_TOKEN",
        tide.state.parent.name,
        getpass.getuser(),
        socket.gethostname(),
    ]
    plain, text = hidden.read_text(), redacted.read_text()
    assert [word for word in words if f'"{word}' in plain or f"/{word}" in plain], "the search below can find something"
    assert not [word for word in words if re.search(rf'["/]{re.escape(word)}\b', text)]
    both = [_replayed(tide, str(path), "-p", "sla,fifo,las") for path in (hidden, redacted)]
    for results, _ in both:
        for result in results:
            del result["trace"]  # it has the file's name
    assert both[0][0] == both[1][0]
    assert [line for line in both[0][1].splitlines() if line.startswith("note")] == [
        line for line in both[1][1].splitlines() if line.startswith("note")
    ]
    refused = tide("journal", "export", "--redact", "--with-environment", code=2)
    assert "exclude each other" in refused


def test_a_real_directory_and_its_export_replay(tide: Real) -> None:
    tide("up", "--slots", "2")
    # Long enough that its start and its end are two steps of the controller: else it has run for no time.
    tide("run", "--wait", "--", "sh", "-c", 'test "$API_TOKEN" && sleep 0.3')
    tide("run", "--name", "long", "--team", "zoologists", "--sla", "premium", "--", "sleep", "300")
    tide("run", "--name", "cancelled", "--after", "afterok:2", "--", "true")
    tide("cancel", "cancelled")
    tide("run", "--wait", "--", "sleep", "0.3")
    results, text = _replayed(tide, "-p", "sla,fifo")
    assert [result["policy"] for result in results] == ["sla", "fifo"]
    assert all(result["jobs"] == 3 for result in results), "in use: what has ended, and what runs so far"
    assert "1 job had not ended" in text and "1 job ended without having run" in text
    what_if = json.loads(tide("whatif", "--add", "2xcpu", "--since", "1h", "-o", "json").partition("\nnote:")[0])
    assert [what_if[which]["devices"] for which in ("before", "after")] == [2, 4] and what_if["recorded"]["jobs"] == 2
    hidden, plain = tide.state.parent / "hidden.ndjson", tide.state.parent / "plain.ndjson"
    tide("journal", "export", str(hidden))
    former = tide("export", "--with-environment")
    assert former.endswith("tide export is now called tide journal export\n")
    plain.write_text(former.partition("tide export is")[0])
    assert SECRET in plain.read_text(), "the search below can find something"
    outputs = [hidden.read_text(), text, tide("doctor"), tide("ps", "--all", "-o", "json")]
    outputs += [tide("show", "1", "-o", "json"), tide("show", "long"), tide("why", "long")]
    outputs += [(tide.state / name).read_text() for name in ("controller.log", "agent.log")]
    assert not [output for output in outputs if SECRET in output]
    assert "API_TOKEN" in hidden.read_text(), "names stay"
    for path in (hidden, plain):
        assert _replayed(tide, str(path), "-p", "srtf")[0][0]["jobs"] == 3
    _redacted_is_the_same(tide, hidden)
    tide("down")
    (tide.state / "config.yaml").write_text("engine:\n  shield: 7s\n")
    tide("up")
    tide("run", "--wait", "--", "sleep", "0.2")
    results, _ = _replayed(tide, "--cluster", "2x2:cpu")
    assert results[0]["jobs"] == 4 and results[0]["devices"] == 4, "engine settings were changed on the way"
    tide("down", "--jobs")
    assert _replayed(tide, str(tide.state / "journal.db"))[0][0]["jobs"] == 4
