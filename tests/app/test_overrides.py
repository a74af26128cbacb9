"""Options of the command line over what a file of jobs says; stdin and wrapped commands."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tidewright.app.jobspec.load import load, wrapped
from tidewright.app.jobspec.loaded import Loaded, Submitter
from tidewright.app.jobspec.overrides import Override
from tidewright.app.jobspec.yaml_spec import KEYS
from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.cli.jobs.submit_options import OPTIONS

ME = Submitter({"PATH": "/usr/bin", "HOME": "/home/me"}, "/srv/jobs", "me")
BY_NAME = {name: one for one in OPTIONS for name in one.names}


def given(*words: str) -> list[Override]:
    """``--gres gpu:2`` and the like as the command understands them."""
    found, at = [], 0
    while at < len(words):
        one = BY_NAME[words[at]]
        value = one.value or words[at + 1]
        found.append(Override(words[at], one.key, one.sbatch, (value,), one.instead))
        at += 1 if one.value else 2
    return found


def yaml(tmp_path: Path, text: str, *words: str) -> Loaded:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load(path, ME, (), given(*words))


def script(tmp_path: Path, lines: str, *words: str) -> Loaded:
    path = tmp_path / "train.sbatch"
    path.write_text(f"#!/bin/bash\n{lines}\necho hi\n")
    return load(path, ME, ("arg",), given(*words))


SPEC = "name: a\ncommand: x\ndevices: h100:2\ntier: basic\narray: 0-1\nat_once: 2\nenv: {A: 1, B: 2}\n"


def test_the_command_line_wins_over_a_spec(tmp_path: Path) -> None:
    loaded = yaml(
        tmp_path, SPEC, "-g", "1:4", "--sla", "premium", "-t", "90", "-J", "b", "-a", "0-3%1", "--env", "B=3", "-c", "2",
        "--after", "afterok:prep", "--mem", "2GiB",
    )  # fmt: skip
    job = loaded.specs[3]
    assert (job.name, job.devices, job.min_devices, job.tier, job.max_duration_us) == (
        "b[3]",
        4,
        1,
        "premium",
        90 * SECOND,
    )
    assert job.array is not None and job.array.limit == 1 and (job.env["A"], job.env["B"]) == ("1", "3")
    assert (job.cpus_milli, job.memory, loaded.after) == (2000, 2 * 2**30, [("afterok:prep",)])
    limited = yaml(tmp_path, SPEC, "--array-limit", "1").specs
    assert [spec.array and spec.array.limit for spec in limited] == [1, 1]
    shared = yaml(tmp_path, "command: x\ngpu_memory: 1GiB\n", "--share", "0.5").specs[0]
    assert (shared.gpu_share, shared.gpu_memory) == (500, 0)


def test_the_command_line_wins_over_a_script(tmp_path: Path) -> None:
    lines = "#SBATCH -J a --gres=gpu:2 -t 60 -N 2 --array=0-9 --qos=basic --export=NONE"
    loaded = script(
        tmp_path, lines, "-G", "a100:8", "-n", "4", "--time", "30", "--name", "b", "-a", "0-1", "-q", "premium", "--env", "X=1",
        "--array-limit", "1", "-d", "afterany:12_3", "--mem", "16G", "--requeue",
    )  # fmt: skip
    job = loaded.specs[1]
    assert (job.name, job.devices, job.ranks, job.device_types) == ("b[1]", 8, 4, ("a100",))
    assert (job.max_duration_us, job.tier, job.env["X"], job.preempt) == (30 * MINUTE, "premium", "1", "requeue")
    assert job.array is not None and (job.array.size, job.array.limit) == (2, 1)
    assert job.memory == 8 * 2**30, "of a node, as in sbatch: two nodes' over four ranks"
    assert loaded.after == [("afterany:12_3",)] and not loaded.warnings and job.command[-1] == "arg"
    elastic = script(tmp_path, lines, "-g", "h100:1:4", "--ranks", "4", "--sla", "standard", "--time", "2h").specs[0]
    assert (elastic.devices, elastic.min_devices, elastic.ranks, elastic.device_types) == (4, 1, 4, ("h100",))
    assert elastic.tier == "standard" and elastic.max_duration_us == 2 * HOUR
    client = script(tmp_path, "#SBATCH -n 1", "--runtime", "vision", "--class", "rt").specs[0]
    assert (client.runtime, client.runtime_class, client.devices) == ("vision", "rt", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gres", "gpu:2"), "--gres is an option of batch scripts; give -g"),
        (("-g", "many"), "devices: "),
        (("-a", "0-3"), "sweep: give either array or sweep"),
        (("--share", "0.5", "--gpu-mem", "1GiB"), "share: of compute and memory alike"),
        (("-d", "never:1"), "not a dependency: 'never:1'"),
    ],
)
def test_mistakes_of_the_command_line_are_reported_with_those_of_the_file(
    tmp_path: Path, words: Any, said: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        yaml(tmp_path, "command: x\nretries: often\nsweep: {lr: [1, 2]}\n", *words)
    assert said in wrong.value.message and "job.yaml:2: retries" in wrong.value.message


def test_a_mistake_over_a_script_names_the_option(tmp_path: Path) -> None:
    for words, said in (
        (("-g", "many"), "-g: "),
        (("-t", "soon"), "-t: "),
        (("--array-limit", "2"), "--array-limit is of"),
    ):
        with pytest.raises(UsageError, match=said):
            script(tmp_path, "", *words)


def test_stdin_is_a_spec_or_a_script_by_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_stdin(text: str, *words: str) -> Loaded:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return load(Path("-"), ME, (), given(*words))

    assert load_stdin("command: sleep 1\n", "-g", "2").specs[0].devices == 2
    job = load_stdin("#!/bin/bash\n#SBATCH --gres=gpu:2\necho $0\n").specs[0]
    assert (job.name, job.devices, job.command[-1]) == ("stdin", 2, "stdin") and "echo $0" in job.command[2]
    python = load_stdin("#!/usr/bin/env python3\nprint(1)\n").specs[0].command
    assert python[:3] == ("/usr/bin/env", "python3", "-c") and "print(1)" in python[3]
    for text, said in (
        ("#!/usr/bin/perl\n", "perl cannot be read from stdin"),
        ("comand: x\n", "stdin:1: unknown key"),
        ("", "empty"),
    ):
        with pytest.raises(UsageError, match=said):
            load_stdin(text)


def test_a_wrapped_command_is_a_batch_script() -> None:
    loaded = wrapped("python a.py | tee log", ME, given("-g", "2", "-J", "w", "-a", "0-1"))
    assert [job.name for job in loaded.specs] == ["w[0]", "w[1]"] and loaded.specs[0].devices == 2
    assert loaded.specs[0].command[:2] == ("/bin/sh", "-c") and "python a.py | tee log\n" in loaded.specs[0].command[2]
    assert wrapped("true", ME).specs[0].name == "wrap"


def test_every_option_is_a_key_of_a_spec_or_an_option_of_sbatch() -> None:
    from tidewright.app.jobspec.sbatch import HONOURED

    for one in OPTIONS:
        assert one.key in KEYS or (not one.key and one.sbatch and one.instead)
        assert not one.sbatch or one.sbatch in HONOURED


def test_mistakes_of_the_command_line_are_not_blamed_on_the_file(tmp_path: Path) -> None:
    for words, text in (
        (("--ntasks", "-1"), "command line: --ntasks: not a whole number"),
        (("--weight", "1e-320"), "command line: --weight: not a weight"),
        (("-n", "3", "-G", "2"), "command line: ranks: 3 ranks do not divide"),
        (("--team", "!"), "command line: team: '!' is not a valid name"),
        (("--array-limit", "2"), "command line: --array-limit is of an array"),
    ):
        with pytest.raises(UsageError) as wrong:
            script(tmp_path, "#SBATCH -J e", *words)
        first, second = wrong.value.message.splitlines()
        assert first == "1 mistake on the command line" and second.startswith(text)
    with pytest.raises(UsageError) as both:
        yaml(tmp_path, "command: a\nweight: x\n", "--ranks", "-1", "--deadline", "0")
    first, *lines = both.value.message.splitlines()
    assert (
        first == f"3 mistakes in {tmp_path / 'job.yaml'}"
        and [one.split(":")[0] for one in lines[:2]] == ["command line"] * 2
    )
    assert lines[2].startswith(f"{tmp_path / 'job.yaml'}:2: weight")
    assert script(tmp_path, "", "-N", "1-2").warnings[0].startswith("command line: -N")


def test_values_that_say_nothing_are_mistakes(tmp_path: Path) -> None:
    for line in ("weight: 1e-320", "weight: 1e7", "deadline: 0", "name: a[3]"):
        with pytest.raises(UsageError, match=r"job.yaml:2: "):
            yaml(tmp_path, f"command: a\n{line}\n")
    (spec,) = script(tmp_path, "#SBATCH -J a[3]\n#SBATCH --gres=gpu:1").specs
    assert spec.name == "a_3_", "a name with brackets is a member's"
