"""Inductor's wrapper: launches are found and numbered, kernels gated, what cannot be stopped is named."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.runtime.cuda.exclusion import Exclusion
from tidewright.runtime.cuda.gate import GateRefused
from tidewright.runtime.cuda.ladder import GateLevel, kernel_levels, level_lines
from tidewright.runtime.cuda.wrapper import BOUNDARY, ChainSegment, gate_wrapper, segments

from .sources import COOPERATIVE, EXTERN, INDUCTOR, RUN, wrapper


def execute(text: str, control: object = "control", calls: int = 1, **more: Any) -> list[tuple[Any, ...]]:
    """What the wrapper launches, with everything that it needs replaced by recorders."""
    done: list[tuple[Any, ...]] = []

    class Kernel:
        def run(self, *arguments: Any, stream: int) -> None:
            done.append(("run", *arguments))

    class Compiler:
        def triton(self, name: str, source: str, device_str: str) -> Kernel:
            compile(source, name, "exec")
            return Kernel()

        def wait(self, scope: object) -> None:
            pass

    body = text.replace("from torch._inductor.async_compile import AsyncCompile", "").replace("import torch\n", "")
    module: dict[str, Any] = {"AsyncCompile": Compiler, "torch": _Torch, "get_raw_stream": lambda device: 7}
    module |= {"assert_size_stride": lambda *arguments: None, "extern_kernels": _Recorder(done), "buf0": "buf0", **more}
    exec(compile(body, "wrapper", "exec"), module)
    module["tide_ctl"] = control
    module[BOUNDARY] = lambda index, gated: done.append(("boundary", index, gated))
    for _ in range(calls):
        module["call"](["a", "b"])
    return done


class _Torch:
    float16 = "f16"

    class cuda:  # noqa: N801 - as in PyTorch
        @staticmethod
        def set_device(device: int) -> None:
            pass

        class _DeviceGuard:
            def __init__(self, device: int) -> None: ...
            def __enter__(self) -> None: ...
            def __exit__(self, *error: object) -> None: ...


class _Recorder:
    def __init__(self, done: list[tuple[Any, ...]]) -> None:
        self._done = done

    def mm(self, *arguments: Any, out: object) -> None:
        self._done.append(("mm", *arguments))


def test_launches_get_the_control_block_and_their_index() -> None:
    gated = gate_wrapper(wrapper(RUN + RUN))
    assert execute(gated.text) == [("run", "control", 1, "a", "b", 4096), ("run", "control", 2, "a", "b", 4096)]
    assert [(launch.index, launch.kernel, launch.excluded) for launch in gated.launches] == [
        (1, "triton_poi_fused_0", None),
        (2, "triton_poi_fused_0", None),
    ]


def test_a_second_graph_goes_on_counting() -> None:
    gated = gate_wrapper(wrapper(RUN), first_index=41)
    assert execute(gated.text)[0][:3] == ("run", "control", 41)


def test_a_library_kernel_is_named_and_stands_alone() -> None:
    gated = gate_wrapper(wrapper(RUN + EXTERN + RUN + RUN))
    done = execute(gated.text)
    assert [step[:3] for step in done] == [
        ("run", "control", 1),
        ("boundary", 2, False),
        ("mm", "a", "b"),
        ("boundary", 3, True),
        ("run", "control", 3),
        ("run", "control", 4),
    ]
    assert segments(gated.launches) == [ChainSegment(1, 1, True), ChainSegment(2, 2, False), ChainSegment(3, 4, True)]
    levels = kernel_levels(gated)
    assert [(one.kernel, one.launches, one.level) for one in levels] == [
        ("triton_poi_fused_0", 3, GateLevel.CTA_GATE),
        ("extern_kernels.mm", 1, GateLevel.BOUNDED),
    ]
    assert levels[1].excluded and levels[1].excluded.reason is Exclusion.EXTERNAL
    assert any("extern_kernels.mm" in line and "G2" in line for line in level_lines(levels))


@pytest.mark.parametrize(
    "call",
    ["buf0.copy_(arg0_1)", "aten.sort.default(arg0_1)", "torch.ops.mine.attention(arg0_1)", "cpp_fused_0(arg0_1)"],
)
def test_what_is_not_known_to_be_harmless_counts_as_a_launch(call: str) -> None:
    (launch,) = gate_wrapper(wrapper(f"        buf1 = {call}\n")).launches
    assert launch.excluded and launch.excluded.reason is Exclusion.EXTERNAL
    assert launch.kernel == call.partition("(")[0]


def test_an_excluded_kernel_stays_as_it_is() -> None:
    gated = gate_wrapper(wrapper(RUN, {"triton_poi_fused_0": COOPERATIVE}))
    assert execute(gated.text) == [("boundary", 1, False), ("run", "a", "b", 4096), ("boundary", 2, True)]
    assert gated.kernels["triton_poi_fused_0"].gated == ""


def test_a_kernel_launched_under_a_condition_is_gated_nowhere() -> None:
    conditional = "        if arg0_1:\n            triton_poi_fused_0.run(arg0_1, arg1_1, 4096, stream=7)\n"
    gated = gate_wrapper(wrapper(RUN + conditional))
    assert [launch.excluded and launch.excluded.reason for launch in gated.launches] == [Exclusion.CONTROL_FLOW] * 2
    assert execute(gated.text) == [
        ("boundary", 1, False),
        ("run", "a", "b", 4096),
        ("boundary", 2, True),
        ("boundary", 2, False),
        ("run", "a", "b", 4096),
        ("boundary", 3, True),
    ]


def test_two_foreign_launches_of_one_statement_have_one_pair_of_boundaries() -> None:
    gated = gate_wrapper(
        wrapper("        extern_kernels.mm(arg0_1, extern_kernels.mm(arg0_1, arg1_1, out=buf0), out=buf0)\n")
    )
    assert execute(gated.text) == [("boundary", 1, False), ("mm", "a", "b"), ("mm", "a", None), ("boundary", 3, True)]


def test_each_call_computes_in_the_same_memory() -> None:
    first = "        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float16)\n"
    allocations = first + "        buf1 = empty_strided_cuda((8,), (1,), 'f')\n"
    text = gate_wrapper(wrapper(allocations + "        extern_kernels.mm(buf0, buf1, out=buf0)\n")).text
    made: list[tuple[Any, ...]] = []

    def allocate(*form: Any) -> str:
        made.append(form)
        return f"memory {len(made)}"

    done = execute(text, empty_strided_cuda=allocate, calls=2)
    assert [step for step in done if step[0] == "mm"] == [("mm", "memory 1", "memory 2")] * 2
    assert [len(form) for form in made] == [3, 3] and made[0][:2] == ((8, 8), (8, 1))


def test_two_kernels_keep_their_sources_apart() -> None:
    other = INDUCTOR.replace("triton_poi_fused_0", "triton_poi_fused_1").replace("0.0", "1.0")
    gated = gate_wrapper(wrapper(RUN, {"triton_poi_fused_0": INDUCTOR, "triton_poi_fused_1": other}))
    assert "triton_poi_fused_1" in gated.kernels["triton_poi_fused_1"].gated
    assert len(gated.launches) == 1


def test_a_wrapper_in_partitions_is_refused() -> None:
    with pytest.raises(GateRefused):
        gate_wrapper(wrapper(RUN).replace("def call(args)", "def partition_0(args)"))
