"""Completion of shells: what the controller answers, and what bash offers of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tidewright.base.errors import UsageError
from tidewright.cli.complete import _Completed, typed, words_of
from tidewright.cli.shell import SUMMARY, run
from tidewright.cli.shell import tide as group
from tidewright.model.job import ArrayMember, JobSpec
from tidewright.wire.calls.completion import MOST_WORDS, Word
from tidewright.wire.states import STATES

from .fakes import FakeFabric

HOSTILE = "$(touch here)"


def _spec(name: str, **more: Any) -> JobSpec:
    return JobSpec(name=name, command=("sleep", "9"), **more)


def _words(client: Any, of: Any, prefix: str = "") -> list[str]:
    return [one.word for one in client.words(of, prefix)]


def test_words_of_a_pool(running) -> None:  # type: ignore[no-untyped-def]
    fabric = FakeFabric()
    with running(fabric) as server, server.client() as client:
        first = client.submit([_spec("train", team="vision")]).ids[0]
        client.submit([_spec("twice"), _spec("twice")])
        for job in range(first, first + 3):
            client.wait(job, 0.0)
        assert _words(client, "jobs") == [str(first + 2), str(first + 1), str(first), "train"], (
            "a name of two is refused"
        )
        assert _words(client, "jobs", "tr") == ["train"] and _words(client, "jobs", "x") == []
        assert client.words("jobs", "tr")[0].text.startswith(f"job {first}, ")
        assert _words(client, "names") == ["train", "twice"]
        assert _words(client, "teams", "v") == ["vision"]
        me = client.job(first).user
        assert me and _words(client, "users", me[:1]) == [me]
        assert _words(client, "nodes") == sorted(node.name for node in client.nodes().nodes)
        assert _words(client, "services") == []
        client.cancel(first)
        client.wait(first, 10)
        assert "train" not in _words(client, "jobs") and "train" in _words(client, "ended")
        again = client.submit([_spec("train")]).ids[0]
        assert client.words("ended", "train")[0].text.startswith(f"job {again}, "), "a live one comes before ended ones"
        with pytest.raises(UsageError, match="'gone' is not one of jobs, ended"):
            client.words("gone")
        client.submit([_spec(f"many{at}") for at in range(MOST_WORDS)])
        assert len(_words(client, "jobs", "many")) == MOST_WORDS == len(_words(client, "jobs"))


def test_an_array_is_offered_and_its_members_once_it_is_typed(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        members = [_spec(f"sweep[{at}]", array=ArrayMember("sweep", at, 12)) for at in range(12)]
        first = client.submit(members).ids[0]
        assert _words(client, "jobs") == [str(first), "sweep"]
        assert client.words("jobs", "sw")[0].text == f"array {first}, 12 members"
        assert _words(client, "jobs", f"{first}_1") == [f"{first}_1", f"{first}_10", f"{first}_11"]
        assert _words(client, "jobs", f"{first}_[") == [f"{first}_[0-11]"]
        assert {*_words(client, "jobs", "sweep[1")} == {"sweep[1]", "sweep[10]", "sweep[11]"}
        assert _words(client, "names") == ["sweep"] and _words(client, "names", "sweep[2") == ["sweep[2]"]


@pytest.fixture
def bash(tmp_path: Path) -> Callable[[str, Path], list[str]]:
    """What bash offers for a line (the word at its end is being typed), through the script of ``tide completion bash``."""
    program = tmp_path / "bin" / "tide"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from tidewright.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "sweep0").write_text("")
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    script = subprocess.run(
        ["tide", "completion", "bash"], env=environment, capture_output=True, text=True, check=True
    ).stdout

    def offered(line: str, state: Path) -> list[str]:
        ask = (
            f"{script}\nCOMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}\n"
            '_tide_completion tide; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        said = subprocess.run(
            ["bash", "--norc", "-c", ask], env={**environment, "TIDE_STATE": str(state)}, cwd=tmp_path,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        errors = [line for line in said.stderr.splitlines() if "compopt" not in line and "nosort" not in line]
        assert not errors, "a shell shows it in the middle of a line"
        return said.stdout.split()

    return offered


@pytest.mark.processes
def test_bash_offers_them(running, bash) -> None:  # type: ignore[no-untyped-def]
    with running(FakeFabric()) as server, server.client() as client:
        (job,) = client.submit([_spec("train")]).ids
        client.submit([_spec("sweep[0]", array=ArrayMember("sweep", 0, 1))])
        assert bash("tide show tr", server.state) == ["train"]
        assert str(job) in bash("tide cancel ", server.state)
        assert bash("tide show s", server.state) == ["sweep"], (
            "no name is taken for a pattern of files, which sweep0 is of"
        )
        assert bash("tide ps --state running,fa", server.state) == ["running,failed"]
        assert bash("tide cancel --state=running,c", server.state) == [], "completed and cancelled jobs have ended"
        assert bash("tide cancel 'sweep[", server.state) == ["sweep[0]"]
        assert bash("TIDE_STATE=/nowhere tide show tr", server.state) == []
        assert bash("tide up --policy ga", server.state) == ["gavel-fifo"]


def test_nothing_is_offered_that_a_shell_would_run(tmp_path: Path) -> None:
    words = [Word(word) for word in (HOSTILE, "a b", "x;y", "`z`", "*", "train-17.b", "ümlaut", "ada@corp")]
    context = click.Context(group)
    context.params = {"state": str(tmp_path), "url": None, "token_file": None, "tls_ca": None}
    offered = _Completed(click.STRING, lambda session, prefix: words).shell_complete(
        context, click.Argument(["job"]), ""
    )
    assert [one.value for one in offered] == ["train-17.b", "ümlaut", "ada@corp"]


@pytest.mark.parametrize(
    ("line", "before", "last"),
    [
        ("tide", [], ""), ("tide ", [], ""), ("tide ca", [], "ca"), ("tide cancel ", ["cancel"], ""),
        ("tide cancel 'tr", ["cancel"], "tr"), ("tide cancel 'a b' \"c ", ["cancel", "a b"], "c "),
        ("tide ps --state=run", ["ps"], "--state=run"), ("TIDE_STATE=/x A=b tide show 1", ["show"], "1"),
    ],
)  # fmt: skip
def test_the_line_that_is_being_typed(line: str, before: list[str], last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_STATE", "/before")
    assert typed(line) == (before, last)
    assert os.environ["TIDE_STATE"] == ("/x" if "TIDE_STATE" in line else "/before")


def _offered(shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a shell's script is given for a line, without descriptions."""
    words = line.split(" ")
    for name, value in (
        ("_TIDE_COMPLETE", f"{shell}_complete"), ("COMP_WORDS", line), ("COMP_CWORD", str(len(words) - 1) * (shell == "zsh")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    run([])
    said = capsys.readouterr().out.splitlines()
    return said[1::3] if shell == "zsh" else [one.partition(",")[2].partition("\t")[0] for one in said if one]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_columns_and_states_are_offered_behind_commas_and_equals_signs(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, wanted in (
        ("tide ps --format id,na", ["id,name"]), ("tide ps --format=id,na", ["--format=id,name"]),
        ("tide nodes --format no", ["node", "note"]), ("tide usage --by user --format us", ["user"]),
        ("tide serve ls --format sta", ["state"]), ("tide serve ls NAME --format jo", ["job", "jobs"]),
        ("tide cancel --state c", []), ("tide ps --state c", ["completed", "cancelled"]),
        ("tide hold --state ", ["queued", "suspended"]), ("tide submit --sla p", ["premium"]), ("tide show \udcff", []),
    ):  # fmt: skip
        assert sorted(_offered(shell, line, monkeypatch, capsys)) == sorted(wanted)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_lists(tmp_path: Path) -> None:
    program = tmp_path / "tide"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from tidewright.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    script = "tide completion fish | source; complete -C 'tide ps --state queued,h'; complete -C 'tide cancel \"'"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TIDE_STATE": str(tmp_path)}
    said = subprocess.run(
        ["fish", "--no-config", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "queued,held\n" and not said.stderr


@pytest.mark.processes
def test_it_is_silent_without_a_controller_and_on_a_wrong_line(bash, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert bash("tide show ", tmp_path / "none") == [] == bash("tide frobnicate ", tmp_path / "none")
    assert bash("tide ps --state com", tmp_path / "none") == ["completed"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_words_with_what_they_stand_for(
    running, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    with running(FakeFabric()) as server, server.client() as client:
        (job,) = client.submit([_spec("train")]).ids
        for name, value in (
            ("_TIDE_COMPLETE", f"{shell}_complete"), ("COMP_WORDS", "tide show tr"), ("TIDE_STATE", str(server.state)),
            ("COMP_CWORD", "tr" if shell == "fish" else "2"),
        ):  # fmt: skip
            monkeypatch.setenv(name, value)
        assert run([]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"plain\ntrain\njob {job}, " if shell == "zsh" else f"plain,train\tjob {job}, ")


def test_every_parameter_that_names_something_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(command: Any, path: str) -> Any:
        for param in command.params:
            yield path, param
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{path} {name}")

    found = [one for name in SUMMARY for one in walk(group.get_command(None, name), name)]  # type: ignore[arg-type]
    named = ("job", "jobs", "node", "nodes", "team", "user", "policy", "policies", "runtime")
    plain = [(path, param) for path, param in found if param.name in named and param.type.name in ("text", "integer")]
    unknown = {(path, param.name) for path, param in plain if words_of(param, path) is None}
    assert unknown == set()
    states = next(param for path, param in found if path == "ps" and param.name == "state")
    assert [one.word for one in words_of(states, "ps")(None, "")] == list(STATES)  # type: ignore[arg-type, misc]
