"""What ptxas makes of the gate, for a GPU that is not there. Run by make test-codegen; the whole models are in codegen/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is in the environment of make test-codegen only")

from tidewright.runtime.cuda import pretend
from tidewright.runtime.cuda.compile import wrappers_changed
from tidewright.runtime.cuda.cubin import CompiledCubin, compile_kernel, disassemble
from tidewright.runtime.cuda.gate import GATE_SOURCE, gate_source
from tidewright.runtime.cuda.settings import inductor_settings
from tidewright.runtime.cuda.wrapper import gate_wrapper

from .sources import INDUCTOR

NAME = "triton_poi_fused_0"


@pytest.fixture(scope="module")
def device() -> Iterator[None]:
    with pretend.pretended_device():
        yield


@pytest.fixture(scope="module")
def gated(device: None) -> CompiledCubin:
    return compile_kernel(NAME, gate_source(INDUCTOR))


def before_first(pattern: str, sass: str) -> list[str]:
    """The instructions of a kernel up to the first one that matches ``pattern``."""
    instructions = [line for line in sass.splitlines() if re.match(r"\s*/\*[0-9a-f]{4}\*/.*;\s*$", line)]
    end = next(place for place, line in enumerate(instructions) if re.search(pattern, line))
    return instructions[:end]


def having(pattern: str, instructions: list[str]) -> list[str]:
    return [line for line in instructions if re.search(pattern, line)]


def test_the_flag_is_read_once_for_the_whole_cta(gated: CompiledCubin) -> None:
    """One thread loads it (the others branch around the load), and behind a barrier all read its value from shared memory.
    Nothing is written before, and nothing is left of the atomic addition."""
    head = before_first(r"\bLDS\.64\b", disassemble(gated.cubin))
    (load,) = having(r"\bLDG\.E\.64\.STRONG\.GPU\b", head)
    assert having(r"@!?U?P\d.*\bBRA\b", head[: head.index(load)]) or "@" in load
    (store,) = having(r"\bSTS\.64\b", head)
    (barrier,) = having(r"\bBAR\.SYNC\b", head)
    assert "@" in store and head.index(load) < head.index(store) < head.index(barrier)
    assert not having(r"\b(ATOM|RED|STG)", head)


def test_the_kernels_own_loads_are_under_way_when_the_flag_is_read(gated: CompiledCubin) -> None:
    """Otherwise each CTA would wait for L2 twice, one time after the other."""
    head = before_first(r"\bBAR\.SYNC\b", disassemble(gated.cubin))
    loads = having(r"\bLDG\b", head)
    assert len(loads) > 2 and [at for at, load in enumerate(loads) if "STRONG" in load] == [len(loads) - 1]


def test_a_plain_load_of_the_flag_would_not_be_uniform(gated: CompiledCubin, device: None) -> None:
    """The planted defect: every thread of the CTA loads for itself and may leave, and no barrier makes them agree first."""
    first = GATE_SOURCE.splitlines()[0]
    wrong = GATE_SOURCE.replace(
        first, first.split("=")[0] + "= tl.load(tide_ctl.to(tl.pointer_type(tl.int64)), volatile=True)"
    )
    sass = disassemble(compile_kernel(NAME, gate_source(INDUCTOR, source=wrong)).cubin)
    assert not having(r"\bBAR\.SYNC\b", before_first(r"\bEXIT\b", sass))
    assert having(r"\bBAR\.SYNC\b", before_first(r"\bEXIT\b", disassemble(gated.cubin)))


def test_the_gate_costs_few_registers(gated: CompiledCubin, device: None) -> None:
    plain = compile_kernel(NAME, INDUCTOR).figures
    assert gated.figures.registers <= plain.registers + 16
    assert gated.figures.local_bytes == 0
    assert gated.figures.shared_bytes <= plain.shared_bytes + 8


def test_a_small_model_is_generated_and_gated_without_a_gpu() -> None:
    """A product, a 1x1 convolution (which Inductor offers to a library whatever the settings are) and a reduction."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 64, 64),
        torch.nn.Softmax(dim=-1),
    )
    text = pretend.generate(model.half().eval(), (torch.zeros(1, 16, 8, 8, dtype=torch.half),))
    launches = gate_wrapper(text).launches
    assert launches
    assert [launch for launch in launches if launch.excluded] == []
    assert any(launch.kernel.startswith("triton_tem_") for launch in launches)


def test_what_no_triton_kernel_exists_for_is_named() -> None:
    import torch

    class Sorts(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.sort(values * 2, dim=-1).values + 1

    launches = gate_wrapper(pretend.generate(Sorts(), (torch.zeros(3, 20000),))).launches
    named = [launch.kernel for launch in launches if launch.excluded]
    assert any("sort" in name for name in named)


def test_nothing_is_left_of_the_pretended_device() -> None:
    import torch

    with pretend.pretended_device():
        assert torch.cuda.is_available()
    assert torch.cuda.is_available() is (torch.cuda.device_count() > 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++ for the CPU")
def test_inductor_loads_the_changed_wrapper() -> None:
    """The hook of compile_gated with Inductor's own loading and running, on the CPU, whose kernels count as a library's."""
    import torch

    graphs, modules, boundaries = [], [], []

    def change(text: str) -> str:
        graphs.append(gate_wrapper(text))
        return graphs[-1].text

    def loaded(module: Any) -> None:
        module.tide_boundary = lambda index, gated: boundaries.append((index, gated))
        modules.append(module)

    function = torch.compile(lambda values: torch.relu(values * 2).sum() + 1, dynamic=False)
    values = torch.arange(-8.0, 8.0)
    with inductor_settings(), wrappers_changed(change, loaded):
        result = function(values)
    assert result == torch.relu(values * 2).sum() + 1
    assert len(modules) == 1
    indices = [launch.index for launch in graphs[0].launches]
    assert indices and boundaries == [bound for index in indices for bound in ((index, False), (index + 1, True))]
