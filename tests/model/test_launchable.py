"""What no node could start is refused with its field's name; the limits are the kernel's."""

from __future__ import annotations

import errno
import subprocess

import pytest

from tidewright.model.job import ArrayMember, JobSpec, problems
from tidewright.model.launchable import MAX_STRING, MAX_STRINGS, printable, unlaunchable


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"command": ("echo", "a\0b")}, "command[1]: holds a zero byte"),
        ({"command": ("echo", "a" * MAX_STRING)}, "command[1]: 131072 bytes"),
        ({"command": ("echo", "é" * (MAX_STRING // 2))}, "command[1]: 131072 bytes"),
        ({"env": {"A": "\0"}}, "env['A']: holds a zero byte"),
        ({"env": {"BIG": "x" * 3 * 2**20}}, "env['BIG']: 3145732 bytes"),
        ({"env": {f"V{n}": "x" * 100_000 for n in range(25)}}, "command and env: "),
        ({"command": ("x",) * 400_000}, "command and env: "),
        ({"workdir": "data"}, "workdir: 'data' is not absolute"),
        ({"workdir": "/a\0"}, "workdir: holds a zero byte"),
        ({"workdir": "/" + "d" * 4096}, "workdir: 4097 bytes"),
        ({"output": "a\0"}, "output: holds a zero byte"),
        ({"user": "eve\x1b[2J"}, "user: 'eve\\x1b[2J' holds control characters"),
        ({"user": "eve\nroot"}, "user: "),
        ({"user": "e\u202eve"}, "user: "),
        ({"user": "e" * 257}, "user: 257 characters"),
        ({"device_types": ("h\r100",)}, "device_types: "),
        ({"array": ArrayMember("a\nb", 0, 1)}, "array.parent: "),
    ],
)
def test_what_cannot_be_started_is_named(given: dict, says: str) -> None:  # type: ignore[type-arg]
    found = unlaunchable(JobSpec(**{"command": ("true",), **given}))
    assert any(one.startswith(says) for one in found), found


@pytest.mark.parametrize("command", [(), ("",), ("", "x")])
def test_a_command_without_a_program_is_refused(command: tuple[str, ...]) -> None:
    assert problems(JobSpec(command=command)) == ["command: empty; say what to run"]


def test_what_can_be_started_is_let_through() -> None:
    spec = JobSpec(
        command=("bash", "-c", "echo 1\necho \x1b[2J"), env={"A": "x\ny"}, workdir="/tmp", output="log-%j", user="José",
        device_types=("h100",), array=ArrayMember("sweep", 0, 1),
    )  # fmt: skip
    assert unlaunchable(spec) == [] and printable("Ünï cödé")


@pytest.mark.parametrize("where", ["command", "env"])
def test_the_limit_of_one_string_is_the_kernels(where: str) -> None:
    for extra, code in ((0, 0), (1, errno.E2BIG)):
        text = "x" * (MAX_STRING - 1 - (len("A=") if where == "env" else 0) + extra)
        spec = JobSpec(
            command=("/bin/true", text) if where == "command" else ("/bin/true",),
            env={"A": text} if where == "env" else {},
        )
        assert bool(unlaunchable(spec)) == bool(code)
        try:
            assert subprocess.run(spec.command, env=spec.env).returncode == 0 and not code
        except OSError as error:
            assert error.errno == code


def test_what_fits_in_all_can_be_started() -> None:
    count = MAX_STRINGS // (100_000 + 20)
    spec = JobSpec(command=("/bin/true",), env={f"V{n}": "x" * 100_000 for n in range(count)})
    assert unlaunchable(spec) == []
    assert subprocess.run(spec.command, env={**spec.env, "MORE": "x" * 100_000}).returncode == 0
