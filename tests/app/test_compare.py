"""``tide compare`` as users type it, its runs in this process: cells, saved folders, and options that say what to write."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from tidewright.app.compare import run, save, worker
from tidewright.app.compare.cells import ComparisonQuestion, command_of, command_of_comparison, planned
from tidewright.app.compare.pool import Observer
from tidewright.app.compare.worker import RunDone, RunFailed, simulate_cell
from tidewright.app.simulate import Question
from tidewright.base.errors import Bug, UsageError
from tidewright.cli.shell import tide
from tidewright.sim.result import SimulationResult

SMALL = ("-t", "synthetic:jobs=40,load=1.2,max=1h,sizes=1:6/2:2/4:1", "-c", "2x4")
COMMANDS: list[Question] = []


def answer_here(questions: Sequence[Question], workers: int, observer: Observer) -> None:
    for at, question in enumerate(questions):
        COMMANDS.append(question)
        try:
            observer.done(at, RunDone(simulate_cell(question)))
        except ZeroDivisionError as error:
            observer.done(at, RunFailed(str(error)))


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    COMMANDS.clear()
    worker._loaded.cache_clear()  # of the test before; workers live as long as one comparison
    monkeypatch.setattr(run, "answer_all", answer_here)


def call(*words: str, base: tuple[str, ...] = SMALL, command: str = "compare") -> Result:
    return CliRunner().invoke(tide, [command, *base, *words])


def data(*words: str, base: tuple[str, ...] = SMALL) -> dict[str, Any]:
    ran = call(*words, "--json", base=base)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def refusal(*words: str, base: tuple[str, ...] = SMALL) -> UsageError:
    error = call(*words, base=base).exception
    assert isinstance(error, UsageError) and error.remedy, error
    return error


def without_series(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "series"}


def test_a_cell_has_the_figures_of_tide_simulate() -> None:
    words = ("-p", "srtf", "--tiers", "premium:1/basic:1", "--estimates", "0.5")
    (group,) = data(*words, "--loads", "0.8", "--costs", "60s", "--seeds", "7-7")["groups"]
    ((cell,),) = (policy["cells"] for policy in group["policies"])
    same = ("--load", "0.8", "--costs", "save=60s,restore=60s", "--seed", "7", "-o", "json")
    ran = call(*words, *same, command="simulate")
    assert cell["result"] == {**without_series(json.loads(ran.stdout)[0]), "series": cell["result"]["series"]}


def test_policies_by_loads_by_seeds_by_tiers_by_estimates_by_costs() -> None:
    found = data("-p", "sla,las", "--loads", "0.8,1.2", "--seeds", "2", "--tiers", "1,3", "--estimates", "exact,none",
                 "--costs", "1s,60s", "--jobs", "6")  # fmt: skip
    assert len(found["groups"]) == 16
    settings = [
        tuple(group["settings"][axis] for axis in ("load", "tiers", "estimates", "costs")) for group in found["groups"]
    ]
    assert settings == [
        (load, tiers, estimates, costs)
        for load in ("0.8", "1.2") for tiers in ("1", "3") for estimates in ("exact", "none") for costs in ("1s", "60s")
    ]  # fmt: skip
    sla, las = found["groups"][0]["policies"]
    assert [cell["replicate"] for cell in sla["cells"]] == ["seed 1", "seed 2"]
    assert sla["figures"]["jct_mean_s"]["half_width"] > 0
    # Las reads no estimates: its cells of both are one run.
    assert len(COMMANDS) == 2 * 2 * (2 * 2 + 2) * 2
    assert all(policy["jobs"]["completed"] == 12 for policy in (sla, las))


@pytest.mark.parametrize("policy", ["fifo", "las", "static"])
def test_policies_that_read_no_estimates_do_not(policy: str) -> None:
    """One run stands for all estimates of theirs."""
    question = Question(trace=SMALL[1], cluster=SMALL[3], policy=policy)
    results = [
        simulate_cell(msgspec.structs.replace(question, estimates=text)).result for text in ("exact", "1", "none")
    ]
    assert results[0] == results[1] == results[2]


def test_what_no_seed_changes_runs_once() -> None:
    base = ("-t", "philly:50", "-c", "2x4")
    ran = call("-p", "fifo", "--seeds", "3", base=base)
    assert len(COMMANDS) == 1
    assert "run once instead of 3 times" in ran.stderr and "±" not in ran.stdout


def test_one_seed_says_that_there_is_no_interval() -> None:
    ran = call("-p", "fifo")
    assert "one seed: there are no intervals; --seeds 3" in ran.stderr and "±" not in ran.stdout


def test_a_horizon_holds_for_every_cell_and_is_in_the_commands() -> None:
    ran = call("-p", "fifo,srtf", "--horizon", "30m")
    assert ran.exit_code == 0 and "unfinished at the horizon of 40 jobs are in no mean" in ran.stderr
    (group,) = data("-p", "fifo", "--horizon", "30m")["groups"]
    (cell,) = group["policies"][0]["cells"]
    assert (cell["result"]["horizon_s"], cell["result"]["makespan_s"]) == (1800, 1800)
    assert "--horizon 30m" in command_of(COMMANDS[-1])
    COMMANDS.clear()
    assert "a horizon of 0" in refusal("-p", "fifo", "--horizon", "0").message
    assert not COMMANDS


def test_windows_are_replicates_of_one_trace() -> None:
    (group,) = data("-p", "fifo", "--windows", "2")["groups"]
    assert [cell["replicate"] for cell in group["policies"][0]["cells"]] == ["window 1/2", "window 2/2"]
    assert [cell["result"]["jobs"] for cell in group["policies"][0]["cells"]] == [20, 20]


def test_the_command_that_is_shown_asks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    one = simulate_cell(Question(trace=SMALL[1], cluster=SMALL[3], policy="fifo"))
    monkeypatch.setitem(answer_here.__globals__, "simulate_cell", lambda question: one)
    words = ["-p", "sla,las:round=6m,thresholds=1h", "--loads", "trace,0.5", "--seeds", "4,7", "--tiers", "trace,3",
             "--estimates", "noisy,0.5", "--costs", "1s", "--costs", "save=2s,stop=1s", "--costs", "profile", "--faults", "none",
             "--faults", "rank_mtbf=90d", "--jobs", "20", "--no-checkpoints", "--horizon", "3d"]  # fmt: skip
    shown = data(*words)["command"]
    assert data(*shlex.split(shown)[2:], base=())["command"] == shown
    for seeds, written in (((1, 2, 3), "--seeds 3"), ((5,), "--seeds 5-5"), ((1, 3), "--seeds 1,3")):
        assert written in command_of_comparison(ComparisonQuestion(traces=("a",), policies=("sla",), seeds=seeds))


def test_a_saved_comparison_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    words = ("-p", "fifo,srtf", "--loads", "0.8,1.2", "--save", str(folder))
    first = data(*words)
    assert len(COMMANDS) == 4
    file = folder / save.CELLS
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]) + lines[2][:100])  # killed in the middle of a line
    COMMANDS.clear()
    again = data(*words)
    assert len(COMMANDS) == 2
    assert [remark for remark in again["remarks"] if "taken" in remark or "incomplete" in remark] == [
        f"the last result in {folder} was incomplete and is run again", f"2 of 4 runs are taken from {folder}",
    ]  # fmt: skip
    assert figures(again) == figures(first)
    COMMANDS.clear()
    assert figures(data(*words)) == figures(first) and not COMMANDS


def figures(found: dict[str, Any]) -> list[Any]:
    """All but what differs from run to run: processor time."""
    return [
        (group["settings"], policy["policy"], cell["replicate"], cell["result"])
        for group in found["groups"] for policy in group["policies"] for cell in policy["cells"]
    ]  # fmt: skip


def test_a_changed_option_trace_or_code_never_mixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, folder = tmp_path / "t.csv", tmp_path / "cells"
    trace.write_text("submit,duration,devices\n0,100,1\n5,50,2\n")
    base = ("-t", str(trace), "-c", "1x2", "-p", "fifo", "--save", str(folder))
    before = data(base=base)
    data("--costs", "60s", base=base)
    trace.write_text("submit,duration,devices\n0,100,1\n5,90,2\n")
    worker._loaded.cache_clear()
    assert figures(data(base=base)) != figures(before)
    assert len(COMMANDS) == 3
    monkeypatch.setattr(save, "code_of", lambda: "other")
    found = data(base=base)
    assert len(COMMANDS) == 4
    assert f"3 results in {folder} are of another version of the code and are not used" in found["remarks"]


def test_a_table_named_behind_a_comma_counts_by_its_contents(tmp_path: Path) -> None:
    trace, speeds = tmp_path / "gv.tsv", tmp_path / "th.csv"
    trace.write_text("\t".join(["LM", "python", "lm", "--steps", "1", "1000", "1", "1", "-1", "0"]) + "\n")
    base = (
        "-t",
        f"gavel:{trace},kind=v100,throughputs={speeds}",
        "-c",
        "1x2:v100",
        "-p",
        "fifo",
        "--save",
        str(tmp_path / "cells"),
    )
    found = []
    for per_s in (10, 10, 1000):
        speeds.write_text(f"workload,kind,devices,per_s\nLM,v100,1,{per_s}\n")
        worker._loaded.cache_clear()
        found.append(figures(data(base=base)))
    assert found[0] == found[1] != found[2]
    assert len(COMMANDS) == 2


def test_a_trace_that_changes_meanwhile_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, folder = tmp_path / "t.csv", tmp_path / "cells"
    trace.write_text("submit,duration,devices\n0,100,1\n")

    whole: Callable[..., Any] = worker.simulate_cell

    def changes(question: Question) -> Any:
        trace.write_text("submit,duration,devices\n0,100,1\n5,90,2\n")
        return whole(question)

    monkeypatch.setitem(answer_here.__globals__, "simulate_cell", changes)
    found = data("-p", "fifo", "--save", str(folder), base=("-t", str(trace), "-c", "1x2"))
    assert "fifo: a file that it reads changed meanwhile; its result is not saved" in found["remarks"]
    assert not (folder / save.CELLS).read_bytes()


def test_a_damaged_folder_names_the_line(tmp_path: Path) -> None:
    words = ("-p", "fifo", "--loads", "0.8,1.2", "--save", str(tmp_path / "cells"))
    data(*words)
    file = tmp_path / "cells" / save.CELLS
    whole = file.read_text()
    for damaged in (whole.replace('"jct_mean_s":', '"jct_mean_s":1', 1), "not JSON\n" + whole, "\n" + whole):
        file.write_text(damaged)
        error = refusal(*words)
        assert "line 1: damaged" in str(error) and "delete that line" in error.remedy


def test_folders_that_are_none_of_a_comparison(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    file = tmp_path / "file"
    file.write_text("x")
    assert "holds other files" in str(refusal("--save", str(other)))
    assert "not a directory" in str(refusal("--save", str(file)))
    assert "there is no directory" in str(refusal("--save", str(tmp_path / "a" / "b")))
    assert [entry.name for entry in other.iterdir()] == ["thesis.tex"]
    held = save.SaveFolder(tmp_path / "held")
    with held:
        assert "in use by another comparison" in str(refusal("--save", str(tmp_path / "held")))
    assert not COMMANDS


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("-p", "nonesuch"), "nonesuch"),
        (("--loads", "fast"), "load 'fast' is not a number"),
        (("--loads", "0"), "load 0"),
        (("--loads", ","), "--loads: an empty list"),
        (("--seeds", "3-1"), "--seeds 3-1"),
        (("--seeds", "x"), "--seeds x: not a number of seeds"),
        (("--tiers", "2"), "tiers=2"),
        (("--estimates", "some"), "estimates: 'some'"),
        (("--estimates", "11"), "not between 0 and 10"),
        (("--costs", "5s"), "costs: '5s'"),
        (("--costs", "launch=soon"), "not a duration"),
        (("--profile", "gavel:speed=3"), "speed: not a key"),
        (("--faults", "node=1"), "node"),
        (("--windows", "30"), "too few for 30 windows"),
        (
            ("--windows", "1000000"),
            "4 policies × 1,000,000 windows are 4,000,000 cells, and a comparison has at most 100,000",
        ),
        (("--seeds", "0"), "--seeds 0: not a number of seeds"),
        (("--seeds", "1..10000000"), "--seeds 1..10000000: not a number"),
        (("--seeds", "10000000000"), "10,000,000,000 seeds, and a comparison has at most 100,000 cells"),
        (("--seeds", "1-60000,100000-160000"), "120,001 seeds"),
        (("--seeds", f"{2**63}-{2**63}"), "no list of seeds up to"),
        (("--seeds", "50000", "-p", "sla,fifo,las"), "3 policies × 50,000 seeds are 150,000 cells"),
        (("--loads", "nan"), "load nan is not above 0"),
        (("--loads", "0.8,-1"), "load -1 is not above 0"),
        (("--loads", "1e9"), "at most 1000"),
        (("--windows", "2", "--seeds", "2"), "2 windows and 2 seeds"),
        (("--html", "nowhere/out.html"), "no directory nowhere"),
    ],
)
def test_wrong_options_say_what_to_write_before_anything_runs(words: tuple[str, ...], what: str) -> None:
    assert what in str(refusal(*words))
    assert not COMMANDS


@pytest.mark.parametrize("words", [("--loads", "nan"), ("--seeds", "100000", "-p", "sla,las")])
def test_sizes_are_checked_before_a_trace_is_read(words: tuple[str, ...]) -> None:
    assert "nowhere" not in str(refusal(*words, base=("-t", "nowhere.csv", "-c", "1x1")))


@pytest.mark.parametrize("workers", ["0", "-1", "100000"])
def test_workers_have_a_bound(workers: str) -> None:
    ran = call("-j", workers)
    assert ran.exit_code == 2 and "not in the range 1<=x<=1024" in ran.stderr and not COMMANDS


def test_a_trace_without_jobs(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("submit,duration,devices\n")
    assert str(path) in str(refusal(base=("-t", str(path), "-c", "1x1")))


def test_a_failed_cell_is_named_with_the_command_that_runs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole: Callable[..., Any] = worker.simulate_cell

    def breaks(question: Question) -> Any:
        if question.load == 1.2:
            raise ZeroDivisionError("<script>")
        return whole(question)

    monkeypatch.setitem(answer_here.__globals__, "simulate_cell", breaks)
    page = tmp_path / "out.html"
    ran = call("-p", "fifo", "--loads", "0.8,1.2", "--html", str(page))
    assert ran.exit_code == 1
    assert "failed: fifo, load 1.2, seed 1: <script>" not in page.read_text() and "&lt;script&gt;" in page.read_text()
    shown = next(line for line in ran.stderr.splitlines() if "alone:" in line).partition("alone: ")[2]
    assert CliRunner().invoke(tide, shlex.split(shown)[1:]).exit_code == 0
    assert "0.8" in ran.stdout or "fifo" in ran.stdout


def test_the_page_needs_matplotlib_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert "tidewright[report]" in refusal("--html", str(tmp_path / "out.html")).remedy
    assert not COMMANDS


def test_names_given_twice_count_once() -> None:
    found = data("-p", "fifo,fifo", "--loads", "1,1")
    assert len(COMMANDS) == 1
    assert "loads: 1.0 is given more than once and counts once" in found["remarks"]


def test_a_result_that_loses_a_job_is_a_bug() -> None:
    result: SimulationResult = simulate_cell(Question(trace=SMALL[1], cluster=SMALL[3], policy="fifo")).result
    with pytest.raises(Bug, match="39 of 40 jobs"):
        worker._account(msgspec.structs.replace(result, completed=result.completed - 1))


def test_every_cell_that_could_not_run_is_refused_first() -> None:
    asked = ComparisonQuestion(traces=(SMALL[1],), clusters=("2x4",), policies=("sla",), costs=("", "save=x"))
    with pytest.raises(UsageError, match="not a duration"):
        planned(asked)
