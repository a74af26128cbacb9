"""Every command at a scripted controller: what it asks, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tidewright.base.errors import Busy, Conflict, NotAllowed, Unreachable, WorldError
from tidewright.base.units import SECOND
from tidewright.cli import progress as bars
from tidewright.cli.shell import SUMMARY, LazyGroup
from tidewright.cli.shell import tide as group
from tidewright.model.job import JobSpec
from tidewright.wire.api import ActionReply, FailureView, NodeView

from .stub import NOW, Terminal, running, waiting


def test_every_command_is_a_file_and_every_file_of_a_command_is_listed() -> None:
    assert isinstance(group, LazyGroup)
    for name in SUMMARY:
        found = group.get_command(None, name)  # type: ignore[arg-type]
        assert found is not None and found.name == name and found.help


@pytest.mark.parametrize("command", sorted(SUMMARY))
def test_help(tide: Terminal, command: str) -> None:
    said = tide(command, "--help")
    assert said.code == 0 and said.out.startswith(f"Usage: tide {command}") and not said.err


def test_the_list_of_commands(tide: Terminal) -> None:
    said = tide("--help")
    assert all(f"  {name} " in said.out for name in SUMMARY)


@pytest.mark.parametrize(
    ("line", "code", "piece"),
    [
        ("pps", 2, "did you mean tide ps"),
        ("frobnicate", 2, "see tide --help"),
        ("ps --bogus", 2, "see tide ps --help"),
        ("ps --state gone", 2, "'gone' is not one of"),
        ("show 99", 3, "list jobs with tide ps --all"),
        ("run", 2, "COMMAND"),
        ("run -g 0 -- true", 2, "devices: 0"),
        ("run -g 4:1 -- true", 2, "must go up"),
        ("run --gpu-mem lots -- true", 2, "amount of memory"),
        ("run --deadline soon -- true", 2, "not a duration"),
        ("run --env NOVALUE -- true", 2, "NAME=VALUE"),
        ("run --deadline 0 -- true", 2, "a deadline of 0 has passed"),
        ("run --name a[3] -- true", 2, "brackets"),
        ("update 17 --name a[3]", 2, "brackets"),
        ("update 17 --weight 1e-320", 2, "not a weight"),
        ("update 17 --deadline 0s", 2, "has passed"),
        ("submit --wrap=", 2, "--wrap has no command"),
        ("run -- python3 missing.py", 3, "missing.py"),
        ("run -- no-such-program", 3, "no such program"),
        ("run --name 12 -- true", 2, "would read as a job id"),
        ("run -g 2 --gpu-mem 1GiB -- true", 2, "a share is of one device"),
        ("submit missing.yaml", 3, "missing.yaml"),
        ("pack --placement fgdd", 2, "did you mean 'fgd'"),
        ("pack --seeds 9-3", 2, "ranges like 42-51"),
        ("pack philly", 2, "openb for the packaged trace"),
        ("pack --report nowhere/x.html", 2, "nowhere"),
        ("--url x --token-file /nonexistent ps", 0, ""),
        ("run -- true a\udcffb", 2, r"not UTF-8 text: 'a\xffb'"),
        ("submit --wrap echo\udcff", 2, r"not UTF-8 text: '#!/bin/sh\necho\xff\n'"),
        ("run -- no\udcff", 3, r"no such program: no\xff"),
    ],
)
def test_failures_say_what_to_do(tide: Terminal, line: str, code: int, piece: str) -> None:
    said = tide(*line.split())
    assert said.code == code and piece in said.err
    assert not code or (said.err.startswith("error: ") and len(said.err.splitlines()) >= 2 and not said.out)


def test_no_controller_is_exit_5(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tidewright.cli.shell import run

    assert run(["--state", str(tmp_path), "ps"]) == 5
    assert "tide up" in capsys.readouterr().err


# -- listings ---------------------------------------------------------------------------------------------------------


def test_ps(tide: Terminal) -> None:
    head, first, second = tide("ps").out.splitlines()
    assert head.split() == ["ID", "NAME", "TIER", "STATE", "DEVICES", "AGE", "FRACTION", "PREEMPTED", "NODES(REASON)"]
    assert first.split() == ["17", "train", "premium", "running", "2/1:4", "1m30s", "50%", "2", "n1[0-1]"]
    assert second.split() == ["18", "later", "basic", "queued", "1:4", "1m30s", "-", "2", "(NoCapacity)"]
    assert len(tide("ps", "--no-headers").out.splitlines()) == 2
    assert "COMMAND" in tide("ps", "-o", "wide").out


def test_ps_names_and_json(tide: Terminal) -> None:
    assert tide("ps", "-o", "name").out == "17\n18\n"
    listing = json.loads(tide("ps", "-o", "json").out)
    assert listing["schema"] == "tidewright/v2" and [job["id"] for job in listing["jobs"]] == [17, 18]


def test_ps_asks_for_what_was_asked(tide: Terminal) -> None:
    tide("ps", "-s", "running,failed", "--team", "vision", "-n", "3")
    assert tide.stub.calls[-1] == (
        "jobs",
        {
            "all": True,
            "state": "running,failed",
            "team": "vision",
            "user": None,
            "name": None,
            "limit": 3,
            "collapse": True,
        },
    )


def test_an_empty_list_is_only_a_head_and_a_hint(tide: Terminal) -> None:
    tide.stub.listing = ()
    said = tide("ps")
    assert len(said.out.splitlines()) == 1 and "tide run" in said.err
    assert tide("ps", "-o", "name").out == ""


@pytest.mark.parametrize(
    ("job", "last"),
    [
        (running(state="failed", where=(), held=0, end=NOW, exit_code=7), "exit 7"),
        (waiting(reason="", why="waits for devices"), "(waits for devices)"),
        (running(where=()), "(all ranks run)"),
    ],
)
def test_the_last_column(tide: Terminal, job: object, last: str) -> None:
    tide.stub.listing = (job,)  # type: ignore[assignment]
    assert tide("ps", "--no-headers").out.rstrip().endswith(last)


@pytest.mark.parametrize("command", ["nodes", "usage", "rates", "top", "show 17", "why 17", "ps"])
def test_json_everywhere_with_its_schema(tide: Terminal, command: str) -> None:
    assert json.loads(tide(*command.split(), "-o", "json").out)["schema"] == "tidewright/v2"


def test_nodes_usage_and_top(tide: Terminal) -> None:
    assert "0-1:17" in tide("nodes", "-o", "wide").out and tide("nodes", "-o", "name").out == "n1\n"
    assert tide("usage", "--by", "team", "--no-headers").out.split() == ["vision", "3", "1", "2.00h", "60s", "50%", "2"]
    top = tide("top").out
    assert "2 of 4 devices held (50%)" in top and "####······  42%" in top


def test_rates(tide: Terminal) -> None:
    rows = [line.split() for line in tide("rates", "--no-headers").out.splitlines()]
    assert rows == [
        ["bert", "a100", "4", "1", "1,234", "jobs"],
        ["bert", "h100", "4", "any", "2,500", "config"],
        ["bert", "k80", "4", "any", "cannot", "run", "config"],
        ["resnet", "a100", "-", "-", "gradient=0.0123", "config"],
    ]
    assert tide("rates", "--learnt", "-o", "name").out == "bert:a100:4\n"
    assert len(json.loads(tide("rates", "bert", "-o", "json").out)["rows"]) == 3
    assert len(json.loads(tide("rates", "--learnt", "-o", "json").out)["rows"]) == 1
    assert "docs/rates.md" in tide("rates", "gpt").err
    assert tide("rates", "bert", "--forget").out == "what jobs have shown of bert is forgotten\n"
    assert tide.stub.calls[-1] == ("forget_rates", "bert")
    found = tide("rates", "--forget")
    assert found.code == 2 and "tide rates --learnt lists them" in found.err


def test_show(tide: Terminal) -> None:
    said = tide("show", "train").out
    for piece in (
        "17 (train)",
        "running: all ranks run",
        "promised 95%",
        "2/1:4 on n1[0-1]",
        "/logs/17.log",
        "submitted  premium, 4 devices",
    ):
        assert piece in said


def test_why(tide: Terminal) -> None:
    said = tide("why", "later").out
    for piece in (
        "job 18 (later) is queued: needs 4",
        "NoCapacity: needs 4, 2 free",
        "2 devices instead of 4 (tide scale 18 2)",
        "held by",
        "story",
    ):
        assert piece in said
    assert "story" not in tide("why", "later", "--tail", "0").out


def test_a_failed_gang_says_which_rank_and_what_it_wrote_last(tide: Terminal) -> None:
    lines = tuple(f"line {at}" for at in range(5))
    first = FailureView(rank=2, exit_code=139, signal="SIGSEGV", why="killed by signal 11", node="n2", lines=lines)
    tide.stub.listing = (
        running(
            state="failed", held=0, where=(), why="rank 2 on n2: killed by signal 11", exit_code=139, failure=first
        ),
    )
    said = tide("show", "train").out
    assert "failed: rank 2 on n2: killed by signal 11" in said and "last output of rank 2\n  line 0\n" in said
    assert "exit 139 (SIGSEGV, rank 2)" in tide("ps", "-a").out
    assert json.loads(tide("show", "train", "-o", "json").out)["job"]["failure"]["lines"] == list(lines)
    why = tide("why", "train").out
    assert "wrote" in why and "line 4" in why and "line 1" not in why


# -- actions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "checkpoint"])
def test_one_failing_job_does_not_stop_the_others(tide: Terminal, verb: str) -> None:
    said = tide(verb, "17", "99", "later", "17")
    lines = said.out.splitlines()
    assert said.code == 1 and [line.split()[:2] for line in lines] == [["job", "17"], ["job", "18"]]
    assert "99" not in said.out and "17" not in lines[1]
    assert said.err == "error: no job 99\n  list jobs with tide ps --all\n"
    assert [call[1] for call in tide.stub.calls if call[0] == verb] == ["17", "99", "later"]
    assert tide(verb, "99").code == 3, "of a single job: what is wrong with it"


def test_a_failure_is_named_as_its_user_named_the_job(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(ref: str) -> None:
        raise (
            Conflict("job 18 has already ended", "nothing is left to do")
            if ref in ("later", "18")
            else WorldError("slow")
        )

    monkeypatch.setattr(tide.stub, "cancel", ended)
    said = tide("cancel", "18", "later", "17")
    assert said.code == 1 and [line for line in said.err.splitlines() if line.startswith("error")] == [
        "error: job 18 has already ended", "error: later: job 18 has already ended", "error: 17: slow",
    ]  # fmt: skip


def test_a_controller_that_goes_away_leaves_a_line_with_the_jobs_that_are_left(
    tide: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tide.stub.cancel

    def gone(ref: str) -> ActionReply:
        if ref != "17":
            raise Unreachable("no controller answers", "start it with tide up")
        return usual(ref)

    monkeypatch.setattr(tide.stub, "cancel", gone)
    said = tide("cancel", "17", "18", "19")
    assert said.code == 5 and said.out == "job 17 is being cancelled\n"
    assert said.err.splitlines()[0] == "nothing is known to be done to: 18 19"


def test_suspend_for_a_while_counts_from_the_controllers_clock(tide: Terminal) -> None:
    assert tide("suspend", "17", "--for", "30s").code == 0
    assert tide.stub.calls[-1] == ("suspend", "17", NOW + 30 * SECOND)
    assert tide("suspend", "17").out == "job 17 is being suspended; tide resume 17 ends it\n"
    assert "suspended for 30s; tide resume 17 ends it earlier" in tide("suspend", "17", "--for", "30s").out
    tide.stub.listing = (waiting(state="held", reason="UserHold", held_until=NOW + 30 * SECOND),)
    assert "or by tide resume 18" in tide("show", "later").out


@pytest.mark.parametrize(
    ("words", "name"), [(("why", "18"), "why"), (("eta", "18"), "eta"), (("run", "--dry-run", "--", "true"), "submit")]
)
@pytest.mark.parametrize("patient", [True, False])
def test_questions_wait_while_the_controller_has_as_many_as_it_takes(
    tide: Terminal, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], name: str, patient: bool
) -> None:
    from tidewright.cli.jobs import following

    pauses: list[float] = []
    monkeypatch.setattr(following.time, "sleep", pauses.append)
    usual, expected, left = getattr(tide.stub, name), tide(*words), iter(range(2))

    def asked(*given: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            raise Busy("10 questions wait to be answered already", "ask again in 10 s", 10.0)
        return usual(*given, **options)

    monkeypatch.setattr(tide.stub, name, asked)
    if not patient:
        monkeypatch.setattr(following, "BUSY_LIMIT_S", 0.0)
    said = tide(*words)
    assert "(ask again in 10 s)" in said.err and all(2.0 <= pause <= 4.0 for pause in pauses)
    if patient:
        assert (
            (said.code, said.out) == (0, expected.out) and said.err.count("10 questions wait") == 1 and len(pauses) == 2
        )
    else:
        assert said.code == 1 and len(pauses) == 1


@pytest.mark.parametrize("words", [("cancel", "17", "18"), ("wait", "17"), ("update", "17", "--sla", "basic"), ("ps",)])
def test_a_user_who_may_not_connect_gets_one_message(
    tide: Terminal, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotAllowed("/state belongs to root, and ann may not connect to a controller there", "run tide as root")

    for name in ("cancel", "wait", "update", "jobs", "job", "lookup", "info"):
        monkeypatch.setattr(tide.stub, name, refused, raising=False)
    said = tide(*words)
    assert said.code == 5 and said.err.count("belongs to root") == 1 and "waiting" not in said.err


def test_a_limit_is_one_of_run_time(tide: Terminal) -> None:
    job = running(spec=JobSpec(command=("a",), workdir="/", max_duration_us=60 * SECOND))
    tide.stub.listing = (job,)
    assert "1m00s of run time" in tide("show", "17").out


def test_undrain_says_when_there_was_nothing_to_lift(tide: Terminal) -> None:
    assert tide("undrain", "n1").out == "node n1 was not drained; it is up\n"
    tide.stub.drained = [lambda node: node]
    assert tide("undrain", "n1").out == "node n1 takes work again\n" and tide.stub.calls[-1] == ("undrain", "n1")


def test_drain(tide: Terminal) -> None:
    assert "tide undrain n1" in tide("drain", "n1", "--why", "fan").out
    assert tide.stub.calls[-1] == ("drain", "n1", "fan", False)


def test_drain_waits_until_the_node_is_empty_and_says_what_is_left_when_time_is_up(tide: Terminal) -> None:
    tide.stub.drained = [
        lambda node: node,
        lambda node: replace(node, jobs=(), suspended=(4, 3)),
        lambda node: replace(node, jobs=()),
    ]
    said = tide("drain", "n1", "--move", "--wait", "--reason", "fan")
    assert said.code == 0 and said.out.endswith("node n1 is empty\n") and "warning: still on n1" in said.err
    tide.stub.drained = [lambda node: replace(node, suspended=(4, 3))]
    late = tide("drain", "n1", "--wait", "--timeout", "0s")
    assert late.code == 124 and "not empty yet: running: 17; suspended: 3-4" in late.err
    assert "those frozen in its memory wait for tide undrain n1, or tide cancel" in " ".join(late.err.split())
    tide.stub.drained = []
    lifted = tide("drain", "n1", "--wait")
    assert lifted.code == 4 and "not drained any more" in lifted.err
    assert tide("drain", "n1", "--timeout", "1s").code == 2
    tide.stub.drained = [lambda node: node]
    assert "fan, since 2" in (note := tide("nodes").out) and "jobs leave it" in note


def test_a_drain_that_waits_outlasts_a_restart_of_the_controller(
    tide: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidewright.cli.jobs import following

    def down(node: NodeView) -> NodeView:
        raise Unreachable("no controller answers at /state", "start it with tide up")

    monkeypatch.setattr(following, "RETRY_S", 0.0)
    tide.stub.drained = [down, down, lambda node: replace(node, jobs=())]
    said = tide("drain", "n1", "--wait")
    assert said.code == 0 and said.out.endswith("node n1 is empty\n") and said.err.count("waiting for it") == 1
    tide.stub.drained = [down] * 9
    assert tide("drain", "n1", "--wait", "--timeout", "0s").code == 5


def test_logs_are_bytes_as_they_were_written(tide: Terminal) -> None:
    assert tide("logs", "17", "--rank", "1", "--tail", "5").out == "step 1\nstep 2\n"
    assert tide.stub.calls[-1] == ("logs", "17", 1, False, 5, 0)
    assert tide("logs", "17", "--attempt", "2").code == 0 and tide.stub.calls[-1][-1] == 2


def test_logs_of_a_job_with_several_ranks(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tide("logs", "17")
    assert "rank 0 of 4; --all-ranks shows all of them" in said.err and said.out == "step 1\nstep 2\n"
    assert not tide("logs", "17", "--rank", "0").err
    assert "rank 0 of 3" in tide("run", "-g", "3", "--follow", "--", "true").err
    assert "rank" not in tide("run", "--follow", "--", "true").err
    tide.stub.output = (b"[rank 0] a\n[rank 11] [rank 3] b\n",)
    said = tide("logs", "17", "--all-ranks", "-f")
    assert said.out.encode() == tide.stub.output[0] and not said.err
    assert tide.stub.calls[-1] == ("logs", "17", None, True, None, 0)
    monkeypatch.setattr("tidewright.cli.output.colourful", lambda: True)
    coloured = tide("logs", "17", "--all-ranks").out
    assert coloured == "\x1b[36m[rank 0]\x1b[0m a\n\x1b[32m[rank 11]\x1b[0m [rank 3] b\n".replace("32m", "35m")
    both = tide("logs", "17", "--all-ranks", "--rank", "1")
    assert both.code == 2 and "exclude each other" in both.err


# -- submission -------------------------------------------------------------------------------------------------------


def test_run_sends_the_command_with_this_environment_and_directory(
    tide: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", "3")
    monkeypatch.setenv("TIDE_TOKEN", "secret")
    monkeypatch.setenv("RANK", "9")
    (tmp_path / "train.py").write_text("")
    said = tide(
        "run", "-g", "h100:1:4", "--sla", "premium", "--team", "vision", "--deadline", "4h", "--time", "2h", "--expect",
        "1h", "--env", "A=b=c", "--retries", "2", "--after", "afterok:3:4", "--", "python3", "train.py", "--name", "x",
    )  # fmt: skip
    assert said.code == 0 and said.out == "submitted job 20 (train)\n" and "promise at risk" in said.err
    (spec,) = tide.stub.submitted
    assert spec.command == ("python3", "train.py", "--name", "x") and spec.workdir == str(tmp_path)
    assert (spec.devices, spec.min_devices, spec.ranks, spec.device_types) == (4, 1, 4, ("h100",))
    assert spec.env["EPOCHS"] == "3" and spec.env["A"] == "b=c" and not {"TIDE_TOKEN", "RANK"} & set(spec.env)
    assert (spec.tier, spec.team, spec.retries) == ("premium", "vision", 2)
    assert tide.stub.calls[0] == ("submit", 1, False, "afterok:3", "afterok:4")


def test_parsable_prints_only_ids(tide: Terminal) -> None:
    assert tide("run", "--parsable", "--array", "0-2%1", "--", "sleep", "{index}").out == "20\n", (
        "as of an array in sbatch"
    )
    assert [spec.command[1] for spec in tide.stub.submitted] == ["0", "1", "2"]


def test_a_dry_run_submits_nothing(tide: Terminal) -> None:
    said = tide("run", "--dry-run", "--", "true")
    assert (
        said.out == "would be launched now on n1[0]\n"
        and "nothing was submitted" in said.err
        and not tide.stub.submitted
    )


def test_wait_returns_the_jobs_exit_code(tide: Terminal) -> None:
    tide.stub.exits = {"20": 137}
    said = tide("run", "--wait", "--", "true")
    assert said.code == 137 and "job 20 failed, exit code 137" in said.err


def test_follow_prints_the_log_and_waits(tide: Terminal) -> None:
    tide.stub.exits = {"20": 3}
    said = tide("run", "--follow", "--", "true")
    assert said.code == 3 and said.out.endswith("step 1\nstep 2\n")


def test_ctrl_c_while_waiting_leaves_the_job_alone(tide: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tide.stub, "wait", interrupted)
    said = tide("run", "--wait", "--", "true")
    assert said.code == 130 and "tide cancel 20" in said.err and not [c for c in tide.stub.calls if c[0] == "cancel"]


def test_wait_of_several_and_its_timeout(tide: Terminal) -> None:
    tide.stub.exits = {"17": 0, "18": 7}
    assert tide("wait", "17", "18").code == 7
    tide.stub.exits = {"17": -1}
    assert tide("wait", "17", "--timeout", "0").code == 124
    tide.stub.down = True
    assert tide("wait", "17").code == 5


def test_wait_says_at_once_which_jobs_do_not_exist_and_waits_for_the_others(tide: Terminal) -> None:
    said = tide("wait", "99", "later")
    assert said.code == 1 and "no job 99" in said.err and [call[1] for call in tide.stub.calls] == ["later"]
    tide.stub.exits = {"17": 7}
    assert tide("wait", "99", "17").code == 7
    assert tide("wait", "99").code == 3


def test_submit_a_spec_and_a_script(tide: Terminal, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("name: a\ncommand: sleep 1\n---\nname: b\ncommand: sleep 2\narray: 0-1\n")
    assert tide("submit", "--parsable", "jobs.yaml").out == "20\n21\n", "one line for an array"
    assert [call[1] for call in tide.stub.calls if call[0] == "submit"] == [1, 2]
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2 --signal=USR1\necho $1\n")
    said = tide("submit", "job.sh", "--flag")
    assert "job.sh:2: --signal is not honoured" in said.err and tide.stub.submitted[-1].command[-1] == "--flag"
    (tmp_path / "bad.yaml").write_text("comand: x\ntier: gold\n")
    bad = tide("submit", "bad.yaml")
    assert bad.code == 2 and "bad.yaml:1: unknown key" in bad.err and "bad.yaml:2: tier" in bad.err


# -- shells -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "piece"), [("bash", "complete -o nosort -F"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_completion_scripts(tide: Terminal, shell: str, piece: str) -> None:
    said = tide("completion", shell)
    assert said.code == 0 and piece in said.out and "_TIDE_COMPLETE" in said.out


def test_the_completion_completes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tidewright.cli.shell import run

    for name, value in (("_TIDE_COMPLETE", "bash_complete"), ("COMP_WORDS", "tide su"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert run([]) == 0
    assert capsys.readouterr().out.split() == ["plain,submit", "plain,suspend"]


def test_progress_prints_names_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(bars, "SHOWN_AFTER_S", 0.0)
    with bars.progress("reading", total=1.0) as bar:
        bar.update(0.5, "x[red]:a:[/x]")
    assert "x[red]:a:[/x]" in capsys.readouterr().err


def test_packing_shows_a_table_json_and_a_page(tide: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "x[red]:a:"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,100,2,<b>T4\n")
    (folder / "openb_pod_list_default.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n")
    page = tmp_path / "out.html"
    said = tide("pack", f"openb:{folder}", "--placement", "fgd,random:seed=3", "--seeds", "1-2", "--report", str(page))
    assert said.code == 0 and "random:seed=3" in said.out and "±0.00" in said.out and "drawn here" in said.err
    assert "x[red]:a:: " in said.out, "names are printed as they are"
    assert "<svg" in page.read_text() and "Fragments" in page.read_text()
    found = json.loads(tide("pack", f"openb:{folder}", "-o", "json").out)
    assert [one["placement"] for one in found] == ["best-fit", "fgd"]
    assert found[0]["seeds"][0]["allocation"] == 100.0 and len(found[0]["seeds"][0]["allocation_curve"]) == 131


def test_a_directory_that_is_made_for_the_output_is_named(tide: Terminal, tmp_path: Path) -> None:
    said = tide("run", "--output", str(tmp_path / "no" / "log"), "--", "true")
    assert said.code == 0 and f"warning: {tmp_path / 'no'} does not exist; it is made when the job starts" in said.err
    assert "does not exist" in tide("submit", "--output", str(tmp_path / "no" / "log"), "--wrap", "true").err
    for there in (str(tmp_path / "log"), str(tmp_path / "%j" / "log")):
        assert "does not exist" not in tide("run", "--output", there, "--", "true").err


def test_a_variable_needs_a_name_without_blanks(tide: Terminal) -> None:
    said = tide("run", "--env", "A B=3", "--", "true")
    assert said.code == 2 and "'A B' has blanks" in said.err
