"""What make test-codegen takes for a failure of a model."""

from __future__ import annotations

from typing import Any

import pytest

from .codegen.check import _cost, failures


def side(**changed: Any) -> dict[str, Any]:
    return {"registers": 32, "local_bytes": 0, "shared_bytes": 0, "occupancy": 16, "instructions": {"mma": 4}} | changed


def result(**changed: Any) -> dict[str, Any]:
    """Of a model with one gated kernel, launched twice."""
    return {
        "triton_launches": 2,
        "runs_in_text": 2,
        "levels": {"G4": 1, "G2": 0},
        "below_the_gate": [],
        "errors": {},
        "gate_cost": _cost([{"plain": side(), "gated": side(registers=34, shared_bytes=8)}]),
    } | changed


def test_a_model_whose_kernels_all_have_the_gate_passes() -> None:
    assert failures(result()) == []
    named = {
        "kernel": "extern_kernels.mm",
        "launches": 1,
        "level": "G2",
        "reason": "external",
        "where": "extern_kernels.mm",
    }
    assert failures(result(below_the_gate=[named])) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"errors": {"triton_poi_fused_0": "CompilationError"}},
        {"gate_cost": _cost([])},  # a kernel was compiled on one side only
        {"runs_in_text": 3},  # a launch was overlooked
        {"below_the_gate": [{"kernel": "extern_kernels.mm", "level": "G2"}]},  # no reason
        {"below_the_gate": [{"kernel": "extern_kernels.mm", "level": "G1", "reason": "external"}]},
        {"gate_cost": _cost([{"plain": side(), "gated": side(instructions={"mma": 2})}])},  # the pipeline was lost
    ],
)
def test_what_is_wrong_with_a_model_is_found(changed: dict[str, Any]) -> None:
    assert failures(result(**changed))


def test_costs_are_counted() -> None:
    cost = _cost(
        [
            {"plain": side(), "gated": side(registers=30, occupancy=14)},
            {"plain": side(), "gated": side(registers=40, local_bytes=8, occupancy=17, shared_bytes=8)},
        ]
    )
    assert cost["registers"] == {"least": -2, "most": 8, "mean": 3}
    assert (cost["occupancy_lower"], cost["occupancy_higher"], cost["local_memory_new"]) == (1, 1, 1)
    assert cost["shared_bytes_most"] == 8
