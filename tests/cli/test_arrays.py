"""What commands print of arrays."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.base.errors import NotFound, Unreachable
from tidewright.cli import words
from tidewright.wire import api

from .stub import NOW, Terminal, running, waiting

MEMBER = running(id=13, name="sweep[1]", array=12, array_index=1, array_limit=4)
REST = waiting(
    id=16, name="sweep", array=12, array_index=4, array_limit=4, array_waiting="4-99", state="held", reason="ArrayLimit"
)


def test_a_list_has_a_row_for_those_that_wait(tide: Terminal) -> None:
    tide.stub.listing = (MEMBER, REST, running(id=200))
    lines = tide("ps").out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "12_1", "12_[4-99%4]", "200"]
    assert "(ArrayLimit)" in lines[2] and tide("ps", "-o", "name").out == "12_1\n12_[4-99%4]\n200\n"
    tide("ps")
    assert tide.stub.calls[-1][1]["collapse"] is True
    for words_ in (("-r",), ("--array",), ("-o", "json")):
        tide("ps", *words_)
        assert tide.stub.calls[-1][1]["collapse"] is False
    assert '"array": 12' in tide("ps", "-o", "json").out


def test_what_names_a_job_to_a_command() -> None:
    unlimited = waiting(array=12, array_index=4, array_waiting="4,6")
    assert [words.job_ref(job) for job in (running(), MEMBER, REST, unlimited)] == [
        "17",
        "12_1",
        "12_[4-99%4]",
        "12_[4,6]",
    ]


def test_a_suspended_array_says_who_had_devices(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for jobs, without, said in (
        ((12, 13, 14), 2, "each of 3 members of array 12 is suspended: 1 releases its devices, 2 had none"),
        ((12, 13), 2, "each of 2 members of array 12 has no devices, and is kept from starting"),
        ((12, 13), 0, "each of 2 members of array 12 is being suspended"),
        ((), 1, "job 12 has no devices, and is kept from starting"),
    ):
        reply = api.ActionReply(job=12, array=12 if jobs else 0, jobs=jobs, waiting=without)
        monkeypatch.setattr(tide.stub, "suspend", lambda ref, until=0, reply=reply: reply)
        assert tide("suspend", "12").out == f"{said}; tide resume 12 ends it\n"


def test_logs_of_an_array_say_nothing_of_ranks(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rank 0 of 4" in tide("logs", "17").err
    array = api.ArrayView(id=12, name="sweep", size=2)
    monkeypatch.setattr(tide.stub, "lookup", lambda ref: api.JobReply(job=MEMBER, array=array, now=NOW))
    assert not tide("logs", "12").err


def _left(*indices: int) -> tuple[api.MemberView, ...]:
    return tuple(api.MemberView(job=12 + at, index=at, state="running", why="it is pinned") for at in indices)


@pytest.mark.parametrize(
    ("reply", "code", "out", "err"),
    [
        (api.ActionReply(job=12, array=12, jobs=(12, 13)), 0, "each of 2 members of array 12 is being suspended; tide resume 12",
         ""),
        (api.ActionReply(job=12, array=12, jobs=(12,), refused=3, members=_left(1, 2)), 1, "each of 1 member of array 12 is",
         "12_1 is left as it is (running): it is pinned\n12_2 is left as it is (running): it is pinned\nso is 1 more\n"),
        (api.ActionReply(job=15), 0, "job 15 is being suspended; tide resume 15 ends it", ""),
    ],
)  # fmt: skip
def test_what_was_done_to_the_members(
    tide: Terminal, monkeypatch: pytest.MonkeyPatch, reply: Any, code: int, out: str, err: str
) -> None:
    monkeypatch.setattr(type(tide.stub), "suspend", lambda *_: reply, raising=False)
    said = tide("suspend", "12" if reply.array else "15")
    assert (said.code, said.err) == (code, err) and said.out.startswith(out)


def test_a_member_is_resumed_by_the_name_it_was_given(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tide.stub), "suspend", lambda *_: api.ActionReply(job=12), raising=False)
    assert "tide resume 12_0 ends it" in tide("suspend", "12_0").out, "12 would be the whole array"


def test_a_summary_of_an_array(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    members = (
        api.MemberView(job=12, index=0, state="failed", exit_code=3, why="rank 0: exit code 3"),
        api.MemberView(job=13, index=1, state="running"), api.MemberView(job=14, index=2, state="running"),
    )  # fmt: skip
    array = api.ArrayView(id=12, name="sweep", size=3, limit=2, states={"failed": 1, "running": 2}, members=members)
    reply = api.JobReply(job=MEMBER, array=array, now=1)
    monkeypatch.setattr(type(tide.stub), "lookup", lambda *_: reply)
    said = " ".join(tide("show", "12").out.split())
    for part in ("array 12 (sweep)", "members 3 of 3", "2 at once", "running 2: [1-2]", "[0] job 12 failed, exit code 3: rank 0",
                 "tide show 12_1"):  # fmt: skip
        assert part in said
    shown = tide("show", "12", "-o", "json").out
    assert '"array": {' in shown and '"job": {' in shown


def test_the_end_of_an_array(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = (api.MemberView(job=14, index=2, state="failed", exit_code=7, why="rank 0: signal"),)
    reply = api.WaitReply(
        job=12, array=12, state="failed", final=True, exit_code=7, failed=1, members=bad, why="1 of 3 members did not"
    )
    monkeypatch.setattr(type(tide.stub), "wait", lambda *_, **__: reply)
    monkeypatch.setattr(type(tide.stub), "job", lambda *_: MEMBER)
    said = tide("wait", "12")
    assert said.code == 7
    assert (
        said.err == "array 12: 1 of 3 members did not, exit code 7\n  [2] job 14 failed, exit code 7: rank 0: signal\n"
    )


def test_an_array_is_submitted_and_waited_for_as_one(tide: Terminal) -> None:
    said = tide("run", "--array", "0-3,7", "--array-limit", "2", "--wait", "--", "sleep", "{index}")
    assert said.out == "submitted array 20 (sleep): 5 members, 20_[0-3,7]\n"
    assert [spec.array.limit for spec in tide.stub.submitted if spec.array] == [2] * 5
    assert [call[1] for call in tide.stub.calls if call[0] == "wait"] == ["20"]
    wrong = tide("run", "--array-limit", "2", "--", "true")
    assert wrong.code == 2 and "--array 0-9 --array-limit 4" in wrong.err


def test_options_of_submit_are_sent(tide: Terminal, tmp_path: Any) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2\necho $1\n")
    said = tide(
        "submit", "-g", "1", "-J", "x", "-d", "afterok:prep", "-p", "gpu", "--exclusive", "job.sh", "-J", "its-own"
    )
    spec = tide.stub.submitted[-1]
    assert (spec.devices, spec.name, spec.command[-2:]) == (1, "x", ("-J", "its-own"))
    assert tide.stub.calls[0] == ("submit", 1, False, "afterok:prep")
    assert "note: -J after job.sh goes to the script" in said.err
    assert "--partition is not honoured" in said.err and "--exclusive is not honoured" in said.err
    assert tide("submit", "--test-only", "job.sh").out.startswith("would be launched") and len(tide.stub.submitted) == 1
    assert (
        tide("submit", "-g", "1", "--wrap", "echo hi | cat").code == 0
        and "echo hi | cat" in tide.stub.submitted[-1].command[2]
    )
    for arguments, said_ in ((("--wrap", "x", "job.sh"), "leave out job.sh"), ((), "no file to submit")):
        wrong = tide("submit", *arguments)
        assert wrong.code == 2 and said_ in wrong.err


def test_the_limit_of_an_array_is_changed(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def limit(_: Any, ref: str, most: int) -> api.ActionReply:
        asked.append((ref, most))
        if ref == "17":
            raise NotFound("no array 17", "list jobs")
        return api.ActionReply(job=12)

    monkeypatch.setattr(type(tide.stub), "array_limit", limit, raising=False)
    assert tide("update", "sweep", "--array-limit", "4").out == "array 12 runs 4 members at once\n"
    said = tide("update", "17", "12", "--array-limit", "0")
    assert (said.code, said.out) == (1, "array 12 has no limit\n") and "no array 17" in said.err
    assert asked == [("sweep", 4), ("17", 0), ("12", 0)]


def test_an_array_that_is_submitted_in_part_is_named(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidewright.app.jobspec import submission

    whole = tide.stub.submit
    asked: list[int] = []

    def submit(specs: Any, **more: Any) -> Any:
        asked.append(len(specs))
        if len(asked) > 1:
            raise Unreachable("no controller answers", "start it with tide up")
        return whole(specs, **more)

    monkeypatch.setattr(submission, "batches", lambda specs: [specs[:3], specs[3:]])
    monkeypatch.setattr(tide.stub, "submit", submit)
    said = tide("run", "--array", "0-4", "--", "true")
    assert said.code == 5 and "3 of 5 members were submitted as array" in said.err and "tide cancel" in said.err
