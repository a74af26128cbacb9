"""The example scripts are what the proofs of losslessness stand on: repeatable, sensitive, and able to resume."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_port

# Looked for, not imported: each worker that collects this file would spend two seconds of processor time on it.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is installed by make setup, not by the package"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("train_mlp.py", "train_cnn.py", "train_gpt.py", "train_ddp.py", "train_cooperative.py")
LIMIT_S = 120


def plain_environment(**extra: str) -> dict[str, str]:
    """One thread, and none of the variables that a surrounding launcher may have set."""
    dropped = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **extra}


def run(script: str, out: Path, *options: str) -> dict[str, object]:
    command = [sys.executable, str(EXAMPLES / script), "--out", str(out), *options]
    done = subprocess.run(
        command, env=plain_environment(), cwd=out.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert f"loss-hash {result['hash']}" in done.stdout
    return result


def short_run(script: str, out: Path, steps: int = 3, seed: int = 0) -> dict[str, object]:
    return run(script, out, "--steps", str(steps), "--batch", "8", "--seed", str(seed))


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_hash_tells_runs_apart(script: str, tmp_path: Path) -> None:
    """Equal for the same arguments; another with one step or one seed more."""
    first = short_run(script, tmp_path / "first.json")
    assert first["steps"] == 3
    assert short_run(script, tmp_path / "second.json")["hash"] == first["hash"]
    assert short_run(script, tmp_path / "longer.json", steps=4)["hash"] != first["hash"]
    assert short_run(script, tmp_path / "seeded.json", seed=1)["hash"] != first["hash"]


@pytest.mark.full
def test_cooperative_run_interrupted_twice_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = run("train_cooperative.py", tmp_path / "whole.json", "--steps", "250", "--batch", "256")
    options = ["--steps", "250", "--batch", "256", "--checkpoint", str(tmp_path / "saved.pt")]
    interrupt(tmp_path, options, after="step 50/")
    second = interrupt(tmp_path, options, after="resumed at step ")
    assert saved_step(second) >= 50
    parts = run("train_cooperative.py", tmp_path / "parts.json", *options)
    assert parts["hash"] == whole["hash"]
    assert not (tmp_path / "saved.pt").exists()


def test_cooperative_run_survives_a_signal_while_it_starts(tmp_path: Path) -> None:
    text = interrupt(tmp_path, ["--steps", "5"], after="")
    assert saved_step(text) == 0


def saved_step(text: str) -> int:
    match = re.search(r"saved at step (\d+)", text)
    assert match, text
    return int(match[1])


def interrupt(folder: Path, options: list[str], after: str) -> str:
    """SIGTERM the script at a line with ``after`` (empty: while it imports PyTorch); it must ask to be requeued."""
    command = [sys.executable, str(EXAMPLES / "train_cooperative.py"), *options]
    process = subprocess.Popen(command, env=plain_environment(), cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if after:
            head = next(line for line in process.stdout if after in line)
        else:
            head = wait_until_importing_torch(process.pid)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 75, head + text
    return head + text


def wait_until_importing_torch(pid: int) -> str:
    """The handler is set before torch is imported, so seeing torch mapped means that SIGTERM is handled."""
    maps = Path(f"/proc/{pid}/maps")
    while "libtorch" not in maps.read_text():
        time.sleep(0.002)
    return ""


@pytest.mark.full
def test_two_ranks_repeat_and_differ_from_one(tmp_path: Path) -> None:
    first, second = (two_ranks(tmp_path, number) for number in (1, 2))
    alone = run("train_ddp.py", tmp_path / "alone.json", "--steps", "3", "--batch", "8")
    assert first == second
    assert first != alone["hash"]


def two_ranks(folder: Path, number: int) -> str:
    """The hash of two ranks started by hand with torchrun's variables."""
    out = folder / f"pair-{number}.json"
    command = [sys.executable, str(EXAMPLES / "train_ddp.py"), "--steps", "3", "--batch", "8", "--out", str(out)]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen(command, env=plain_environment(RANK=str(rank), **shared)) for rank in range(2)]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return str(json.loads(out.read_text())["hash"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_example_knows_the_scheduler(script: str) -> None:
    tree = ast.parse((EXAMPLES / script).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.split(".")[0] == "tidewright"}
