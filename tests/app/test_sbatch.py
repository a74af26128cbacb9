"""Batch scripts: what is honoured, what is named, what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidewright.launch
from tidewright.app.jobspec.batch_job import prelude
from tidewright.app.jobspec.loaded import Loaded, Submitter
from tidewright.app.jobspec.sbatch import HONOURED, load
from tidewright.app.jobspec.sbatch_options import KNOWN
from tidewright.base.errors import UsageError
from tidewright.base.units import DAY, HOUR, MINUTE
from tidewright.model.notify import KINDS, Notify

from ..sizes import examples

PROGRAMS = Path(tidewright.launch.__file__).parent / "inject" / "_tidewright" / "slurm" / "bin"
ME = Submitter({"PATH": "/usr/bin", "HOME": "/home/me", "SECRET": "x"}, "/srv/jobs", "me")


def script(*lines: str, first: str = "#!/bin/bash", body: str = "echo hi") -> Loaded:
    text = "\n".join([first, *(f"#SBATCH {line}" for line in lines), body, ""])
    return load(Path("/nowhere/train.sh"), text, ME)


def test_devices_and_ranks_are_counted_as_sbatch_counts_them() -> None:
    (job,) = script("--nodes=2 --gres=gpu:a100:4", "--ntasks-per-node 4").specs
    assert (job.devices, job.ranks, job.device_types) == (8, 8, ("a100",))
    (job,) = script("-N2 -n 2 -G h100:8").specs
    assert (job.devices, job.ranks, job.device_types) == (8, 2, ("h100",))
    (job,) = script("--gpus-per-task=2 --ntasks=4").specs
    assert (job.devices, job.ranks) == (8, 4)


def test_the_rest_of_what_is_honoured() -> None:
    loaded = script(
        "-J fast --time=1-02:00 -o log/%x-%j.txt -D sub", "--account=vision --qos premium --requeue",
        "--dependency=afterok:17:prep,aftercorr:12 --gres=gpu",
    )  # fmt: skip
    (job,) = loaded.specs
    assert job.name == "fast" and job.max_duration_us == DAY + 2 * HOUR and job.output == "log/%x-%j.txt"
    assert (
        job.workdir == "/srv/jobs/sub" and job.team == "vision" and job.tier == "premium" and job.preempt == "requeue"
    )
    assert loaded.after == [("afterok:17", "afterok:prep", "aftercorr:12")] and job.devices == 1


@pytest.mark.parametrize(
    ("time", "us"),
    [("10", 10 * MINUTE), ("90:30", 5430 * 10**6), ("1-0", DAY), ("UNLIMITED", 0), ("02:00:00", 2 * HOUR)],
)
def test_time_is_read_as_slurm_reads_it(time: str, us: int) -> None:
    assert script(f"--gres=gpu -t {time}").specs[0].max_duration_us == us


def test_an_array_knows_its_index_under_slurms_name() -> None:
    members = script("--array=0-6:3%2 --gres=gpu:1").specs
    assert [job.env["SLURM_ARRAY_TASK_ID"] for job in members] == ["0", "3", "6"]
    assert members[0].env["SLURM_ARRAY_TASK_MAX"] == "6" and members[0].array and members[0].array.limit == 2
    assert members[0].env["SLURM_ARRAY_TASK_COUNT"] == "3" and members[0].env["SLURM_ARRAY_TASK_STEP"] == "3"
    assert script("--array=1,2,7 --gres=gpu:1").specs[0].env["SLURM_ARRAY_TASK_STEP"] == "1"


def test_export_chooses_the_environment() -> None:
    assert "SECRET" in script("--gres=gpu --export=ALL,EPOCHS=3").specs[0].env
    only = script("--gres=gpu --export=EPOCHS=3,PATH").specs[0].env
    assert "SECRET" not in only and only["EPOCHS"] == "3" and only["PATH"] == "/usr/bin"
    assert "SECRET" not in script("--gres=gpu --export=NONE").specs[0].env


@settings(max_examples=examples(80), deadline=None)
@given(st.sampled_from(sorted(KNOWN - set(HONOURED))))
def test_every_known_option_that_is_not_honoured_is_named(option: str) -> None:
    loaded = script(f"--gres=gpu --{option}=1")
    assert len(loaded.specs) == 1
    assert any(f"--{option} is not honoured" in warning and "train.sh:2" in warning for warning in loaded.warnings)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30), max_size=4))
def test_any_lines_give_a_job_or_a_list_of_mistakes(lines: list[str]) -> None:
    try:
        loaded = script(*lines)
    except UsageError as error:
        assert "train.sh" in error.message
    else:
        assert loaded.specs


def test_mistakes_are_listed_with_their_lines() -> None:
    with pytest.raises(UsageError) as caught:
        script("--ntask-per-nod=2", "--time=soon --gres=gpu:x:y", "--array=9-1", "--nodes")
    lines = caught.value.message.splitlines()[1:]
    assert [line.split(":")[1] for line in lines] == ["2", "3", "3", "4", "5"]
    assert "did you mean '--ntasks-per-node'" in lines[0]


def test_an_unambiguous_beginning_is_enough() -> None:
    assert script("--gpus-per-n=2").specs[0].devices == 2


def test_late_lines_are_named() -> None:
    loaded = script("--cpus-per-task=8", body="echo\n#SBATCH --gres=gpu:4\nsrun python x.py")
    text = "\n".join(loaded.warnings)
    assert "train.sh:4: #SBATCH after the first command" in text and "srun" not in text
    assert "asks for no GPU" in text
    assert loaded.specs[0].devices == 1 and loaded.specs[0].cpus_milli == 8000


@pytest.mark.parametrize("line", ["--gres=gpu:0", "--gres=gpu:a100:0", "--gpus=0", "--gpus-per-task=0"])
def test_no_gpu_may_be_asked_for_in_so_many_words(line: str) -> None:
    loaded = script(line)
    assert loaded.specs[0].devices == 1 and not loaded.specs[0].device_types
    assert "asks for no GPU" in "\n".join(loaded.warnings)


def test_an_output_file_of_several_tasks_is_that_of_task_0() -> None:
    (warning,) = script("--gres=gpu:2 --ntasks-per-node=2\n#SBATCH --output=out.txt").warnings
    assert warning.startswith("/nowhere/train.sh:3: this file gets what task 0 prints")
    assert not script("--gres=gpu:2 --output=out.txt").warnings


@pytest.mark.parametrize(
    ("lines", "cpus_milli", "memory"),
    [
        (("--gres=gpu -c 4",), 4000, 0),
        (("--gres=gpu --mem=16G",), 0, 16 * 2**30),
        (("--gres=gpu --mem=4000",), 0, 4000 * 2**20),
        (("--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --mem=64G",), 0, 16 * 2**30),
        (("--gres=gpu --cpus-per-task=6 --mem-per-cpu=2G",), 6000, 12 * 2**30),
        (("--gres=gpu --mem-per-cpu=512M",), 0, 512 * 2**20),
        (("--ntasks=2 --gpus-per-task=2 --mem-per-gpu=3G",), 0, 6 * 2**30),
        (("--gres=gpu --mem=1G", "--mem-per-cpu=2G"), 0, 2 * 2**30),
    ],
)
def test_host_resources_are_those_of_each_rank(lines: tuple[str, ...], cpus_milli: int, memory: int) -> None:
    (spec,) = script(*lines).specs
    assert (spec.cpus_milli, spec.memory) == (cpus_milli, memory)


def test_all_memory_of_a_node_is_no_limit_and_named() -> None:
    loaded = script("--gres=gpu --mem=0")
    assert loaded.specs[0].memory == 0 and any("--mem=0" in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    "line", ["--mem=lots", "--mem=-4G", "--mem=nan", "--mem=1", "--mem=99999999T", "--cpus-per-task=0"]
)
def test_host_resources_that_cannot_be_are_mistakes_at_their_line(line: str) -> None:
    with pytest.raises(UsageError, match=r"train\.sh:2: "):
        script(f"--gres=gpu {line}")


TASK = {
    "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0", "SLURM_JOB_ID": "17", "TIDE_SLURM_BIN": str(PROGRAMS), "TIDE_SLURM_SCRIPT": "job.sh",
    "RANK": "3", "OPTION": "--pty",
}  # fmt: skip


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_a_shell_script_travels_and_keeps_its_line_numbers_and_arguments(tmp_path: Path, shell: str) -> None:
    """A step finds what Slurm sets, not torchrun's rank; bash says which line calls it, some shells cannot."""
    path = tmp_path / "job.sh"
    text = f'#!{shell}\n#SBATCH --gres=gpu\necho "$0 $1 $LINENO <$RANK>"\nsqueue -u me\nsrun $OPTION x\n'
    (job,) = load(path, text, ME, ("arg",)).specs
    env = {**TASK, "PATH": os.environ["PATH"]}
    done = subprocess.run(job.command, env=env, capture_output=True, text=True, check=False)
    numbered = "bash" in shell or " 3 " in done.stdout
    assert done.stdout.split() == [str(path), "arg", *(["3"] if numbered else []), "<>"]
    assert done.returncode == 1 and "srun: --pty cannot be honoured" in done.stderr
    said = [line.partition(": -")[0].partition(": not")[0] for line in done.stderr.splitlines()]
    assert said == (["job.sh:4: squeue", "job.sh:5: srun"] if numbered else ["job.sh: squeue", "job.sh: srun"])
    assert "\n" not in prelude("bash", steps=True) + prelude("sh", steps=True)


def test_a_script_without_srun_keeps_the_rank_variables() -> None:
    (job,) = script("--gres=gpu", body="echo $RANK $((RANDOM))").specs
    env = {"RANK": "3", "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}
    first, second = (subprocess.run(job.command, env=env, capture_output=True, text=True, check=True) for _ in range(2))
    assert first.stdout.startswith("3 ") and first.stdout == second.stdout, "RANDOM is alike in all tasks of an attempt"
    again = subprocess.run(
        job.command, env={**env, "SLURM_RESTART_COUNT": "2"}, capture_output=True, text=True, check=True
    )
    assert again.stdout != first.stdout


def test_what_only_the_submission_knows_is_in_the_environment() -> None:
    options = "--nodes=2 --ntasks-per-node=2 --gpus-per-node=4 -c 8 --mem=64G -p long"
    (job,) = script(options).specs
    wanted = {
        "SLURM_SUBMIT_DIR": "/srv/jobs", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_MEM_PER_NODE": "65536", "SLURM_JOB_PARTITION": "long", "SLURM_SUBMIT_HOST": socket.gethostname(),
        "TIDE_SLURM_NODES": "2", "TIDE_SLURM_SCRIPT": "train.sh",
    }  # fmt: skip
    assert {name: job.env.get(name) for name in wanted} == wanted
    assert "SLURM_GPUS" not in job.env and "SLURM_CPUS_PER_TASK" not in script("--gres=gpu").specs[0].env


def test_tasks_of_one_node_stay_on_one_node() -> None:
    assert script("--nodes=1 --ntasks=4 --gres=gpu:4").specs[0].placement == "one-node"
    assert script("--ntasks=4 --gpus=4").specs[0].placement == "consolidate"


def test_other_scripts_run_from_where_they_are() -> None:
    (job,) = script("--gres=gpu", first="#!/usr/bin/env python3", body="print(1)").specs
    assert job.command == ("/usr/bin/env", "python3", "/nowhere/train.sh")


def test_a_script_without_an_interpreter_is_refused() -> None:
    with pytest.raises(UsageError, match="first line must name the interpreter"):
        script("--gres=gpu", first="echo")


def test_the_options_are_those_of_the_page(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "slurm.md").read_text()
    assert [option for option in HONOURED if f"`--{option}" not in page] == []


def test_mail_is_asked_for_as_in_sbatch() -> None:
    found = script("--mail-type=END,TIME_LIMIT_80", "--mail-user=ann@x.org")
    assert found.specs[0].notify == Notify(("end",), ("ann@x.org",))
    assert any("TIME_LIMIT_80 is not honoured" in warning for warning in found.warnings)
    assert script("--mail-type=ALL").specs[0].notify == Notify(KINDS, (script().specs[0].user,))
    for nothing in ("--mail-type=NONE", "--mail-type=STAGE_OUT"):
        assert script(nothing, "--mail-user=ann").specs[0].notify is None
    with pytest.raises(UsageError, match="nothing to be notified of"):
        script("--mail-type=LUNCH")
