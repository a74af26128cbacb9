"""The share of a device's memory: what frameworks read, and PyTorch's limit, with a stand-in for torch's CUDA side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.gang import INJECT
from tidewright.launch.memory_share import FRACTION, LIMITS, within

STUB = '''
"""The part of torch.cuda that the wrapper relies on (torch/cuda/__init__.py and memory.py of 2.x)."""
from . import memory
from .memory import set_per_process_memory_fraction
_initialized, _queued, calls = False, [], memory.calls

def _lazy_call(callable, **kwargs):
    callable() if _initialized else _queued.append(callable)

def _lazy_init():
    global _initialized
    if not _initialized:
        _initialized = True
        for each in _queued:
            each()

def device_count():
    return 2
'''
MEMORY = """
calls = []

def set_per_process_memory_fraction(fraction, device=None):
    import torch.cuda
    torch.cuda._lazy_init()
    calls.append((fraction, device))
"""
PROGRAM = """
import torch.cuda
assert not torch.cuda._initialized and not torch.cuda.calls, "CUDA is left alone until the program wants it"
torch.cuda._lazy_init()
print(torch.cuda.calls)
torch.cuda.set_per_process_memory_fraction(0.9, 0)
torch.cuda.memory.set_per_process_memory_fraction(0.1, 0)
print(torch.cuda.calls[2:])
"""


NUMBERS = st.sampled_from(("", "0", "-1", "x", "0.1", "10", "30", "90", "100"))


@given(
    st.dictionaries(st.sampled_from(LIMITS), NUMBERS),
    st.dictionaries(st.sampled_from((*LIMITS, "OTHER")), st.just("30")),
)
def test_a_limit_of_the_users_own_stays_when_it_is_lower(own: dict[str, str], granted: dict[str, str]) -> None:
    found = within(own, granted)
    assert found.keys() == granted.keys(), "nothing is added, and what was granted is set"
    for name, text in found.items():
        assert text == (own[name] if name in LIMITS and own.get(name) in ("0.1", "10") else granted[name])


def test_a_priority_is_not_the_users_to_choose() -> None:
    assert within({"CUDA_MPS_CLIENT_PRIORITY": "0"}, {"CUDA_MPS_CLIENT_PRIORITY": "1"}) == {
        "CUDA_MPS_CLIENT_PRIORITY": "1"
    }


def run(tmp_path: Path, program: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TIDE_", "PYTHON"))}
    path = f"{INJECT}:{tmp_path}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**plain, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A torch that is nothing but CUDA's side of it."""
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(STUB)
    (tmp_path / "torch" / "cuda" / "memory.py").write_text(MEMORY)
    return tmp_path


@pytest.mark.parametrize("wrapped", [True, False])
def test_torch_is_limited_when_cuda_is_initialised_and_cannot_raise_it(stub: Path, wrapped: bool) -> None:
    env = {FRACTION: "0.25", **({"TIDE_BOX": str(stub)} if wrapped else {})}
    done = run(stub, PROGRAM, **env)
    assert done.stdout.splitlines() == ["[(0.25, 0), (0.25, 1)]", "[(0.25, 0), (0.1, 0)]"]


def test_without_a_share_torch_is_as_it_was(stub: Path) -> None:
    done = run(stub, "import torch.cuda; torch.cuda._lazy_init(); print(torch.cuda.calls)", TIDE_BOX=str(stub))
    assert done.stdout == "[]\n"


def test_a_torch_that_is_otherwise_costs_a_line_and_not_the_program(stub: Path) -> None:
    (stub / "torch" / "cuda" / "__init__.py").write_text("")
    done = run(stub, "import torch.cuda; print('runs')", **{FRACTION: "0.25"})
    assert done.stdout == "runs\n" and "memory limit could not be set" in done.stderr


@pytest.mark.full
@pytest.mark.processes
def test_the_installed_torch_has_the_limit_queued_for_the_moment_cuda_is_used(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (
        "import torch.cuda; print([str(each[0]) for each in torch.cuda._queued_calls if '_apply' in str(each[0])])"
    )
    done = run(tmp_path, program, **{FRACTION: "0.25"})
    assert "_apply" in done.stdout, done.stderr
