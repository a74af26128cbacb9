"""The gate's Triton source in Triton's interpreter, preempted at random by another thread. Run by make test-codegen."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is in the environment of make test-codegen only")


def run(variant: str, chains: int) -> dict[str, int]:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    command = [sys.executable, "-m", "tests.runtime.cuda.interpreted", variant, str(chains), "1"]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_preempted_chains_of_in_place_kernels_are_exact() -> None:
    counts = run("gate", 6)
    assert counts["exact"] == counts["chains"]
    assert counts["partial"] >= 12, "requests came between kernels only; the gate was hardly put to the test"


@pytest.mark.parametrize("variant", ["not-sticky", "kernel-restart"])
def test_known_wrong_gates_are_caught(variant: str) -> None:
    counts = run(variant, 2)
    assert counts["exact"] < counts["chains"]
