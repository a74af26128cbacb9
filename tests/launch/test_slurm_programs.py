"""srun and scontrol in a task: what runs, what is answered, what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidewright.launch
from tidewright.launch.inject._tidewright.slurm.hostlist import compress, counts, expand, numbers
from tidewright.launch.inject._tidewright.slurm.options import (
    FLAGS,
    HARMLESS,
    KNOWN,
    MEANT,
    REFUSED,
    SHORT,
    StepRefused,
    parse,
)
from tidewright.launch.inject._tidewright.slurm.others import INSTEAD
from tidewright.launch.inject._tidewright.slurm.scontrol import reachable
from tidewright.launch.inject._tidewright.slurm.step import ANSWER, ELSEWHERE, RUN, SlurmTask, Step

PROGRAMS = Path(tidewright.launch.__file__).parent / "inject" / "_tidewright" / "slurm" / "bin"
TASK = {
    "SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "t", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NODEID": "1", "SLURM_LOCALID": "0", "SLURM_PROCID": "2",
    "SLURMD_NODENAME": "node2", "TIDE_SLURM_ADDRESSES": "node1=10.0.0.1,node2=10.0.0.2", "TIDE_SLURM_SCRIPT": "job.sh",
    "TIDE_SLURM_LINE": "7",
}  # fmt: skip
NAMES = st.builds("{}{}".format, st.sampled_from(["node", "gpu-a", "r1n", "x.y-"]), st.integers(0, 120).map(str))


def run(program: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**TASK, **more, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    return subprocess.run([program, *words], env=env, capture_output=True, text=True, check=False)


def verdict(line: str, **more: object) -> str:
    """What becomes of a step in the first task of the second of two nodes with two tasks each."""
    given = {
        "gpus_per_node": 2, "cpus": 4, "names": ["node1", "node2"], "node": 1, "addresses": {"node1": "10.0.0.1"}, "job": "12",
    }  # fmt: skip
    step = Step(*parse(line.split()), SlurmTask(4, 2, [2, 2], **{**given, **more}))  # type: ignore[arg-type]
    said = step.verdict()
    return step.answer() if said == ANSWER else said


@given(st.lists(NAMES | st.sampled_from(["login", "node007", "node008", "node09", "node10"]), max_size=12))
def test_a_list_of_hosts_is_read_as_it_was_written(names: list[str]) -> None:
    assert expand(compress(names)) == names


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_numbers_per_node_are_read_as_they_were_written(values: list[int]) -> None:
    assert numbers(counts(values)) == values


def test_lists_of_hosts_as_slurm_writes_them() -> None:
    assert compress(["node1", "node2", "node3", "node7"]) == "node[1-3,7]"
    assert compress(["n08", "n09", "n10", "login"]) == "n[08-10],login"
    assert compress(["n1"]) == "n1" and compress([]) == "" and counts([2, 2, 1]) == "2(x2),1"
    assert expand("rack[1-2]n[09-10],x") == ["rack1n09", "rack1n10", "rack2n09", "rack2n10", "x"]


@pytest.mark.parametrize("text", ["a[", "a]", "a[1-]", "a[x]", "a[2-1]", "a[1-9999999]", "a[0-60000],b[0-60000]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("hostname", RUN),
        ("-l -u --cpu-bind=none --kill-on-bad-exit=1 -K1 --export=ALL,A=b -n4 -N2 --mpi=none python x", RUN),
        ("--ntasks-per-node=2 --gres=gpu:2 -c4 --mem=0 --jobid=12 -m block x", RUN),
        ("-N1 -n1 -w node2 ray start", RUN),
        ("-N1 -n1 -w node1 ray start", ELSEWHERE),
        ("-n1 -r1 x", RUN),
        ("-N1 -n1 -w 10.0.0.1 x", ELSEWHERE),
        ("--nodes=1 --ntasks=1 -w node1 hostname --ip-address", "10.0.0.1"),
        ("-n1 -N1 hostname", "node1"),
        ("-n1 -N1 -w node2 hostname -I", "node2"),
    ],
)
def test_steps_that_are_honoured(line: str, becomes: str) -> None:
    assert verdict(line) == becomes


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-n1 python prepare.py", "would not wait"),
        ("-n3 x", "3 tasks on 2 nodes"),
        ("-N1 x", "2 tasks on 1 nodes"),
        ("-w node9 -N1 -n1 x", "no node of this job"),
        ("--mpi=pmix x", "no PMI"),
        ("--pty bash", "no terminal"),
        ("--multi-prog x.conf", "SLURM_PROCID"),
        ("--gres=gpu:1 x", "all GPUs"),
        ("-G 8 x", "all GPUs"),
        ("-c 64 x", "4 CPUs"),
        ("--export=NONE x", "ALL,NAME=VALUE"),
        ("--distribution=cyclic x", "block"),
        ("--jobid=13 x", "own job"),
        ("--begin=now x", "leave it out"),
        ("-n x y", "not a number"),
        ("--nosuch x", "no option of srun"),
        ("-n", "no value"),
        ("-l", "no command"),
        ("-N1 -n1 -w , hostname", "names no node"),
        ("-N1 -n1 --nodelist= hostname", "names no node"),
        ("-n ² x", "not a number from 1"),
        ("-c ² x", "not a number from 1"),
        ("-N1 -n1 -r ² x", "the job has 2 nodes"),
        ("-N1 -n1 -r1 -w node1 x", "give one of them"),
    ],
)
def test_steps_that_are_refused_say_why(line: str, why: str) -> None:
    with pytest.raises(StepRefused, match=why):
        verdict(line)


def test_one_task_has_every_step_to_itself() -> None:
    job = SlurmTask(1, 1, [1], names=["n1"])
    assert all(Step(*parse(line.split()), job).verdict() == RUN for line in ("x", "-n1 x", "-N1 -n1 -w n1 hostname"))


def test_every_option_has_one_meaning() -> None:
    assert not HARMLESS & MEANT and not MEANT & set(REFUSED) and not HARMLESS & set(REFUSED)
    assert set(SHORT.values()) <= KNOWN and FLAGS <= KNOWN


def test_agents_of_one_machine_are_named_by_address() -> None:
    known = {"east": "127.0.0.1", "node1": "10.0.0.1", "here": "127.0.0.1"}
    assert [reachable(name, known, "here.example") for name in ("east", "node1", "here", "strange")] == [
        "127.0.0.1", "node1", "here", "strange",
    ]  # fmt: skip


def test_srun_is_the_command_itself(tmp_path: Path) -> None:
    done = run(
        "srun", "--chdir", str(tmp_path), "--export=ALL,A=b", "sh", "-c", "echo $A $PWD $SLURM_STEP_NODELIST; exit 3"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"b {tmp_path} node[1-2]\n", "")
    done = run("srun", "-o", f"{tmp_path}/%x-%j-%3t", "sh", "-c", "echo x; echo y >&2; echo ${TIDE_SLURM_LINE-none}")
    assert done.returncode == 0 and (tmp_path / "t-12-002").read_text() == "x\ny\nnone\n"
    assert run("srun", "nosuchprogram").returncode == 2
    assert run("sh", "-c", "srun yes | head -1; :").stdout == "y\n"  # the command dies of SIGPIPE


def test_what_is_refused_is_named_with_the_line() -> None:
    done = run("srun", "--pty", "bash")
    assert (
        done.returncode == 1 and done.stderr.startswith("job.sh:7: srun: --pty cannot be honoured") and not done.stdout
    )
    assert "tide requeue" in run("scontrol", "requeue", "12").stderr
    assert "only in a task of a batch script" in run("srun", "x", SLURM_NTASKS="").stderr
    done = run("srun", "-N1", "-n1", "-w", "node1", "x")
    assert done.returncode == 0 and "runs on node1, not in task 2" in done.stderr


def test_scontrol_expands_lists() -> None:
    assert run("scontrol", "show", "hostnames").stdout == "node1\nnode2\n"
    assert run("scontrol", "show", "hostname", "a[1-2],b").stdout == "a1\na2\nb\n"
    assert run("scontrol", "show", "hostlist", "a1,a2").stdout == "a[1-2]\n"
    assert run("scontrol", "show", "hostnames", "a[").returncode == 1


def test_every_other_command_says_what_to_use() -> None:
    assert {path.name for path in PROGRAMS.iterdir()} == {*INSTEAD, "srun", "scontrol", "instead"}
    assert all(os.access(path, os.X_OK) for path in PROGRAMS.iterdir())
    done = run("scancel", "12")
    assert done.returncode == 1 and "use tide cancel" in done.stderr
