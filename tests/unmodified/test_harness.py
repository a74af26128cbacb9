"""The harness must see a lost, doubled or changed step, and the digest every bit."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.unmodified.harness import LEFT_OUT, Outcome, differences, read, run_plain
from tests.unmodified.programs import EXAMPLES, PROGRAMS, Program

sys.path.insert(0, str(EXAMPLES))

import digest as digest_module

SHA = "0" * 64


def log(*steps: int, rank: int = 0, sha: str = SHA) -> str:
    lines = [f"step {step} loss {float(step).hex()} rank {rank}" for step in steps]
    return "\n".join([*lines, "a line of the program's own", f"sha256 {sha} rank {rank}", ""])


def test_equal_runs_do_not_differ() -> None:
    assert differences(read([log(1, 2, 3), log(1, 2, rank=1)]), read([log(1, 2, rank=1), log(1, 2, 3)])) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (log(1, 3), "step 2 is lost"),
        (log(1, 2, 2, 3), "step 2 came 2 times"),
        (log(1, 3, 2), "instead of"),
        (log(1, 2), "step 3 is lost"),
        (log(1, 2, 3, sha="1" * 64), "digest"),
        (log(1, 2, 3) + log(), "digest"),
        (log(1, 2, 3).replace(float(2).hex(), (2.0000001).hex()), "instead of"),
        ("", "digest ''"),
    ],
)
def test_a_difference_is_said(text: str, said: str) -> None:
    found = differences(read([log(1, 2, 3)]), read([text]))
    assert any(said.replace("''", "None") in each for each in found), found


def test_a_plain_run_without_digest_proves_nothing() -> None:
    assert differences(Outcome({}, {}), Outcome({}, {}))


def test_lines_of_torchrun_are_read_with_their_prefix() -> None:
    prefixed = "\n".join(f"[default0]:{line}" for line in log(1, 2).splitlines())
    assert differences(read([log(1, 2)]), read([prefixed])) == []


def test_the_digest_sees_every_bit_and_every_draw(capsys: pytest.CaptureFixture[str]) -> None:
    def of(value: object, seed: int = 0, losses: tuple[float, ...] = (0.5,)) -> str:
        made = digest_module.Digest(0)
        kept = random.getstate()
        random.seed(seed)
        for loss in losses:
            made.step(loss)
        made.finish(value)
        random.setstate(kept)
        return capsys.readouterr().out.split()[-3]

    numpy = pytest.importorskip("numpy")
    zeros = numpy.zeros(3)
    changed = numpy.array([0.0, 0.0, 5e-324])
    values = [
        zeros,
        changed,
        zeros.astype("f4"),
        zeros.reshape(3, 1),
        [0.0, 0.0, 0.0],
        {"a": zeros},
        {"b": zeros},
        None,
    ]
    found = [of(value) for value in values] + [of(zeros, seed=1), of(zeros, losses=(0.5, 0.5)), of(zeros, losses=())]
    assert len(set(found)) == len(found)
    assert of(zeros) == of(zeros.copy())
    with pytest.raises(TypeError):
        of(object())


def test_no_program_knows_of_us() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text().lower()
        assert "tide" not in text, path.name
        assert not LEFT_OUT.match(text)
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names)
    used = {word.format(python="", here=EXAMPLES) for program in PROGRAMS for word in program.command}
    for path in sorted(EXAMPLES.glob("*.py")):
        assert str(path) in used or path.name == "digest.py", f"{path.name} is run by nobody"


def test_a_port_that_was_taken_meanwhile_is_tried_again(tmp_path: Path) -> None:
    script, seen = tmp_path / "program.py", tmp_path / "seen"
    script.write_text(
        "import pathlib, sys\n"
        "if not pathlib.Path(sys.argv[1]).exists():\n"
        "    pathlib.Path(sys.argv[1]).touch()\n"
        "    sys.exit('OSError: [Errno 98] Address already in use')\n"
        "print('sha256', '0' * 64, 'rank', 0)\n"
    )
    program = Program("program", ("{python}", str(script), str(seen)))
    assert run_plain(program, 1, tmp_path / "plain").digests == {0: "0" * 64}
