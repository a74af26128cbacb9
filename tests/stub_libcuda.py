"""A library of C in the place of NVIDIA's driver, to see what the Python bindings really pass to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def stub_libcuda(source: Path, folder: Path) -> dict[str, str]:
    """The environment in which cuda-bindings call ``source``, compiled into ``folder``. Skips the test where the bindings or a
    compiler are missing."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not hasattr(driver, "CUcheckpointGpuPair"):
        pytest.skip("no C compiler, or bindings older than 13.0")
    command = [compiler, "-shared", "-fPIC", "-w", "-I", Path(__file__).parent, "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}
