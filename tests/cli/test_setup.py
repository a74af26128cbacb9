"""``tide setup``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.app import criu as app

from .stub import Terminal

NONE, GOOD = app.Found(why="there is no CRIU; tide setup criu gets one"), app.Found("/p/usr/sbin/criu", "4.2.1")


def test_check_only_says(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "find", lambda prefix: NONE)
    said = tide("setup", "criu", "--check")
    assert said.code == 1 and said.out.strip() == NONE.why
    monkeypatch.setattr(app, "find", lambda prefix: GOOD)
    assert tide("setup", "criu", "--check").out.strip() == "CRIU 4.2.1 works here: /p/usr/sbin/criu"


def test_a_second_time_does_nothing(tide: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, asked = [NONE], []

    def install(prefix, say):
        say("fetching")
        asked.append(prefix)
        found[0] = GOOD
        return prefix

    monkeypatch.setattr(app, "find", lambda prefix: found[0])
    monkeypatch.setattr(app, "install", install)
    first = tide("setup", "criu", "--prefix", str(tmp_path / "p"))
    assert first.code == 0 and asked == [tmp_path / "p"] and "take full images" in first.out
    again = tide("setup", "criu", "--prefix", str(tmp_path / "p"))
    assert again.code == 0 and len(asked) == 1 and "works here" in again.out


def test_installed_and_yet_of_no_use(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "find", lambda prefix: app.Found(why="full images need root"))
    monkeypatch.setattr(app, "install", lambda prefix, say: Path("/p"))
    said = tide("setup", "criu")
    assert said.code == 0 and "CRIU is in /p" in said.out and "need root" in said.err
