"""YAML specs: every mistake at its line, nothing but UsageError ever, and the same job back."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.app.jobspec import fields
from tidewright.app.jobspec.load import load as load_file
from tidewright.app.jobspec.loaded import Loaded, Submitter
from tidewright.app.jobspec.yaml_spec import KEYS, parse
from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.job import JobSpec, problems

from ..sizes import examples

ME = Submitter({"PATH": "/usr/bin"}, "/home/me/work", "me")


def load(text: str) -> Loaded:
    return parse(text, "job.yaml", ME)


def mistakes(text: str) -> list[tuple[int, str]]:
    """(line, text) of everything that is reported."""
    with pytest.raises(UsageError) as caught:
        load(text)
    found = []
    for line in caught.value.message.splitlines()[1:]:
        file, number, what = line.split(":", 2)
        assert file == "job.yaml"
        found.append((int(number), what.strip()))
    return found


def test_every_key_fills_its_field() -> None:
    loaded = load(
        """
        name: train
        command: python train.py --lr "0.1 0.2"
        kind: task
        devices: h100:1:4
        device_types: [H100, a100]
        ranks: 8
        tier: premium
        team: vision
        weight: 2.5
        deadline: 4h
        max_duration: 1:30:00
        expected: 90m
        retries: 3
        retry_exit_codes: [1, 17]
        preempt: requeue
        grace: 10
        placement: one-node
        env: {DEBUG: on, EPOCHS: 0x10, EMPTY: }
        workdir: sub
        workload: bert
        output: out/%j.log
        after: [afterok:17, "18", "afterany:prep,afterok:12_[3,5]"]
        """
    )
    (job,) = loaded.specs
    assert loaded.after == [("afterok:17", "afterok:18", "afterany:prep", "afterok:12_[3,5]")]
    assert job == JobSpec(
        name="train",
        command=("python", "train.py", "--lr", "0.1 0.2"),
        kind="task",
        devices=4,
        min_devices=1,
        device_types=("h100", "a100"),
        ranks=8,
        tier="premium",
        team="vision",
        user="me",
        weight=2.5,
        deadline_us=4 * HOUR,
        max_duration_us=90 * MINUTE,
        expected_us=90 * MINUTE,
        retries=3,
        retry_exit_codes=(1, 17),
        preempt="requeue",
        grace_us=10 * SECOND,
        placement="one-node",
        env={"PATH": "/usr/bin", "DEBUG": "on", "EPOCHS": "0x10", "EMPTY": ""},
        workdir="/home/me/work/sub",
        workload="bert",
        output="out/%j.log",
    )


def test_a_share_of_one_device() -> None:
    assert load("command: x\ngpu_memory: 12GiB").specs[0].gpu_memory == 12 * 2**30


def test_a_job_has_one_rank_per_device_unless_given_or_started_by_torchrun() -> None:
    assert load("command: x\ndevices: 1:4").specs[0].ranks == 4
    assert load("command: x\ndevices: 1:4\nranks: 1").specs[0].ranks == 1
    assert load("command: x\ndevices: 4").specs[0].ranks == 4
    assert load("command: torchrun x.py\ndevices: 4").specs[0].ranks == 1


def test_all_mistakes_of_all_documents_with_their_lines() -> None:
    found = mistakes(
        "\n".join(
            [
                "name: 12",
                "comand: python x.py",
                "tier: gold",
                "env:",
                "  A: [1]",
                "deadline: never",
                "devices: 4:1",
                "---",
                "command: ok",
                "ranks: 3",
                "devices: 2",
                "tier: basic",
                "tier: premium",
                "---",
                "- a list",
            ]
        )
    )
    assert [line for line, _ in found] == [1, 1, 2, 3, 5, 6, 7, 10, 13, 15]
    text = "\n".join(what for _, what in found)
    for piece in (
        "did you mean 'command'",
        "'gold' is not one of",
        "not a duration: 'never'",
        "given twice",
        "ranks: 3",
    ):
        assert piece in text


@pytest.mark.parametrize(
    ("text", "line", "piece"),
    [
        ("", 1, "at least a command"),
        ("command: [a\nname: b", 2, "not YAML"),
        ("command: x\narray: 0-99999", 2, "more than"),
        ("command: x\narray: 0-9%0", 2, "never run"),
        ("command: x\narray: 0-3\nsweep: {a: [1]}", 3, "not both"),
        ("command: x\nrun: y", 2, "not both"),
        ("command: x\nsweep:\n  1bad: [1]", 3, "environment variable"),
        ("command: x\nsweep: {a: []}", 2, "no values"),
        ("command: x\nat_once: 2", 2, "array or a sweep"),
        ("command: x\ngpu_memory: 0", 2, "amount of memory"),
        ("command: x\nworkdir: ", 2, "no value"),
        ("command: 'a \"b'", 1, "cannot split"),
        ("command: x\nretries: 99999999999999999999", 2, "whole number"),
        ("command: x\nweight: nan", 2, "not a number"),
        ("command: x\n? [a, b]\n: 1", 2, "plain word"),
        ("a: &a [*a]", 1, "nested deeper"),
    ],
)
def test_one_mistake(text: str, line: int, piece: str) -> None:
    found = mistakes(text)
    assert any(at == line and piece in what for at, what in found), found


def test_an_alias_bomb_is_refused_quickly() -> None:
    rows = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    rows += [f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    assert any("more than" in what for _, what in mistakes("\n".join(rows)))


def test_array_members() -> None:
    members = load("name: a\ncommand: run {index} ${index}\narray: 1,4-8:2%2\noutput: o-{index}").specs
    assert [job.name for job in members] == ["a[1]", "a[4]", "a[6]", "a[8]"]
    assert members[1].command == ("run", "4", "${index}")
    assert members[1].env["ARRAY_INDEX"] == "4" and members[1].output == "o-4"
    assert members[1].array is not None
    assert (members[1].array.parent, members[1].array.size, members[1].array.limit) == ("a", 4, 2)


def test_sweep_members_cover_every_combination() -> None:
    members = load("command: python t.py --lr {lr}\nsweep: {lr: [0.1, 0.01], seed: [1, 2, 3]}\nat_once: 2").specs
    assert [(job.env["lr"], job.env["seed"]) for job in members] == [
        (lr, seed) for lr in ("0.1", "0.01") for seed in ("1", "2", "3")
    ]
    assert members[3].command[-1] == "0.01" and members[3].name == "t[3]"
    assert all(job.array is not None and job.array.limit == 2 for job in members)


def test_a_text_to_run_gets_a_shell() -> None:
    (job,) = load("run: |\n  echo one\n  echo two\n").specs
    assert job.command == ("/bin/bash", "-e", "-c", "echo one\necho two\n")


def test_the_keys_are_those_of_the_page(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "jobs.md").read_text()
    assert [key for key in KEYS if f"| `{key}` |" not in page] == []


# -- properties -------------------------------------------------------------------------------------------------------

_words = st.one_of(
    st.sampled_from(["4", "1:4", "12GiB", "premium", "0-9%4", "afterok:17", "90s", "x", "", "-1", "1e999", "~", "on"]),
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)
_values = st.recursive(
    _words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
_keys = st.one_of(st.sampled_from(sorted(KEYS)), st.text(max_size=8))


def valid_or_refused(text: str) -> None:
    try:
        loaded = load(text)
    except UsageError as error:
        assert error.message and error.remedy
        last = len(re.split("\r\n|[\n\r\x85\u2028\u2029]", text))  # what YAML 1.1 calls a line break
        for line in error.message.splitlines()[1:]:
            if line.startswith("job.yaml:"):
                number = line.split(":")[1]
                assert number.strip() == "" or not number.strip().isdigit() or 1 <= int(number) <= last + 1
    else:
        assert loaded.specs and all(not problems(job) for job in loaded.specs)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(_keys, _values, max_size=6))
def test_any_mapping_gives_sound_specs_or_a_list_of_mistakes(document: dict[str, object]) -> None:
    valid_or_refused(yaml.safe_dump(document, allow_unicode=True))


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_sound_specs_or_a_list_of_mistakes(text: str) -> None:
    valid_or_refused(text)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.sampled_from(["tire: basic", "tier: gold", "rnaks: 1", "devices: none", "grace: ever"]), unique=True)
)
def test_every_bad_line_is_reported_at_its_line(bad: list[str]) -> None:
    lines = ["command: x", *bad]
    if not bad:
        assert load("\n".join(lines)).specs
        return
    assert sorted(at for at, _ in mistakes("\n".join(lines))) == list(range(2, len(lines) + 1))


def test_a_file_that_is_no_text(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "x.yaml"
    path.write_bytes(b"command: x\nname: \xff\n")
    with pytest.raises(UsageError, match=r"x\.yaml:2: not UTF-8"):
        load_file(path, ME)


def test_phases_have_a_workload_and_a_length() -> None:
    (spec,) = load("command: [x]\nphases:\n  - {workload: a, work: 2h}\n  - {workload: b}\n").specs
    assert [(phase.workload, phase.work_us) for phase in spec.phases] == [("a", 2 * HOUR), ("b", 0)]
    for text, line, piece in (
        ("command: [x]\nphases: a\n", 2, "a list of"),
        ("command: [x]\nphases:\n  - {workload: a, work: 2h}\n  - {work: 1h}\n", 4, "a phase has a workload"),
        ("command: [x]\nphases:\n  - {workload: a}\n  - {workload: b}\n", 2, "phase 1 has no length"),
    ):
        assert any(at == line and piece in said for at, said in mistakes(text)), (text, mistakes(text))


@pytest.mark.parametrize(
    ("text", "cpus_milli"),
    [("2", 2000), ("0.5", 500), ("500m", 500), ("0.001", 1), ("1.0005", 1000), ("10000", 10_000_000)],
)
def test_cpus_are_read_to_the_thousandth(text: str, cpus_milli: int) -> None:
    assert fields.cpus(text) == cpus_milli


@pytest.mark.parametrize("text", ["0", "-1", ".nan", "nan", "inf", "1e400", "0.0001", "10001", "", "two", "1,5"])
def test_cpus_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        fields.cpus(text)


@pytest.mark.parametrize("text", ["0", "1001", "-1", ".nan", "0.5", "1e3", ""])
def test_a_share_of_compute_is_of_whole_thousandths(text: str) -> None:
    with pytest.raises(UsageError):
        fields.gpu_milli(text)


def test_resources_of_hosts_and_shares_in_a_spec() -> None:
    (spec,) = parse("command: x\ncpus: 0.5\nmemory: 2GiB\ngpu_milli: 300\ngpu_memory: 1GiB\n", "j.yaml", ME).specs
    assert (spec.cpus_milli, spec.memory, spec.gpu_milli, spec.gpu_memory) == (500, 2 * 2**30, 300, 2**30)
    with pytest.raises(UsageError) as caught:
        parse("command: x\ndevices: 2\ncpus: .nan\nmemory: 1KiB\ngpu_milli: 300\n", "j.yaml", ME)
    assert [line.split(":")[1] for line in caught.value.message.splitlines()[1:]] == ["3", "4", "5"]


@pytest.mark.parametrize(("text", "milli"), [("0.5", 500), ("50%", 500), ("1", 1000), ("0.001", 1), ("12.5 %", 125)])
def test_a_fraction_of_a_device(text: str, milli: int) -> None:
    assert fields.gpu_share(text) == milli


@pytest.mark.parametrize("text", ["0", "1.001", "-1", ".nan", "inf", "0.0001", "101%", "%", "half", ""])
def test_fractions_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        fields.gpu_share(text)


def test_the_class_is_that_of_the_share_or_of_the_client() -> None:
    def fields_of(text: str) -> tuple[object, ...]:
        (spec,) = parse("command: x\n" + text, "j.yaml", ME).specs
        return spec.gpu_share, spec.share_class, spec.runtime_class, spec.tier

    assert fields_of("share: 50%\n") == (500, "rt", "be", "standard")
    assert fields_of("share: 0.5\nclass: be\n") == (500, "be", "be", "basic")
    assert fields_of("runtime: vision\nclass: rt\n") == (0, "rt", "rt", "standard")
    for wrong, line in (("class: be\n", "2"), ("share: 0.5\nclass: be\ntier: premium\n", "3"), ("share: 2\n", "2")):
        with pytest.raises(UsageError) as caught:
            fields_of(wrong)
        assert [text.split(":")[1] for text in caught.value.message.splitlines()[1:]] == [line]
