"""Device memory of a real PyTorch program out and in. Needs a GPU; says why when it is skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, CudaState, open_api

BENCH = str(Path(__file__).parents[2] / "bench")
pytestmark = [pytest.mark.gpu, pytest.mark.processes]


@pytest.fixture
def programs(monkeypatch):
    """Two programs that compute the same; one of them is disturbed."""
    monkeypatch.setattr(sys, "path", [BENCH, *sys.path])
    import gpu_checkpoint

    if why := gpu_checkpoint.unavailable():
        pytest.skip(why)
    both = [gpu_checkpoint.Program(2**28), gpu_checkpoint.Program(2**28)]
    yield both
    for each in both:
        each.end()


def test_a_program_computes_the_same_bits_after_its_memory_was_away(programs):
    api = open_api()
    cuda = CudaCheckpoint(api)
    disturbed, plain = programs
    for _ in range(3):
        for each in programs:
            each.ask("20")
        cuda.suspend([disturbed.pid])
        assert api.state(disturbed.pid) is CudaState.CHECKPOINTED
        cuda.suspend([disturbed.pid])
        cuda.resume([disturbed.pid])
        assert api.state(disturbed.pid) is CudaState.RUNNING
        assert disturbed.answer() == plain.answer()


def test_a_process_without_cuda_is_left_alone(programs):
    cuda = CudaCheckpoint(open_api())
    assert cuda.users([1, programs[0].pid]) == [programs[0].pid]
