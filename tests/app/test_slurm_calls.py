"""A script's calls of Slurm and MPI, found by reading it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.app.jobspec.loaded import Loaded, Submitter
from tidewright.app.jobspec.sbatch import load
from tidewright.app.jobspec.shell_commands import shell_commands
from tidewright.base.errors import UsageError

SHELL = """\
# srun in a comment
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
ip=$(srun --nodes=1 -n1 \\
    -w "$head" hostname --ip-address)
cat <<EOF
srun in a document
EOF
echo "srun quoted" 'srun' # srun
if true; then
  srun a 2>&1 | tee log
fi
f() { srun b; }
for i in 1 2; do srun c & done; wait
srun --ntasks=$SLURM_NTASKS d > out.txt
test -e x || srun e
case $x in
  a) srun f ;;
esac
A=1 exec srun g; (srun h); ((i++)); x=$((1+2)); y=`srun i`
"""


def test_commands_are_found_with_their_lines() -> None:
    found = [command for command in shell_commands(SHELL, {"SLURM_NTASKS": "4"}) if command.words[0] == "srun"]
    said = {command.words[-1]: command for command in found}
    assert {name: command.line for name, command in said.items()} == {
        "--ip-address": 3, "a": 10, "b": 12, "c": 13, "d": 14, "e": 15, "f": 17, "g": 19, "h": 19, "i": 19,
    }  # fmt: skip
    assert [name for name, command in said.items() if command.sure] == ["--ip-address", "d", "g", "h", "i"]
    assert [name for name, command in said.items() if command.captured] == ["--ip-address", "i"]
    assert [name for name, command in said.items() if command.forked] == ["a", "c"]
    assert said["d"].words == ("srun", "--ntasks=4", "d")


@given(st.text(alphabet="a b\n$(){}[]<>|&;'\"`\\#=srun", max_size=60))
def test_any_text_is_read_to_its_end(text: str) -> None:
    assert all(1 <= command.line <= text.count("\n") + 1 for command in shell_commands(text, {}))


def submit(
    body: str, options: str = "--nodes=2 --ntasks-per-node=1 --gres=gpu:2", shell: str = "#!/bin/bash"
) -> Loaded:
    text = f"{shell}\n#SBATCH {options}\n{body}\n"
    return load(Path("/nowhere/job.sh"), text, Submitter({"PATH": "/usr/bin"}, "/srv", "me"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("srun --pty bash", "srun: --pty"),
        ("srun -n8 x", "8 tasks on 2 nodes"),
        ("srun -n1 -N1 python prepare.py", "would not wait"),
        ("x=$(srun -N1 -n1 -w $h cat /proc/version)", "known on one node only"),
        ("mpirun -np 4 ./x", "each of the 2 tasks would start it"),
    ],
)
def test_what_surely_fails_is_refused_with_its_line(body: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        submit(f"echo\n{body}")
    assert "job.sh:4: " in caught.value.message and why in caught.value.message
    assert any(
        "job.sh:5: " in warning and why in warning for warning in submit(f"echo\nif x; then\n{body}\nfi").warnings
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sbatch next.sh", "use tide submit"),
        ("scancel $SLURM_JOB_ID", "use tide cancel"),
        ("scontrol requeue $SLURM_JOB_ID", "use tide requeue"),
        ("srun -N1 -n1 -w $h ray start &", "without waiting"),
        ("srun torchrun --rdzv_id $(uuidgen) x.py", "each task finds another value"),
    ],
)
def test_what_may_go_wrong_is_named_with_its_line(body: str, why: str) -> None:
    assert [warning for warning in submit(body).warnings if "job.sh:3: " in warning and why in warning]


@pytest.mark.parametrize(
    "body",
    [
        "srun --label -u --ntasks=$SLURM_NTASKS --nodes=$SLURM_NNODES python x.py",
        'ip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)',
        "srun $OPTIONS python x.py",
        "srun -n $N x",
        "echo srun --pty",
    ],
)
def test_what_is_honoured_or_not_known_yet_is_not_named(body: str) -> None:
    assert submit(body).warnings == []


def test_one_task_may_start_mpirun() -> None:
    assert submit("mpirun -np 4 ./x", "--ntasks=1 --gres=gpu:4").warnings == []
