"""What a model's kernels are and how they can be stopped, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.base.errors import UsageError
from tidewright.runtime.cuda.inspection import inspect_kernels
from tidewright.runtime.transport.messages import ModelSource
from tidewright.runtime.transport.tensors import TensorSpec

MODEL = """
import torch

class Sorts(torch.nn.Module):
    def forward(self, values):
        return torch.sort(values * 2, dim=-1).values + 1

def small():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())

def no_module():
    return lambda x: x
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODEL)
    return str(tmp_path)


def test_without_triton_it_says_what_to_install(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(UsageError, match="triton") as error:
        inspect_kernels(ModelSource("mine.py:small"), [TensorSpec("float16", (8, 64))], folder)
    assert "pip install" in error.value.remedy


def test_kernels_are_listed_with_their_levels(folder: str) -> None:
    pytest.importorskip("triton", reason="Triton is in the environment of make test-codegen only")
    device, levels = inspect_kernels(ModelSource("mine.py:small"), [TensorSpec("float16", (8, 64))], folder)
    assert "H200" in device
    assert levels and {one.level.code for one in levels} == {"G4"}
    _, levels = inspect_kernels(ModelSource("mine.py:Sorts"), [TensorSpec("float32", (3, 20_000))], folder)
    assert any(one.excluded is not None and one.sentence for one in levels)
    with pytest.raises(UsageError, match="made a function"):
        inspect_kernels(ModelSource("mine.py:no_module"), [TensorSpec("float32", (3,))], folder)
