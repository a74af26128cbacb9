"""``tide doctor`` as it is typed: before a controller, beside a real one, and after it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_full_disk import Tide
from tidewright.cli.progress import Bar, ticking


class Doctor(Tide):
    """With the answers of ``tide doctor``."""

    def answer(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.apart("doctor", *arguments, "-o", "json")  # a slow look says on stderr how far it is
        return code, json.loads(out)


@pytest.fixture
def tide(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.chdir(tmp_path)
    return Doctor(tmp_path / "state", capsys)


def _levels(answer: dict[str, Any]) -> dict[str, str]:
    return {one["what"]: one["level"] for one in answer["findings"]}


def test_a_state_directory_without_a_controller(tide: Doctor) -> None:
    assert tide("doctor")[0] == 0 and "does not exist yet" in tide("doctor")[1]
    tide.state.mkdir(mode=0o700)
    (tide.state / "up.json").write_text('{"policy": "slaa"}')
    (tide.state / "up.json").chmod(0o644)
    code, found = tide.answer()
    assert code == 1 and not found["sound"] and found["repairs"] == []
    assert [one["what"] for one in found["findings"] if one["repairable"]] == ["state", "options"]
    code, text = tide("doctor", "--repair")
    assert code == 0 and "repaired: state: closed 1 path" in text and "repaired: options: dropped policy 'slaa'" in text
    assert tide("doctor")[0] == 0 and "nothing to repair" in tide("doctor", "--repair")[1]


def test_what_cannot_be_repaired_stays_bad(tide: Doctor) -> None:
    tide.state.mkdir(mode=0o755)
    (tide.state / "up.json").write_text('{"tls_key": "/nowhere"}')
    code, text = tide("doctor", "--repair")
    assert code == 1 and "repaired: state" in text and "still BAD: options: remembered tls_key" in text
    code, text = tide("doctor", "--repair")
    assert code == 1 and "nothing here can be repaired with safety" in text


def test_a_check_that_does_not_report_shows_that_it_goes_on() -> None:
    shown = threading.Event()

    class Seen(Bar):
        def update(self, done: float | None = None, text: str | None = None) -> None:
            shown.set()

    with ticking(Seen("reading", None)):
        assert shown.wait(30), "the work waits here, and the bar goes on"


def test_levels_are_coloured_and_names_of_files_are_not(tide: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    tide.state.mkdir(mode=0o700)
    (tide.state / "\x1b[2Jname").touch(mode=0o644)
    (tide.state / "\x1b[2Jname").chmod(0o644)
    monkeypatch.setattr("tidewright.cli.output.colourful", lambda: True)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    text = tide("doctor")[1]
    assert "\x1b[31mBAD \x1b[0m  state: open to others" in text and "\x1b[2J" not in text and "\\x1b[2Jname" in text


def test_a_directory_open_to_others_is_closed_and_then_looked_at(tide: Doctor) -> None:
    tide.state.mkdir()
    tide.state.chmod(0o777)
    code, found = tide.answer("--repair")
    assert code == 0 and found["sound"] and _levels(found)["controller"] == "note"


@pytest.mark.processes
def test_beside_a_real_controller(tide: Doctor) -> None:
    assert tide("up", "--slots", "1")[0] == 0
    try:
        code, found = tide.answer()
        levels = _levels(found)
        assert code == 0 and levels["controller"] == levels["agent"] == levels["journal"] == "ok"
        assert {"disk", "clock", "criu", "cgroups", "kernel", "ulimits", "leftovers"} <= levels.keys()
        assert tide("run", "--follow", "--", "true")[0] == 0
        sock = tide.state / "controller.sock"
        sock.unlink()
        (sock / "in the way").mkdir(parents=True)
        (tide.state / "agent.token").chmod(0o640)
        code, found = tide.answer()
        assert code == 1 and {"state", "socket", "controller"} <= {
            what for what, level in _levels(found).items() if level == "bad"
        }
        code, found = tide.answer("--repair")
        assert code == 0 and found["sound"] and [one["what"] for one in found["repairs"]] == ["state", "socket"]
        assert tide("ps")[0] == 0, "it answers again"
    finally:
        assert tide("down", "--jobs")[0] == 0
    (tide.state / "ranks" / "1.1" / "0").mkdir(parents=True)
    code, text = tide("doctor", "--repair")
    assert code == 0 and "repaired: rank directories: removed" in text and not (tide.state / "ranks" / "1.1").exists()
    assert "turns 1 to" in text
