"""The closed list of codes: each has a sentence, is given with the arguments that it names, and is used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from tidewright.drive.record import decode
from tidewright.model.cause import Cause, Code, given, reported
from tidewright.plan.advice import CONSEQUENCE, REMEDIES
from tidewright.plan.reasons import Reason
from tidewright.plan.render import misused, named, remedy, render, signature
from tidewright.plan.sentences import SENTENCES
from tidewright.testing.causes import within
from tidewright.testing.swarm import Swarm

SOURCE = Path(__file__).parents[2] / "src" / "tidewright"
CODE = re.compile(r"Code\.[A-Z_]+")
EXAMPLE = {str: "x", int: 3, Cause: Code.NO_ANSWER(), tuple: ("x",)}


def example(code: Code) -> Cause:
    return code(*(EXAMPLE[kind] for kind in signature(code).values()))


def calls() -> list[tuple[str, Code, int]]:
    """(place, code, arguments) of every ``Code.X(...)`` in the source."""
    return [
        (f"{path.name}:{node.lineno}", Code[ast.unparse(node.func)[5:]], len(node.args))
        for path in SOURCE.rglob("*.py")
        if "Code." in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and CODE.fullmatch(ast.unparse(node.func))
    ]


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_sentence_of_its_arguments(code: Code) -> None:
    why = example(code)
    assert not misused(why) and render(why) and "{" not in render(why)
    assert msgspec.json.decode(msgspec.json.encode(why), type=Cause) == why
    assert list(named(why)) == list(signature(code))


def test_the_tables_speak_of_every_code_and_no_other() -> None:
    assert list(SENTENCES) == list(Code), "in the order of the codes"
    assert REMEDIES.keys() <= SENTENCES.keys() and CONSEQUENCE.keys() == set(Reason)


def test_every_code_in_the_source_has_as_many_arguments_as_its_sentence_names() -> None:
    wrong = [(at, code.name) for at, code, given in calls() if given != len(signature(code)) and code is not Code.TEXT]
    assert not wrong


def test_every_code_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name not in ("cause.py", "sentences.py"))
    unused = [code.name for code in Code if f"Code.{code.name}" not in text]
    assert set(unused) <= {"TEXT", "REPORTED"}, "these are given by model.cause"


@pytest.mark.parametrize("seed", range(6))
def test_all_that_a_hostile_world_is_told_is_well_formed(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.run(150)
    causes = [
        cause
        for body in swarm.journal.records
        for command in decode(body).commands
        for name in ("error", "warning", "why", "story")
        for value in [getattr(command, name, None)]
        for cause in ([why for _, _, why in value] if name == "story" and value else [value])
        if isinstance(cause, Cause)
    ]
    causes += [why for record in swarm.engine.book.jobs.values() for _, _, why in record.history]
    assert len({one.code for cause in causes for one in within(cause)}) > 20
    assert not [wrong for cause in causes if (wrong := misused(cause))]


def test_words_of_others_stay_words() -> None:
    assert (render("as it is"), render(None), remedy(None), remedy("as it is")) == ("as it is", "", "", "")
    assert reported("no space") == Code.REPORTED("no space") and given("my own") == Code.TEXT("my own")
    assert reported(Code.NO_ANSWER()) == given(Code.NO_ANSWER()) == Code.NO_ANSWER()
    assert render(Code.SUSPEND_FAILED(reported("no memory"))) == "could not be suspended: no memory"


def test_a_cause_of_another_version_is_shown_as_its_code() -> None:
    assert render(Cause(Code.ROLLED_BACK, (5,))) == "RolledBack 5" and misused(Cause(Code.ROLLED_BACK, (5,)))
    assert misused(Code.EXIT_CODE("5")) and misused(Code.SUSPEND_FAILED(Code.EXIT_CODE("5")))


def test_states_are_written_as_in_lists_of_jobs() -> None:
    assert render(Code.ENDED_ALREADY(3, "CANCELLED")) == "job 3 has already ended (cancelled)"
    assert render(Code.NOT_HELD(3, "RUNNING")) == "job 3 is not held by its user; it is running"


@pytest.mark.parametrize("code", list(Code))
def test_no_sentence_says_1_devices(code: Code) -> None:
    ones = {int: 1, str: "x", tuple: ("y",), Cause: Code.WAITS_FOR_DEVICES()}
    why = Cause(code, tuple(ones[kind] for kind in signature(code).values()))
    words = re.findall(r"(?<![\w.:/×-])1 (?:x )?[a-z]+s\b", f"{render(why)}; {remedy(why)}")
    assert [word for word in words if word.split()[-1] not in ("is", "less", "has", "thousandths")] == []


def test_sentences_that_vary_with_their_arguments() -> None:
    held = Code.NO_ROOM(1, 7, ("n1", "n2"), (3, 4))
    assert render(held) == "no room for the 1 device of job 7 on n1, n2; held by jobs 3, 4"
    assert render(Code.NO_ROOM(2, 7, (), ())) == "no room for the 2 devices of job 7 on the other nodes"
    assert render(Code.NEVER_FITS(9, ("a", "b"), "one-node", 8)) == "needs 9 devices of type a, b; one node has 8"
    assert render(Code.NODES_TOO_SMALL(1, 3, ("n1",), 2)) == "job 1 has 3 devices; n1 has 2 even when empty"
    assert render(Code.DEVICES_SHORT(1, "cpu", 1)) == "needs 1 cpu device, 1 is free"
    assert render(Code.DEVICES_SCATTERED(2, "", 3, 1)) == "needs 2 devices together; 3 are free, at most 1 on one node"
    assert render(Code.PINNED_BUSY("n1", 0, 1)) == "its memory is frozen on n1, where 0 are free; it needs 1 device"
    assert render(Code.TOO_FEW_DEVICES(1, 0)) == "needs 1 device; there are 0"
    assert render(Code.CPUS_TOO_FEW(1, 1000, 0)) == "its rank needs 1 host CPU; the pool has room for 0 of them"
    assert render(Code.CORDONED(1, 2_000_000, Code.WAITS_FOR_DEVICES())).startswith(
        "refused 1 launch in a row, retried"
    )
    assert remedy(Code.TOO_CROWDED(600, 1, 16, 40, 16)).startswith(
        "ask for at least 40 devices (-g 40), start 16 ranks"
    )
    assert remedy(Code.ONE_OF_SPECS(3, Code.NEVER_FITS(9, (), "any", 8))) == "the nearest that fits: -g 8"
    assert render(Code.OVERSUBSCRIBED("premium", 4500, 2, 444)).endswith("ask for 4.5 of 2 devices: while all of them run, "
        "the delivered GPU fraction is forecast near 0.44")  # fmt: skip
