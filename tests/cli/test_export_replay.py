"""``tide export`` and ``tide replay`` on the state directory of real daemons; a planted secret turns up nowhere."""

from __future__ import annotations

import json
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


def test_a_real_directory_and_its_export_replay(tide: Real) -> None:
    tide("up", "--slots", "2")
    # Long enough that its start and its end are two steps of the controller: else it has run for no time.
    tide("run", "--wait", "--", "sh", "-c", 'test "$API_TOKEN" && sleep 0.3')
    tide("run", "--name", "long", "--", "sleep", "300")
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
    hidden.write_text(tide("export"))
    plain.write_text(tide("export", "--with-environment"))
    assert SECRET in plain.read_text(), "the search below can find something"
    outputs = [hidden.read_text(), text, tide("doctor"), tide("ps", "--all", "-o", "json")]
    outputs += [tide("show", "1", "-o", "json"), tide("show", "long"), tide("why", "long")]
    outputs += [(tide.state / name).read_text() for name in ("controller.log", "agent.log")]
    assert not [output for output in outputs if SECRET in output]
    assert "API_TOKEN" in hidden.read_text(), "names stay"
    for path in (hidden, plain):
        assert _replayed(tide, str(path), "-p", "srtf")[0][0]["jobs"] == 3
    tide("down")
    (tide.state / "config.yaml").write_text("engine:\n  shield: 7s\n")
    tide("up")
    tide("run", "--wait", "--", "sleep", "0.2")
    results, _ = _replayed(tide, "--cluster", "2x2:cpu")
    assert results[0]["jobs"] == 4 and results[0]["devices"] == 4, "engine settings were changed on the way"
    tide("down", "--jobs")
    assert _replayed(tide, str(tide.state / "journal.db"))[0][0]["jobs"] == 4
