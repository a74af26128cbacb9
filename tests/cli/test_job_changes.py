"""tide update, hold, release, requeue, and cancel by filters, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.app.jobspec.fields import limit_change, yes_or_no
from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, MINUTE
from tidewright.cli.jobs import selection as choosing
from tidewright.model.job import JobSpec
from tidewright.model.spec_changes import SpecChanges
from tidewright.wire.calls.job_changes import BulkReply, RefusedJob, Selection, UserSelection

from .stub import Terminal, running

TWELVE = Selection(
    jobs=tuple(range(1, 13)),
    users=(
        UserSelection(user="ada", jobs=10, states={"queued": 8, "running": 2}),
        UserSelection(user="", jobs=2, states={"held": 2}),
    ),
)
SUMMARY = "cancel 12 jobs: 10 of ada (8 queued, 2 running), 2 of no known user (2 held)"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """stdin is a terminal, on which questions are answered; returns them."""
    asked: list[str] = []

    def confirm(text: str, err: bool) -> bool:
        assert err, "what is on stdout may go into a pipe"
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(choosing.click, "confirm", confirm)
    return asked


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (["--sla", "premium", "--weight", "2"], SpecChanges(tier="premium", weight=2.0)),
        (["--time", "2h"], SpecChanges(max_duration_us=2 * HOUR)),
        (["--time", "none"], SpecChanges(max_duration_us=0)),
        (["-t", "+1h"], SpecChanges(limit_by_us=HOUR)),
        (["--time", "-30m"], SpecChanges(limit_by_us=-30 * MINUTE)),
        (["--deadline", "4h", "--expect", "none"], SpecChanges(deadline_us=4 * HOUR, expected_us=0)),
        (["--name", "n", "--team", "t", "--retries", "0"], SpecChanges(name="n", team="t", retries=0)),
    ],
)
def test_update_asks_for_what_is_named_and_nothing_else(
    tide: Terminal, options: list[str], changes: SpecChanges
) -> None:
    said = tide("update", "17", "later", *options)
    assert (said.code, said.out) == (0, "job 17 is updated\njob 18 is updated\n")
    assert tide.stub.calls == [("update", "17", changes), ("update", "later", changes)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to change"),
        (["-g", "4"], "tide scale JOB DEVICES"),
        (["--to", "n1"], "tide migrate JOB --to NODE"),
        (["--mem", "4GiB"], "cancel it and submit it anew"),
        (["--time", "+0"], "changes nothing"),
        (["--time", "soon"], "not a duration"),
        (["--sla", "gold"], "gold"),
        (["--weight", "nan"], "not a number"),
    ],
)
def test_update_says_what_it_does_not_change_and_what_does(tide: Terminal, options: list[str], said: str) -> None:
    found = tide("update", "17", *options)
    assert found.code == 2 and said in found.err and not tide.stub.calls


def test_limits_and_truths() -> None:
    assert limit_change("0") == limit_change("unlimited") == (0, 0)
    assert [yes_or_no(word) for word in ("true", "On", "no")] == [True, True, False]
    with pytest.raises(UsageError, match="neither true nor false"):
        yes_or_no("perhaps")


def test_hold_release_and_requeue_of_named_jobs_ask_no_question(tide: Terminal) -> None:
    assert tide("hold", "18").out == "job 18 is held; tide release 18 lets it start\n"
    assert tide("release", "18").out == "job 18 may start\n"
    assert tide("requeue", "17").out == "job 17 is being requeued\n"
    assert tide("requeue", "-H", "--from-image", "17").out == (
        "job 17 is being requeued, and held; tide release 17 lets it start\n"
    )
    assert tide.stub.calls == [
        ("hold", "18"), ("release", "18"), ("requeue", "17", False, False), ("requeue", "17", True, True),
    ]  # fmt: skip
    assert tide("hold", "18", "nope").code == 1


@pytest.mark.parametrize("command", ["cancel", "hold", "release", "requeue"])
def test_jobs_or_filters_but_not_both_and_not_neither(tide: Terminal, command: str) -> None:
    for given in ([], ["-y"], ["17", "--all"], ["17", "--user", "ada"]):
        said = tide(command, *given)
        assert said.code == 2 and "--user, --team, --name, --state or --all" in said.err
    assert not tide.stub.calls


def test_a_question_says_how_many_jobs_of_whom(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    tide.stub.selection, tide.stub.bulk_reply = TWELVE, BulkReply(done=TWELVE.jobs)
    asked = on_a_terminal(monkeypatch, True)
    said = tide("cancel", "--user", "ada,bob", "--state", "queued", "--name", "x", "--team", "t")
    assert (said.code, said.out) == (0, "12 jobs are being cancelled\n") and asked == [f"{SUMMARY}?"]
    filters = {"user": "ada,bob", "team": "t", "name": "x", "state": "queued"}
    assert tide.stub.calls == [("select", "cancel", filters), ("bulk", "cancel", TWELVE.jobs, {})]


def test_a_no_leaves_everything_as_it_is(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    tide.stub.selection = TWELVE
    on_a_terminal(monkeypatch, False)
    said = tide("cancel", "--all")
    assert said.code == 1 and said.err == "nothing was done\n" and [call[0] for call in tide.stub.calls] == ["select"]


def test_without_a_terminal_yes_is_needed(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    tide.stub.selection, tide.stub.bulk_reply = TWELVE, BulkReply(done=TWELVE.jobs)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    said = tide("cancel", "--all")
    assert said.code == 2 and SUMMARY in said.err and "--yes" in said.err
    assert [call[0] for call in tide.stub.calls] == ["select"]
    assert tide("cancel", "--all", "-y").out == "12 jobs are being cancelled\n"


def test_what_is_left_out_and_what_is_refused_is_said(tide: Terminal) -> None:
    tide.stub.selection = Selection(jobs=(1,), others=2, replicas=1)
    refused = tuple(RefusedJob(job=n, error=f"job {n} is running", remedy=f"tide suspend {n}") for n in range(12))
    tide.stub.bulk_reply = BulkReply(done=(1,), ended=3, refused=refused)
    said = tide("hold", "--all", "-y")
    assert said.code == 1 and said.out == "1 job is held; tide release lets it start\n"
    lines = said.err.splitlines()
    assert lines[0] == "2 jobs match and are left out: in no state in which tide hold does anything"
    assert lines[1] == "1 replica of services is left out; end a service with tide serve delete"
    assert "3 jobs had ended by then" in lines and "error: job 9 is running" in lines
    assert lines[-1] == "and 2 more were refused" and "error: job 10 is running" not in lines


def test_no_match_is_no_failure(tide: Terminal) -> None:
    said = tide("requeue", "--state", "running")
    assert said.code == 0 and said.err == "no job to requeue matches; see them with tide ps\n" and not said.out


def test_options_of_requeue_are_those_of_all_chosen_jobs(tide: Terminal) -> None:
    tide.stub.selection = TWELVE
    tide("requeue", "--all", "-y", "--hold")
    assert tide.stub.calls[-1] == ("bulk", "requeue", TWELVE.jobs, {"from_image": False, "hold": True})


def test_a_long_list_of_users_is_cut() -> None:
    users = tuple(UserSelection(user=f"u{n}", jobs=1, states={"queued": 1}) for n in range(10))
    assert choosing.summary(Selection(jobs=tuple(range(10)), users=users)).endswith("u7 (1 queued), 2 of 2 other users")


def test_submitted_to_be_held(tide: Terminal, tmp_path: Path) -> None:
    said = tide("run", "--hold", "--", "true")
    assert tide.stub.submitted[-1].hold and said.err.endswith("held; tide release 20 lets it start\n")
    assert "held" not in tide("run", "--hold", "--parsable", "--", "true").err
    tide("run", "--", "true")
    assert not tide.stub.submitted[-1].hold
    assert "tide release 23 lets it start" in tide("run", "-H", "--array", "0-2", "--", "true").err
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -H --gres=gpu\ntrue\n")
    (tmp_path / "job.yaml").write_text("command: 'true'\nhold: true\n---\ncommand: 'true'\n")
    tide("submit", "job.sh")
    assert tide.stub.submitted[-1].hold
    tide("submit", "job.yaml")
    assert [spec.hold for spec in tide.stub.submitted[-2:]] == [True, False]
    tide("submit", "--hold", "job.yaml")
    assert [spec.hold for spec in tide.stub.submitted[-2:]] == [True, True]


def test_show_says_that_a_promise_is_of_several_tiers(tide: Terminal) -> None:
    job = running(target=0.31, spec=JobSpec(command=("a",), workdir="/"))
    tide.stub.listing = (job,)
    assert (
        "premium, promised 31% in the mean since its submission, by the tiers that it has had" in tide("show", "17").out
    )
    tide.stub.listing = (running(target=0.0),)
    assert "premium, promised 0% in the mean" in tide("show", "17").out
    tide.stub.listing = (running(),)
    assert "premium, promised 95%\n" in tide("show", "17").out
