"""Batch scripts for several nodes as PyTorch, Accelerate and Lightning document them, on two hosts."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.unmodified.harness import user_environment
from tests.unmodified.pool import FINAL, Pool
from tidewright.app.jobspec.load import load
from tidewright.app.jobspec.loaded import Submitter

pytestmark = pytest.mark.processes
MET = "world {world} rank {rank} sum 3.0"

TORCHRUN = """\
#!/bin/bash
#SBATCH --job-name=multinode-example
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=1

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)

echo Node IP: $head_node_ip
export LOGLEVEL=WARNING
srun torchrun \\
--nnodes $SLURM_NNODES \\
--nproc_per_node $SLURM_GPUS_ON_NODE \\
--rdzv_id $RANDOM \\
--rdzv_backend c10d \\
--rdzv_endpoint $head_node_ip:29500 \\
train.py
"""
TORCH_TRAIN = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("world", dist.get_world_size(), "rank", dist.get_rank(), "sum", total.item())
dist.destroy_process_group()
"""

ACCELERATE = """\
#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH -D .
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=1
#SBATCH --time=00:05:00

source activateEnviroment.sh
export GPUS_PER_NODE=1

head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)

export LAUNCHER="accelerate launch \\
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \\
    --num_machines $SLURM_NNODES \\
    --rdzv_backend c10d \\
    --main_process_ip $head_node_ip \\
    --main_process_port 29500 \\
    "
export CMD="$LAUNCHER train.py"
srun $CMD
"""
ACCELERATE_TRAIN = """\
import torch
from accelerate import Accelerator
made = Accelerator(cpu=True)
total = made.reduce(torch.ones(1) * (made.process_index + 1)).item()
print("world", made.num_processes, "rank", made.process_index, "sum", total)
made.end_training()
"""
ACCELERATE_CONFIG = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: 'no'\n"
"""The user's own (HF_HOME): without GPUs the launcher has to be asked for several processes."""

LIGHTNING = """\
#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --gres=gpu:1
#SBATCH --ntasks-per-node=1
#SBATCH --mem=0
#SBATCH --time=0-00:05:00

source ./activateEnviroment.sh
export PYTHONFAULTHANDLER=1
srun python3 train.py
"""
LIGHTNING_TRAIN = """\
import torch
import lightning
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.demos.boring_classes import BoringModel
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_steps=3, **quiet)
assert isinstance(trainer.strategy.cluster_environment, SLURMEnvironment)
trainer.fit(BoringModel())
total = trainer.strategy.reduce(torch.ones(1) * (trainer.global_rank + 1), reduce_op="sum").item()
print("world", trainer.world_size, "rank", trainer.global_rank, "sum", total)
"""


def run(pool: Pool, name: str, script: str, train: str) -> list[str]:
    """Submit a script as ``tide submit`` does; the logs of its two tasks."""
    work = pool.root / name
    work.mkdir()
    (work / "train.py").write_text(train)
    (work / "activateEnviroment.sh").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
    (work / "hf" / "accelerate").mkdir(parents=True)
    (work / "hf" / "accelerate" / "default_config.yaml").write_text(ACCELERATE_CONFIG)
    (work / "job.sh").write_text(script)
    env = {**user_environment(work), "HF_HOME": str(work / "hf"), "PYTHONUNBUFFERED": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    loaded = load(work / "job.sh", Submitter(env, str(work), "me"))
    assert not [line for line in loaded.warnings if "srun" in line or "scontrol" in line]
    (job,) = pool.client().submit(loaded.specs).ids
    pool.until(lambda: pool.view(job).state in FINAL, 120)
    logs = [pool.log(job, rank) for rank in range(2)]
    assert pool.view(job).state == "completed", "\n".join(logs)
    return logs


def test_torchrun_is_started_on_two_nodes_as_the_script_says(pool: Pool) -> None:
    """The tasks draw the same rendezvous id and find the address of the first node. What stands in for torchrun prints what it is
    given; PyTorch's takes many seconds to start."""
    script = TORCHRUN.replace("srun torchrun", f"srun {sys.executable} train.py")
    program = (
        "import os, sys\nprint('task', os.environ['SLURM_PROCID'], 'of', os.environ['SLURM_NTASKS'], *sys.argv[1:])\n"
    )
    logs = run(pool, "stand-in", script, program)
    assert all("Node IP: 127.0.0.1" in log for log in logs)
    said = dict(re.findall(r"task (\d) of 2 (.*)", "".join(logs)))
    assert sorted(said) == ["0", "1"] and said["0"] == said["1"]
    options = (
        r"--nnodes 2 --nproc_per_node 1 --rdzv_id \d+ --rdzv_backend c10d --rdzv_endpoint 127\.0\.0\.1:29500 train\.py"
    )
    assert re.fullmatch(options, said["0"]), said


def test_torchrun_over_two_nodes(pool: Pool) -> None:
    """One of them hosts the rendezvous."""
    pytest.importorskip("torch")
    logs = run(
        pool, "torchrun", TORCHRUN, 'import os\nprint("world", os.environ["WORLD_SIZE"], "rank", os.environ["RANK"])\n'
    )
    assert all("Node IP: 127.0.0.1" in log for log in logs)
    assert all(f"world 2 rank {rank}" in "".join(logs) for rank in range(2))


@pytest.mark.full
@pytest.mark.parametrize(
    ("library", "script", "train"),
    [
        ("torch", TORCHRUN, TORCH_TRAIN),
        ("accelerate", ACCELERATE, ACCELERATE_TRAIN),
        ("lightning", LIGHTNING, LIGHTNING_TRAIN),
    ],
)
def test_programs_over_two_nodes(pool: Pool, library: str, script: str, train: str) -> None:
    pytest.importorskip(library)
    logs = "".join(run(pool, library, script, train))
    assert all(MET.format(world=2, rank=rank) in logs for rank in range(2))
