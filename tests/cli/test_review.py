"""What a review of the command line found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tidewright.cli.jobs.following import summed_up
from tidewright.cli.pool.doctor import _kept
from tidewright.live.journal.doctor import Report
from tidewright.wire import api

from .stub import NOW, Terminal


@pytest.mark.parametrize("searched", [True, False])
def test_why_says_when_no_change_is_known(tide: Terminal, searched: bool) -> None:
    view = replace(tide.stub.why("later"), change="", changes=(), searched=searched)
    tide.stub.why = lambda ref, changes: view  # type: ignore[method-assign]
    assert ("no single change that was tried" in tide("why", "later").out) is searched


def test_why_says_what_was_tried_and_what_to_do_next(tide: Terminal) -> None:
    tried = api.CauseView("NoChangeStarts", {}, "not by itself; tried without success: more nodes")
    view = replace(tide.stub.why("later"), change="", changes=(), dead_end=tried, remedy="see when: tide eta 18")
    tide.stub.why = lambda ref, changes: view  # type: ignore[method-assign]
    said = " ".join(tide("why", "later").out.split())
    assert "would start it not by itself; tried without success: more nodes" in said
    assert "try see when: tide eta 18" in said


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"starts": None, "ends": None, "why": "held", "cause": api.CauseView("HeldByUser", {}, "")},
            "release it: tide resume 18",
        ),
        (
            {"starts": None, "ends": None, "why": "waits", "cause": api.CauseView("WaitsForHeld", {"held": 16}, "")},
            "see why that one is held: tide why 16",
        ),
        (
            {
                "starts": None,
                "ends": None,
                "why": "waits",
                "cause": api.CauseView(
                    "AlsoHeld",
                    {
                        "limit": api.CauseView("WaitsForHeld", {"held": 16}, ""),
                        "hold": api.CauseView("HeldBy", {"user": "a"}, ""),
                    },
                    "",
                ),
            },
            "see why that one is held: tide why 16; release it: tide release 18",
        ),
        ({"starts": None, "ends": None, "why": "waits"}, "see what it waits for: tide why 18"),
        ({"starts": api.TimeInterval(-1, -1, -1)}, "see what would start it: tide why 18"),
        ({}, ""),
    ],
)
def test_eta_without_a_start_says_what_to_do_next(tide: Terminal, changed: dict[str, Any], text: str) -> None:
    view = replace(tide.stub.eta("later"), **changed)
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    said = tide("eta", "later")
    assert text in said.err if text else "tide" not in said.err
    assert len(said.out.splitlines()) > 1


def test_eta_says_when_a_job_would_be_cancelled_instead(tide: Terminal) -> None:
    at = NOW + 10 * 60_000_000
    some = replace(
        tide.stub.eta("later"),
        cancelled=api.TimeInterval(at, at, at),
        cancelled_in=5,
        why="job 17 can no longer succeed",
    )
    tide.stub.eta = lambda ref: some  # type: ignore[method-assign]
    said = tide("eta", "later")
    assert "in 12m00s (8m00s to 25m00s)" in said.out
    assert "would be cancelled  in 5 of 20 futures, in 10m00s: job 17 can no longer succeed" in said.out
    every = replace(some, cancelled_in=20, starts=None, ends=None)
    tide.stub.eta = lambda ref: every  # type: ignore[method-assign]
    said = tide("eta", "later")
    assert said.out.splitlines()[1:] == ["  would be cancelled  in 10m00s: job 17 can no longer succeed"]
    assert "tide why 18" in said.err


@pytest.mark.parametrize(
    ("samples", "text"), [(1, "from 1 simulated future\n"), (5, "5 simulated futures; eight of ten")]
)
def test_eta_speaks_of_eight_of_ten_where_there_are_enough_futures(tide: Terminal, samples: int, text: str) -> None:
    view = replace(tide.stub.eta("later"), samples=samples)
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    assert text in tide("eta", "later").err


def test_eta_says_why_no_start_is_foreseen(tide: Terminal) -> None:
    never = api.TimeInterval(-1, -1, -1)
    view = replace(tide.stub.eta("later"), starts=never, ends=never, why="the nodes cannot hold it", samples=0)
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    said = tide("eta", "later")
    assert "starts  not within the time looked at: the nodes cannot hold it" in said.out
    assert "future" not in said.err


def test_eta_by_the_work_ahead_says_so(tide: Terminal) -> None:
    view = replace(tide.stub.eta("later"), method="work-ahead")
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    said = tide("eta", "later").err
    assert "no future was simulated up to its start in the time allowed" in said and "queue" not in said


def test_why_says_by_what_other_jobs_come_first(tide: Terminal) -> None:
    by, age = (
        api.CauseView(code, {}, text) for code, text in (("A", "3 with less work"), ("B", "2 submitted earlier"))
    )
    first = api.CauseView("FirstAhead", {}, "job 9: 1h of work; this job: 3h of work")
    view = replace(tide.stub.why("later"), ahead=5, order=(by, age), first_ahead=first)
    tide.stub.why = lambda ref, changes: view  # type: ignore[method-assign]
    said = tide("why", "later").out
    assert "5 jobs before it: 3 with less work, 2 submitted earlier" in said
    assert "first" in said and "job 9: 1h of work; this job: 3h of work" in said
    view = replace(view, summary="5 waiting jobs are served first (3 with less work, 2 submitted earlier)")
    assert tide("why", "later").out.count("3 with less work") == 1, "the summary says it already"


def test_why_with_a_change_says_only_that(tide: Terminal) -> None:
    said = tide("why", "later").out
    assert "2 devices instead of 4 (tide scale 18 2)" in said and "no single change" not in said
    assert "would start it" not in tide("why", "later", "--no-changes").out


def test_eta_shows_intervals(tide: Terminal) -> None:
    said = tide("eta", "later")
    assert "in 12m00s (8m00s to 25m00s)" in said.out and "in 2h10m (1h30m to 5h00m)" in said.out
    assert "20 simulated futures" in said.err


@pytest.mark.parametrize(
    ("durations", "finished", "text"),
    [
        ("similar", 3, "run times come from 3 finished jobs; wide interval"),
        ("similar", 1, "from 1 finished job;"),
        ("estimates", 0, "users' estimates, held against 0 finished jobs so far"),
        ("unknown", 2, "a general distribution, since there are only 2 finished jobs; wide interval"),
        ("unknown", 0, "a general distribution, since no job has finished yet; wide interval"),
        ("similar", 10, ""),
        ("", 0, ""),
    ],
)
def test_eta_says_from_how_few_finished_jobs_it_knows(tide: Terminal, durations: str, finished: int, text: str) -> None:
    view = replace(tide.stub.eta("later"), durations=durations, finished=finished)
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    said = tide("eta", "later").err
    assert text in said if text else "finished" not in said


KEPT = api.CalibrationView(starts=57, earlier=4, inside=47, later=6, median_error_us=-12_000_000)


@pytest.mark.parametrize(
    ("error_us", "middle"),
    [(-12_000_000, "12s earlier than its middle"), (90_000_000, "1m30s later than its middle"), (400, "at its middle")],
)
def test_eta_says_how_often_forecasts_have_held(tide: Terminal, error_us: int, middle: str) -> None:
    view = replace(tide.stub.eta("later"), calibration=replace(KEPT, median_error_us=error_us))
    assert "starts that were forecast" not in tide("eta", "later").err
    tide.stub.eta = lambda ref: view  # type: ignore[method-assign]
    said = tide("eta", "later").err
    assert "of the last 57 starts that were forecast, 82% fell into their interval (80% should)" in said
    assert "4 came before it, 6 after" in said and middle in said
    assert json.loads(tide("eta", "later", "-o", "json").out)["calibration"]["inside"] == 47


def test_top_says_how_often_forecasts_have_held(tide: Terminal) -> None:
    assert "starts that were forecast" not in tide("top").out
    view = replace(tide.stub.top(), calibration=KEPT)
    tide.stub.top = lambda: view  # type: ignore[method-assign]
    assert "82% fell into their interval (80% should)" in tide("top").out


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tide: Terminal) -> None:
    said = tide("simulate", "-t", "synthetic:jobs=20", "-c", "2x4", "--report", "nowhere/out.html")
    assert said.code == 2 and "no directory nowhere" in said.err and not said.out


@pytest.mark.parametrize(
    ("first", "last", "says"), [(0, 9, "turns 1 to 9"), (9, 9, "after turn 9"), (0, 0, "begins anew")]
)
def test_doctor_says_what_a_repair_kept(first: int, last: int, says: str) -> None:
    assert says in _kept(Report(sound=False, written=9, keep_from=first, keep_to=last))


@pytest.mark.parametrize(("last", "said"), [(0, True), (7, True), (9, False)])
def test_doctor_says_what_becomes_of_jobs_in_lost_turns(
    last: int, said: bool, tide: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Report(sound=False, written=9)
    monkeypatch.setattr("tidewright.app.health.examine", lambda state, step: ([], bad))
    monkeypatch.setattr("tidewright.app.health.repair", lambda state: (replace(bad, keep_to=last), state / "kept"))
    repaired = tide("doctor", "--repair")
    assert repaired.code == 0 and ("ended by tide up" in repaired.out) is said


def test_an_array_is_warned_of_once() -> None:
    warnings = ["ask for 7 of 4: near 0.57", "ask for 8.5 of 4: near 0.50", "job 9 can never run"]
    assert summed_up(warnings) == warnings[1:]
