"""What the wrapper costs a Python that never imports torch: next to nothing, as a rank may start thousands of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.gang import INJECT

pytestmark = pytest.mark.processes

MODULES = "import sys; print(*sorted(sys.modules))"


def modules(rank_dir: Path | None) -> set[str]:
    """What a Python has loaded that does nothing; without a site-packages directory that loads things of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TIDE_", "PYTHON"))}
    ours = {} if rank_dir is None else {"TIDE_BOX": str(rank_dir), "PYTHONPATH": str(INJECT)}
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run([base, "-s", "-c", MODULES], env=plain | ours, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_python_without_torch_loads_the_hook_and_nothing_else(tmp_path: Path) -> None:
    added = modules(tmp_path) - modules(None)
    assert added <= {"sitecustomize", "_tidewright", "_tidewright.hooks", "importlib.machinery", "__future__"}
    assert "_tidewright.hooks" in added
