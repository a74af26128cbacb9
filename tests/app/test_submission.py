"""What is checked before anything is sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from tidewright.app.jobspec.ranks import default_ranks, ranks_note
from tidewright.app.jobspec.submission import batches, check_program, no_text, script_of, submitter
from tidewright.base.errors import NotFound, Unreachable, UsageError
from tidewright.live.api.submission import read
from tidewright.model.job import ArrayMember, JobSpec
from tidewright.wire.api import MAX_BODY, SubmitRequest
from tidewright.wire.calls.submit_request import submit_request
from tidewright.wire.client import Client


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --x y", "train.py"),
        ("python3.12 -u -X dev -W ignore train.py", "train.py"),
        ("python -m torch.distributed.run train.py", None),
        ("python -c print(1) train.py", None),
        ("python -uc print(1)", None),
        ("/opt/venv/bin/python a/b.py", "a/b.py"),
        ("bash -e run.sh", "run.sh"),
        ("torchrun --nproc-per-node 4 train.py --x", "train.py"),
        ("./train", None),
        ("echo train.py", None),
    ],
)
def test_the_script_of_a_command(command: str, script: str | None) -> None:
    assert script_of(command.split()) == script


def job(folder: Path, *command: str) -> JobSpec:
    return JobSpec(command=command, workdir=str(folder), env={"PATH": "/usr/bin:/bin"})


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for command, text in (
        (("sh", "missing.sh"), "missing.sh"),
        (("no-such-program",), "no such program: no-such-program"),
        (("./missing",), "no such file"),
    ):
        with pytest.raises(NotFound, match=text):
            check_program(job(tmp_path, *command))
    with pytest.raises(UsageError, match="may not be executed"):
        check_program(job(tmp_path, "./plain"))
    with pytest.raises(NotFound, match="no such directory"):
        check_program(job(tmp_path / "gone", "sh"))
    check_program(job(tmp_path, "sh", "plain"))


def test_long_arrays_are_sent_in_pieces_and_none_is_lost() -> None:
    specs = [JobSpec(name=f"a[{at}]", command=("x", str(at) * 100_000)) for at in range(100)]
    pieces = list(batches(specs))
    assert len(pieces) > 1 and [one for piece in pieces for one in piece] == specs
    assert not list(batches([]))


def test_an_array_of_thousands_of_members_with_a_long_environment_is_one_request() -> None:
    """A controller that is killed between two requests keeps a part of an array."""
    env = {f"VARIABLE_{at}": "x" * 100 for at in range(80)}
    specs = [
        JobSpec(name=f"a[{at}]", command=("x",), env={**env, "ARRAY_INDEX": str(at)}, array=ArrayMember("a", at, 2_000))
        for at in range(2_000)
    ]
    (whole,) = batches(specs)
    body = msgspec.json.encode(submit_request(whole, (), "op", False))
    assert len(body) < MAX_BODY
    assert asyncio.run(read(body)).specs == tuple(specs)


def test_a_spec_larger_than_a_request_is_refused_with_its_size() -> None:
    with pytest.raises(UsageError, match="larger than 6291456 bytes"):
        list(batches([JobSpec(name=f"a[{at}]", command=("x",), env={"BIG": "y" * MAX_BODY}) for at in range(2)]))


def test_a_small_array_is_sent_as_earlier_controllers_know_it() -> None:
    specs = [JobSpec(command=("x",), env={"A": "1", "B": str(at)}) for at in range(3)]
    assert submit_request(specs, (), "op", False) == SubmitRequest(specs=tuple(specs), op_id="op")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (("python", "train.py"), 4),
        (("./train",), 4),
        (("torchrun", "--nproc-per-node", "4", "train.py"), 1),
        (("/venv/bin/torchrun", "train.py"), 1),
        (("python", "-m", "torch.distributed.run", "train.py"), 1),
        (("accelerate", "launch", "train.py"), 1),
        (("bash", "-c", "cd x\ntorchrun train.py"), 1),
        (("python", "accelerate/train.py"), 4),
    ],
)
def test_one_rank_per_device_unless_the_program_starts_its_own(command: tuple[str, ...], ranks: int) -> None:
    assert default_ranks(command, 4) == ranks
    assert ("--ranks 1" in ranks_note(JobSpec(command=command, devices=4, ranks=ranks))) == (ranks == 4)
    assert not ranks_note(JobSpec(command=command))


def test_a_large_request_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller takes seconds for thousands of jobs; a submission that timed out has happened all the same."""
    given: list[float] = []

    def stop(self: Client, method: str, path: str, body: bytes | None, timeout: float) -> None:
        given.append(timeout)
        raise Unreachable("no", "")

    monkeypatch.setattr(Client, "_request", stop)
    for many in (1, 10_000):
        with pytest.raises(Unreachable):
            Client(timeout=30).submit([JobSpec(command=("x",))] * many)
    assert given == [30.01, 130.0]


def test_variables_that_are_no_text_do_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "caf\udce9")
    monkeypatch.setenv("PLAIN", "café")
    assert no_text(os.environ) == ["ODD"]
    environ = submitter().environ
    assert "ODD" not in environ and environ["PLAIN"] == "café"
    list(batches([JobSpec(command=("true",), env=environ)]))
