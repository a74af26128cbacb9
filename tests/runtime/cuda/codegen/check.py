"""Checks one model: generates its wrapper, gates it, compiles each kernel twice, and keeps what it has done so far in a
folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from tidewright.runtime.cuda import cubin, exclusion, gate, pretend, settings, wrapper
from tidewright.runtime.cuda.grids import grid_sizes
from tidewright.runtime.cuda.ladder import GateLevel, kernel_levels
from tidewright.runtime.cuda.wrapper import GatedWrapper, KernelSource, gate_wrapper, segments

from . import models

Figures = dict[str, dict[str, Any]]
"""``{"plain": CubinFigures, "gated": CubinFigures}``, or ``{"error": ...}``, by kernel."""


def versions() -> dict[str, str]:
    import numpy
    import torch
    import torchvision
    import transformers
    import triton

    return {module.__name__: module.__version__ for module in (numpy, torch, torchvision, transformers, triton)}


def fingerprint() -> str:
    """Of everything that the result depends on: what was done under another one is done again."""
    files = [Path(module.__file__ or "") for module in (cubin, exclusion, gate, pretend, settings, wrapper, models)]
    text = json.dumps(versions(), sort_keys=True).encode() + b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(text).hexdigest()[:16]


def check(name: str, folder: Path, workers: int = 2) -> dict[str, Any]:
    """The result of model ``name``. What ``folder`` holds of an interrupted run is not done again."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name}.wrapper.py"
    if not kept.exists():
        _write(kept, pretend.generate(*models.build(name)))
    text = kept.read_text()
    gated = gate_wrapper(text)
    compile(gated.text, f"{name}.gated.py", "exec")
    _write(folder / f"{name}.gated.py", gated.text)
    figures = _compile_all(gated, folder / f"{name}.figures.json", workers)
    return _summary(gated, text, figures)


def _compile_all(gated: GatedWrapper, kept: Path, workers: int) -> Figures:
    figures: Figures = json.loads(kept.read_text()) if kept.exists() else {}
    left = [kernel for kernel in gated.kernels.values() if kernel.name not in figures]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for name, found in pool.imap_unordered(_compile, left):
            figures[name] = found
            _write(kept, json.dumps(figures))
    return {name: figures[name] for name in gated.kernels}


def _compile(kernel: KernelSource) -> tuple[str, dict[str, Any]]:
    with pretend.pretended_device():
        try:
            sides = {"plain": kernel.plain, "gated": kernel.gated} if kernel.gated else {"plain": kernel.plain}
            done = {side: cubin.compile_kernel(kernel.name, text).figures for side, text in sides.items()}
        except Exception as error:  # whatever Triton raises is this kernel's result
            return kernel.name, {"error": f"{type(error).__name__}: {error}"[:500]}
    return kernel.name, {side: dataclasses.asdict(one) for side, one in done.items()}


def _summary(gated: GatedWrapper, text: str, figures: Figures) -> dict[str, Any]:
    levels = kernel_levels(gated)
    below = [
        {"kernel": one.kernel, "launches": one.launches, "level": one.level.code}
        | ({"reason": one.excluded.reason.value, "where": one.excluded.where} if one.excluded else {})
        for one in levels
        if one.level is not GateLevel.CTA_GATE
    ]
    return {
        "launches": len(gated.launches),
        "triton_launches": sum(1 for launch in gated.launches if launch.kernel in gated.kernels),
        "runs_in_text": text.count(".run("),
        "kernels": len(gated.kernels),
        "templates": sum(1 for launch in gated.launches if launch.kernel.startswith("triton_tem_")),
        "ctas": _ctas(gated),
        "segments": len(segments(gated.launches)),
        "levels": {
            level.code: sum(1 for one in levels if one.level is level) for level in sorted(GateLevel, reverse=True)
        },
        "below_the_gate": below,
        "errors": {name: found["error"] for name, found in figures.items() if "error" in found},
        "gate_cost": _cost([found for found in figures.values() if "gated" in found]),
        "figures": {name: _row(found) for name, found in figures.items() if "error" not in found},
    }


def _ctas(gated: GatedWrapper) -> dict[str, int]:
    """Of gated launches: all CTAs of the chain for the configurations that were compiled, and the most of a launch under any."""
    with pretend.pretended_device():
        sizes = grid_sizes(gated)
    return {"chain": sum(one[0] for one in sizes.values()), "largest_grid": max(max(one) for one in sizes.values())}


def _cost(pairs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the gate changes, over all kernels."""
    pairs = list(pairs)
    added = [pair["gated"]["registers"] - pair["plain"]["registers"] for pair in pairs] or [0]
    return {
        "compiled_both": len(pairs),
        "registers": {"least": min(added), "most": max(added), "mean": round(mean(added), 2)},
        "occupancy_lower": _count(pairs, lambda plain, gated: gated["occupancy"] < plain["occupancy"]),
        "occupancy_higher": _count(pairs, lambda plain, gated: gated["occupancy"] > plain["occupancy"]),
        "local_memory_new": _count(pairs, lambda plain, gated: gated["local_bytes"] > plain["local_bytes"]),
        "shared_bytes_most": max(
            (pair["gated"]["shared_bytes"] - pair["plain"]["shared_bytes"] for pair in pairs), default=0
        ),
        "main_loop_changed": _count(pairs, lambda plain, gated: gated["instructions"] != plain["instructions"]),
    }


def _count(pairs: Iterable[dict[str, Any]], differs: Any) -> int:
    return sum(1 for pair in pairs if differs(pair["plain"], pair["gated"]))


def _row(found: dict[str, Any]) -> str:
    """Plain -> gated, on one line of the file."""
    both = [found["plain"], found.get("gated", found["plain"])]

    def pair(key: str) -> str:
        return "->".join(str(one[key]) for one in both)

    return (
        f"registers {pair('registers')}, local {pair('local_bytes')} B, shared {pair('shared_bytes')} B, "
        f"{both[0]['warps']} warps, occupancy {pair('occupancy')}"
    )


def failures(result: dict[str, Any]) -> list[str]:
    """What must not be: kernels that do not compile, launches without level or reason, a main loop that lost its pipeline."""
    found = [f"{name} does not compile: {error}" for name, error in result["errors"].items()]
    found += [f"{one['kernel']} has no reason" for one in result["below_the_gate"] if not one.get("reason")]
    found += [f"{one['kernel']} is not on G2" for one in result["below_the_gate"] if one["level"] != "G2"]
    gated_kernels = result["levels"]["G4"]
    if result["gate_cost"]["compiled_both"] + len(result["errors"]) < gated_kernels:
        found.append(f"only {result['gate_cost']['compiled_both']} of {gated_kernels} kernels were compiled")
    if result["triton_launches"] != result["runs_in_text"]:
        found.append(f"{result['runs_in_text']} launches in the text, {result['triton_launches']} in the chain")
    if result["gate_cost"]["main_loop_changed"]:
        found.append(
            f"{result['gate_cost']['main_loop_changed']} kernels have other mma or cp.async instructions with the gate"
        )
    return found


def _write(file: Path, text: str) -> None:
    """All of it or nothing, so that an interrupted run leaves no half of a file."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(file)
