"""Compiling for a device: what is said where there is none, and the checks around it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tidewright.base.errors import UsageError, WorldError
from tidewright.runtime.cuda.compile import GatedModel, compile_gated, require_device, require_equal
from tidewright.runtime.cuda.gate import CONTROL
from tidewright.runtime.cuda.occupancy import ctas_per_multiprocessor
from tidewright.runtime.cuda.wrapper import gate_wrapper

from .sources import EXTERN, RUN, wrapper


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="torch") as error:
        require_device()
    assert error.value.remedy


def test_a_missing_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        compile_gated(None, ())
    assert "GPU" in error.value.remedy


def test_an_old_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=lambda: (6, 1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"6\.1"):
        require_device()


def test_a_control_block_is_bound_to_all_graphs() -> None:
    first = gate_wrapper(wrapper(RUN + EXTERN))
    model = GatedModel(len, [first, gate_wrapper(wrapper(RUN), first_index=3)], [SimpleNamespace(), SimpleNamespace()])
    model.bind("control")
    assert [getattr(module, CONTROL) for module in model.modules] == ["control", "control"]
    assert [(level.kernel, level.level.code) for level in model.levels()] == [
        ("triton_poi_fused_0", "G4"),
        ("extern_kernels.mm", "G2"),
        ("triton_poi_fused_0", "G4"),
    ]


def test_results_are_compared_bit_for_bit() -> None:
    pytest.importorskip("triton", reason="run by make test-codegen, whose PyTorch it is for")
    import torch

    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    require_equal((nan, zero), (nan.clone(), zero.clone()))
    with pytest.raises(WorldError):
        require_equal((zero,), (-zero,))


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "ctas"),
    [
        (32, 4, 0, 16),  # all 64 warps
        (255, 8, 0, 1),
        (96, 4, 9216, 5),
        (128, 4, 100_000, 2),  # shared memory is what is short
        (16, 1, 0, 32),  # the most CTAs of a multiprocessor
        (255, 32, 0, 0),
    ],
)
def test_occupancy(registers: int, warps: int, shared: int, ctas: int) -> None:
    assert ctas_per_multiprocessor(registers, warps, shared) == ctas
