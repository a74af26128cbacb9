"""The programs that must pass, and how a user starts each."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "unmodified"


@dataclass(frozen=True, slots=True)
class Program:
    """``command`` with ``{python}`` and ``{here}`` filled in; ``workers`` is how many digests a job of one rank prints.

    ``steps`` take one to two seconds at one CPU per rank, without the imports.
    """

    name: str
    command: tuple[str, ...]
    ranks: tuple[int, ...] = (1,)
    steps: int = 100
    workers: int = 1
    needs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def argv(self, steps: int = 0) -> list[str]:
        """What a user would type. ``steps`` 0: the program's own number."""
        words = [word.format(python=sys.executable, here=EXAMPLES) for word in self.command]
        return [*words, "--steps", str(steps or self.steps)]

    def missing(self) -> str:
        """What this machine lacks for it; empty when nothing."""
        lacking = [name for name in self.needs if importlib.util.find_spec(name) is None]
        lacking += [name for name in self.tools if shutil.which(name) is None]
        return ", ".join(lacking)


def script(name: str, *options: str, **more: object) -> Program:
    title = "-".join([name, *(option.lstrip("-") for option in options)])
    return Program(title, ("{python}", f"{{here}}/{name}.py", *options), **more)  # type: ignore[arg-type]


TORCH = ("torch",)
PROGRAMS = (
    script("ddp_mlp", ranks=(1, 2, 4), steps=100, needs=TORCH),
    script("ddp_cnn", ranks=(1, 2), steps=120, needs=TORCH),
    script("fsdp2_gpt", ranks=(1, 2), steps=80, needs=TORCH),
    script("ddp_accumulate", ranks=(2,), steps=150, needs=TORCH),
    script("ddp_accumulate", "--find-unused", ranks=(2,), steps=150, needs=TORCH),
    script("ddp_accumulate", "--static-graph", ranks=(2,), steps=150, needs=TORCH),
    script("loader_workers", ranks=(1, 2), steps=150, needs=TORCH),
    script("loader_workers", "--new-workers", ranks=(1, 2), steps=150, needs=TORCH),
    script("mesh_2d", ranks=(1, 2, 4), steps=120, needs=TORCH),
    script("store_population", ranks=(2, 4), steps=300, needs=TORCH),
    script("zero_optim", ranks=(2,), steps=200, needs=TORCH),
    script("compile_mlp", ranks=(1, 2), steps=200, needs=TORCH, tools=("g++",)),
    script("fabric_fit", ranks=(1, 2), steps=200, needs=("lightning",)),
    script("hf_trainer", ranks=(1, 2), steps=80, needs=("transformers", "accelerate")),
    script("accelerate_fit", ranks=(1, 2), steps=200, needs=("accelerate",)),
    script("plain_numpy", steps=1500),
    script("sklearn_fit", steps=100, needs=("sklearn",)),
    script("joblib_grid", steps=12, needs=("sklearn",)),
    script("optuna_sqlite", steps=60, needs=("optuna",)),
    script("h5py_log", steps=400, needs=("h5py",)),
    script("lightgbm_fit", steps=300, needs=("lightgbm",)),
    script("xgboost_fit", steps=200, needs=("xgboost",)),
    script("catboost_fit", steps=300, needs=("catboost",)),
    script("jax_fit", steps=600, needs=("jax", "optax")),
    script("numpyro_mcmc", steps=400, needs=("numpyro",)),
    script("pyg_gcn", steps=200, needs=("torch", "torch_geometric")),
    script("peft_lora", steps=100, needs=("torch", "peft")),
    script("keras_fit", steps=60, needs=("torch", "keras")),
    script("sb3_subproc", steps=20, needs=("stable_baselines3",)),
    script("logs_csv_tb", steps=150, needs=("torch", "tensorboard")),
    script("tcp_pairs", steps=600),
    script("zmq_workers", steps=400, needs=("zmq",)),
    script("asyncio_server", steps=300),
    script("dask_cluster", steps=25, needs=("distributed",)),
    script("pool", steps=300),
    script("pool", "--start-method", "forkserver", steps=300),
    Program(
        "torchrun",
        ("{python}", "-m", "torch.distributed.run", "--nproc-per-node", "2", "{here}/ddp_mlp.py"),
        steps=200,
        workers=2,
        needs=TORCH,
    ),
    Program(
        "accelerate-launch",
        ("{python}", "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", "{here}/accelerate_fit.py"),
        steps=200,
        workers=2,
        needs=("accelerate",),
    ),
)  # fmt: skip
