"""What becomes of a Triton kernel on a GPU: its cubin, made by the ptxas that Triton brings, and the figures of it. Runs nothing.

Kernels are Inductor's: the text of one ``async_compile.triton``. Of its configurations the first one is compiled, gated
and plain alike.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from .occupancy import ctas_per_multiprocessor

USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
COUNTED = {
    "mma": r"\b(?:wgmma\.mma_async|mma\.sync)",
    "cp_async": r"\bcp\.async\.c[ag]",
    "bulk_copies": r"\bcp\.async\.bulk",
}
"""Instructions of the pipelined main loop, counted in PTX: fewer of them with the gate would mean that pipelining was lost."""


@dataclass(frozen=True, slots=True)
class CubinFigures:
    """Of one kernel: registers per thread, bytes per thread that did not fit into them, shared bytes per CTA."""

    registers: int
    local_bytes: int
    shared_bytes: int
    warps: int
    occupancy: int
    """CTAs per multiprocessor."""
    instructions: dict[str, int]


@dataclass(frozen=True, slots=True)
class CompiledCubin:
    cubin: bytes
    ptx: str
    figures: CubinFigures


def compile_kernel(name: str, text: str) -> CompiledCubin:
    """Compile kernel ``name`` of ``text`` for the device that PyTorch sees, which may be a pretended one. Raises what
    Triton raises."""
    import triton

    with imported_kernel(name, text) as tuner:
        # Private names of torch 2.11; it is what CachingAutotuner does before it would load the binary on a device.
        config = tuner.configs[0]
        meta = tuner._create_compile_meta(config)
        source = triton.compiler.ASTSource(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
        target = triton.backends.compiler.GPUTarget("cuda", meta["cc"], 32)
        binary = triton.compile(source, target=target, options=tuner._create_compile_options(config, meta))
    return compiled(binary)


def compiled(binary: Any) -> CompiledCubin:
    """Triton's compiled kernel with its figures."""
    cubin, ptx = binary.asm["cubin"], binary.asm["ptx"]
    registers, stack, local = resource_usage(cubin)
    shared = binary.metadata.shared  # dynamic; the cubin knows only of what the system reserves
    warps = binary.metadata.num_warps
    counts = {what: len(re.findall(pattern, ptx)) for what, pattern in COUNTED.items()}
    occupancy = ctas_per_multiprocessor(registers, warps, shared)
    return CompiledCubin(cubin, ptx, CubinFigures(registers, stack + local, shared, warps, occupancy, counts))


def resource_usage(cubin: bytes) -> tuple[int, int, int]:
    """Registers, stack and local bytes of a thread, as cuobjdump reports them. Raises WorldError where it does not."""
    report = _tool("cuobjdump", cubin, "-res-usage")
    found = USAGE.search(report)
    if found is None:
        raise WorldError(f"cuobjdump -res-usage reports no kernel: {report.strip()[:200]}")
    registers, stack, local = (int(value) for value in found.groups())
    return registers, stack, local


def disassemble(cubin: bytes) -> str:
    """SASS."""
    return _tool("nvdisasm", cubin)


def tool(name: str) -> Path:
    """A program of CUDA's toolkit that Triton brings along: ptxas, cuobjdump, nvdisasm."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name


def _tool(name: str, cubin: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool(name), *options, file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorldError(f"{name} failed: {done.stderr.strip()[:200]}")
    return done.stdout


@contextmanager
def imported_kernel(name: str, text: str) -> Iterator[Any]:
    """Inductor's object of kernel ``name`` in ``text``. Triton reads the source of a function from its file, so there is
    one meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(f"tide_kernel_{name}", file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            yield getattr(module, name)
        finally:
            del sys.modules[spec.name]
