"""``tide simulate`` as users type it: every option changes what comes out, and wrong ones say what to write."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.app.test_recorded import record
from tidewright.app.recorded import read
from tidewright.app.simulate import costs_of, rerun
from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.cli.shell import tide
from tidewright.model.job import JobSpec
from tidewright.sim.costs import FREE, Costs
from tidewright.sim.stream import open_lines

SMALL = ("-t", "synthetic:jobs=60,load=1.2,max=1h,sizes=1:6/2:2/4:1", "-c", "2x4")


def call(*words: str, base: tuple[str, ...] = SMALL) -> Result:
    return CliRunner().invoke(tide, ["simulate", *base, *words])


def results(*words: str, base: tuple[str, ...] = SMALL) -> list[dict[str, Any]]:
    ran = call(*words, "-o", "json", base=base)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def refusal(*words: str) -> UsageError:
    error = call(*words).exception
    assert isinstance(error, UsageError) and error.remedy
    return error


PLAIN = ("-p", "srtf")


@pytest.mark.parametrize(
    "words",
    [
        ("--profile", "default:round=6m"), ("--costs", "launch=60s"), ("--load", "0.5"), ("--tiers", "premium:1"),
        ("--estimates", "none"), ("--estimates", "2"), ("--estimate-error", "2"), ("--profile", "ideal"), ("--window", "2/3"),
    ],
)  # fmt: skip
def test_every_option_changes_the_outcome(words: tuple[str, ...]) -> None:
    assert results(*PLAIN, *words) != results(*PLAIN)


def test_the_same_run_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{at}.csv.gz" for at in range(2)]
    for path in paths:
        results("-p", "fifo,srtf", "--profile", "default:ties=shuffled", "--jobs-out", str(path))
    assert paths[0].read_bytes()[20:] == paths[1].read_bytes()[20:]


def test_a_policy_that_is_named_twice_runs_once() -> None:
    assert [one["policy"] for one in results("-p", "fifo,srtf,fifo")] == ["fifo", "srtf"]


@pytest.mark.parametrize("load", ["nan", "-1", "0", "1e9"])
def test_loads_are_checked_before_a_trace_is_read(load: str) -> None:
    error = call("--load", load, base=("-t", "nowhere.csv", "-c", "1x1")).exception
    assert isinstance(error, UsageError) and "not above 0 and at most 1000" in error.message


def test_costs_go_before_the_profiles(tmp_path: Path) -> None:
    free = results(*PLAIN, "--profile", "helios", "--costs", "free")
    ideal = results(*PLAIN, "--profile", "ideal:tick=1s,placement=consolidate,splice=no")
    assert free[0]["jct_mean_s"] == ideal[0]["jct_mean_s"]
    assert free[0]["profile"] == "helios"


def test_one_row_for_each_job_and_policy(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    summed = results("-p", "fifo,srtf", "--profile", "default:refuse=yes", "--jobs-out", str(path))
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 120
    for result in summed:
        mine = [row for row in rows if row["policy"] == result["policy"]]
        done = [row for row in mine if row["state"] == "completed"]
        refused = [row["reason"] for row in mine if row["state"] == "refused"]
        assert (len(done), len(refused)) == (result["completed"], result["refused"])
        assert {why: refused.count(why) for why in result["refusals"]} == result["refusals"]
        assert sum(float(row["jct_s"]) for row in done) / len(done) == pytest.approx(result["jct_mean_s"])
        assert all(float(row["jct_s"]) == pytest.approx(float(row["end_s"]) - float(row["submit_s"])) for row in done)
        assert all(float(row["wait_s"]) >= 0 and 0 < float(row["delivered"]) <= 1 for row in done)
        assert not any(row["end_s"] and not row["start_s"] for row in mine)


def test_rows_have_the_run_time_and_what_follows_from_it(tmp_path: Path) -> None:
    trace, path = tmp_path / "t.csv", tmp_path / "jobs.csv"
    trace.write_text("id,submit,duration,devices\na,0,1,8\nb,0,80000,8\nc,5,1,8\nd,5,10,9\ne,6,320000000,8\n")
    results("-p", "fifo", "--jobs-out", str(path), base=("-t", str(trace), "-c", "1x8"))
    rows = {row["id"]: row for row in csv.DictReader(path.open())}
    assert [row["duration_s"] for row in rows.values()] == ["1", "80000", "1", "10", "320000000"]
    assert [row["state"] for row in rows.values()] == [*["completed"] * 3, "refused", "unfinished"]
    for name in "abc":
        row = rows[name]
        assert float(row["delivered"]) == pytest.approx(float(row["duration_s"]) / float(row["jct_s"]), rel=1e-12)
    running = rows["e"]
    assert (running["attempts"], running["end_s"], running["delivered"]) == ("1", "", "")
    assert float(running["start_s"]) - 6 == float(running["wait_s"]) > 80_000


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz"])
def test_rows_are_packed_as_the_name_says(tmp_path: Path, ending: str) -> None:
    plain, path = tmp_path / "jobs.csv", tmp_path / f"jobs.csv{ending}"
    for each in (plain, path):
        results("-p", "fifo", "--jobs-out", str(each))
    assert path.stat().st_size < plain.stat().st_size / 2
    with open_lines(path) as lines:
        assert "".join(lines) == plain.read_text()


@pytest.mark.parametrize("ending", [".bz2", ".zip", ".GZ"])
def test_other_packed_files_are_refused_before_the_run(tmp_path: Path, ending: str) -> None:
    error = refusal("--jobs-out", str(tmp_path / f"jobs.csv{ending}"))
    assert repr(ending) in error.message and ".zst" in str(error.remedy)


def test_the_load_is_that_of_the_jobs_that_the_cluster_admits(tmp_path: Path) -> None:
    """100 jobs of 100 s on one device, 1 s apart, and as many on 64, of which the cluster has 8."""
    mixed, small = tmp_path / "mixed.csv", tmp_path / "small.csv"
    rows = [f"{at},100,{devices}" for at in range(100) for devices in (64, 1)]
    mixed.write_text("\n".join(["submit,duration,devices", *rows]))
    small.write_text("\n".join(["submit,duration,devices", *rows[1::2]]))
    words = ("-p", "fifo", "--load", "0.5", "--profile", "ideal")
    ran = call(*words, base=("-t", str(mixed), "-c", "1x8"))
    assert "the load of 0.5 is that of 100 of 200 jobs, without those that the cluster refuses" in ran.stderr
    (both,) = results(*words, base=("-t", str(mixed), "-c", "1x8"))
    (alone,) = results(*words, base=("-t", str(small), "-c", "1x8"))
    assert (both["refused"], both["completed"]) == (100, 100)
    assert both["makespan_s"] == pytest.approx(alone["makespan_s"])
    assert alone["utilisation_arriving"] == pytest.approx(0.5, abs=0.05) and not alone["remarks"]
    mixed.write_text("\n".join(["submit,duration,devices", *rows[::2]]))
    error = call(*words, base=("-t", str(mixed), "-c", "1x8")).exception
    assert isinstance(error, UsageError) and "the cluster can hold none of its jobs" in error.message


def test_a_horizon_ends_the_run_and_says_what_it_left(tmp_path: Path) -> None:
    trace, path = tmp_path / "t.csv", tmp_path / "jobs.csv"
    trace.write_text("id,submit,duration,devices\na,0,3600,8\nb,10,3600,8\nc,9000,10,1\n")
    ran = call("-p", "fifo", "--horizon", "2h", "--jobs-out", str(path), base=("-t", str(trace), "-c", "1x8"))
    assert ran.exit_code == 0
    assert "fifo: 2 jobs had not ended at the horizon, after 2h00m, and are left out of the means" in ran.stderr
    assert "1 job was never submitted: the simulation ends after 2h00m" in ran.stderr
    rows = {row["id"]: (row["state"], row["reason"]) for row in csv.DictReader(path.open())}
    assert rows == {"a": ("completed", ""), "b": ("unfinished", "running"), "c": ("unfinished", "not submitted")}
    (result,) = results("-p", "fifo", "--horizon", "2h", base=("-t", str(trace), "-c", "1x8"))
    assert (result["makespan_s"], result["horizon_s"], result["unfinished"]) == (7200, 7200, 2)
    assert result["utilisation"] == result["utilisation_arriving"] == pytest.approx(1.0, abs=0.01)
    (whole,) = results("-p", "fifo", "--horizon", "3h", base=("-t", str(trace), "-c", "1x8"))
    assert (whole["completed"], whole["unfinished"]) == (3, 0)


def test_jobs_that_have_not_ended_say_where_they_are(tmp_path: Path) -> None:
    trace, path = tmp_path / "t.csv", tmp_path / "jobs.csv.gz"
    trace.write_text("id,submit,duration,devices\na,0,10,1\nb,0,320000000,8\nc,5,10,1\n")
    results("-p", "fifo", "--jobs-out", str(path), base=("-t", str(trace), "-c", "1x8"))
    with gzip.open(path, "rt") as lines:
        rows = {row["id"]: (row["state"], row["reason"]) for row in csv.DictReader(lines)}
    assert rows["a"] == ("completed", "")
    assert rows["b"] == ("unfinished", "running")
    assert rows["c"][0] == "unfinished" and rows["c"][1].startswith("queued")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--costs", "launch=soon"), "not a duration"),
        (("--costs", "learn"), "learn needs a journal"),
        (("--costs", "learn:/nowhere"), "no such journal"),
        (("--profile", "gavel:speed=3"), "speed: not a key"),
        (("--estimates", "some"), "estimates: 'some'"),
        (("--estimates", "11"), "not between 0 and 10"),
        (("--tiers", "gold:1"), "not one of premium"),
        (("--tiers", "premium:0.5/premium:0.5"), "premium is there twice"),
        (("--load", "-1"), "load -1"),
        (("--load", "0"), "load 0"),
        (("--window", "2"), "window '2'"),
        (("--window", "4/3"), "window 4/3"),
        (("--jobs-out", "nowhere/jobs.csv"), "no directory nowhere"),
        (("--horizon", "0"), "a horizon of 0"),
        (("--horizon", "soon"), "horizon: not a duration: 'soon'"),
        (("--horizon", "-1h"), "horizon: not a duration"),
        (("--horizon", "200y"), "horizon: not a duration"),
    ],
)
def test_wrong_options_say_what_to_write(words: tuple[str, ...], said: str) -> None:
    error = call(*words).exception
    assert said in str(error) and getattr(error, "remedy", "")


def test_costs_are_learnt_from_a_journal(tmp_path: Path) -> None:
    """Launches take a second in that journal, saves and restores were not measured."""
    path = record([(JobSpec(name=f"job{at}", command=("a",)), 5) for at in range(4)], 100).write(tmp_path / "j.jsonl")
    learnt = read(path).costs
    assert learnt.launch_us != Costs().launch_us and learnt.save_us == Costs().save_us
    assert costs_of(f"learn:{path}", FREE) == learnt
    assert results(*PLAIN, "--costs", f"learn:{path}") != results(*PLAIN)
    (own,), _ = rerun(path, "fifo")
    (free,), _ = rerun(path, "fifo", costs="free")
    (ideal,), _ = rerun(path, "fifo", profile="ideal")
    assert (ideal.profile, own.profile) == ("ideal", "default")
    assert free.jct_mean_s == ideal.jct_mean_s
    assert (own.jct_mean_s == free.jct_mean_s) == (learnt.launch_us == 0)
    out = tmp_path / "out.csv"
    words = ["replay", str(path), "-p", "fifo", "--costs", "launch=7s", "--jobs-out", str(out)]
    ran = CliRunner().invoke(tide, words)
    assert ran.exit_code == 0, ran.output
    assert len(out.read_text().splitlines()) == 5
    assert all(float(row["wait_s"]) >= 7 for row in csv.DictReader(out.open()))


def test_what_took_various_times_is_learnt_as_a_distribution(tmp_path: Path) -> None:
    from tidewright.app.recorded import _Measured
    from tidewright.drive.record import StepRecord
    from tidewright.engine.commands import Launch
    from tidewright.engine.events import Checkpointed, Resumed, Started, Suspended

    measured = _Measured()
    for job, took in enumerate((2, 4, 9)):
        for attempt, slower in ((1, 1), (2, 10)):
            at = (100 * job + 50 * attempt) * SECOND
            measured.observe(StepRecord(1, at, [], [Launch(job, attempt, ())]))
            measured.observe(StepRecord(2, at + took * slower * SECOND, [Started(job, attempt)], []))
        events = [Suspended(job, 2, took), Resumed(job, 2, 5), Checkpointed(job, 2, 1, 7 * took)]
        measured.observe(StepRecord(3, at, events, []))
    costs = measured.costs()
    points = [
        getattr(getattr(costs, f"{name}_us"), "points_us", None) for name in ("launch", "restart", "save", "checkpoint")
    ]
    assert points == [
        (2 * SECOND, 4 * SECOND, 9 * SECOND), (20 * SECOND, 40 * SECOND, 90 * SECOND), (2, 4, 9), (14, 28, 63),
    ]  # fmt: skip
    assert costs.restore_us == 5
