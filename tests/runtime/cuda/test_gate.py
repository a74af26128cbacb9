"""The pass that puts the gate into Triton kernels: what it changes, and what it refuses."""

from __future__ import annotations

import ast

import pytest

from tidewright.runtime.cuda.gate import CONTROL, GATE_SOURCE, KERNEL, GateRefused, entry_kernels, gate_source

from .sources import BY_HAND, HEAD, INDUCTOR


def function(text: str, name: str) -> ast.FunctionDef:
    return next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)


def arguments(text: str, name: str) -> list[str]:
    return [argument.arg for argument in function(text, name).args.args]


def test_a_kernel_by_hand_gets_two_parameters_and_the_gate_behind_its_first_loads() -> None:
    gated = gate_source(BY_HAND)
    assert arguments(gated, "scale_in_place") == [CONTROL, KERNEL, "pointer", "n", "BLOCK"]
    body = function(gated, "scale_in_place").body
    assert ast.get_docstring(function(gated, "scale_in_place")) == "Multiply by three."
    gate = ast.parse("def f():\n" + "".join(f"    {line}\n" for line in GATE_SOURCE.splitlines())).body[0]
    assert isinstance(gate, ast.FunctionDef)
    count = len(gate.body)
    assert [ast.dump(node) for node in body[3 : 3 + count]] == [ast.dump(node) for node in gate.body]
    plain = function(BY_HAND, "scale_in_place").body
    assert [ast.dump(node) for node in body[:3] + body[3 + count :]] == [ast.dump(node) for node in plain]


def test_helpers_of_a_kernel_are_not_gated() -> None:
    assert entry_kernels(ast.parse(BY_HAND)) == ["scale_in_place"]
    assert arguments(gate_source(BY_HAND), "_scale") == ["x", "factor"]


def test_the_index_is_not_specialized_on() -> None:
    """Otherwise kernel 1, kernel 16 and the others would be three compilations."""
    decorator = function(gate_source(BY_HAND), "scale_in_place").decorator_list[0]
    assert ast.unparse(decorator) == f"triton.jit(do_not_specialize=['{KERNEL}'])"
    listed = BY_HAND.replace("@triton.jit\ndef scale", "@triton.jit(do_not_specialize=[1, 'n'])\ndef scale")
    decorator = function(gate_source(listed), "scale_in_place").decorator_list[0]
    assert ast.unparse(decorator) == f"triton.jit(do_not_specialize=['{KERNEL}', 3, 'n'])"


def test_meta_data_of_inductor_is_shifted() -> None:
    gated = gate_source(INDUCTOR)
    heuristics = function(gated, "triton_poi_fused_0").decorator_list[0]
    assert isinstance(heuristics, ast.Call)
    meta = next(keyword.value for keyword in heuristics.keywords if keyword.arg == "triton_meta")
    assert isinstance(meta, ast.Dict)
    values = {ast.literal_eval(key): value for key, value in zip(meta.keys, meta.values, strict=True) if key}
    assert list(ast.literal_eval(values["signature"]).items())[:3] == [
        (CONTROL, "*i32"),
        (KERNEL, "i32"),
        ("in_out_ptr0", "*fp16"),
    ]
    assert ast.literal_eval(values["configs"]) == [{(2,): [["tt.divisibility", 16]], (3, 4): [["tt.divisibility", 16]]}]
    assert list(ast.literal_eval(values["signature"])) == arguments(gated, "triton_poi_fused_0")


def test_a_gated_kernel_is_not_gated_again() -> None:
    with pytest.raises(GateRefused):
        gate_source(gate_source(BY_HAND))


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "x = 1\n",
        HEAD + "def plain(x):\n    return x\n",
        BY_HAND.replace("import triton.language as tl", "from triton import language"),
        BY_HAND.replace("def scale_in_place(pointer, n,", "def scale_in_place(pointer, n, /,"),
        INDUCTOR.replace("'constants': {}", "'constants': make_constants()"),
        INDUCTOR.replace("'configs': [{(0,)", "'configs': [AttrsDescriptor(), {(0,)"),
        BY_HAND.replace("@triton.jit\ndef scale", "@triton.jit(do_not_specialize=NAMES)\ndef scale"),
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(GateRefused):
        gate_source(text)


def test_a_kernel_that_is_not_there_is_refused() -> None:
    with pytest.raises(GateRefused):
        gate_source(BY_HAND, ["another"])
