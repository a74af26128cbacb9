"""Facts about the machine that a measurement was taken on, where results are kept, and waiting for what is measured."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy
import psutil

from tidewright.base.errors import TideError
from tidewright.wire.client import Client

RESULTS = Path(__file__).parent / "results"


def facts() -> dict[str, Any]:
    """Date, CPU, cores, memory, load averages and versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def keep(name: str, measured: Any) -> Path:
    """Write ``bench/results/NAME.json``: the machine's facts and what was measured. Returns the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": facts(), "measured": measured}, indent=2) + "\n")
    return path


def wait_for_controller(state: Path, *, agent: bool = False) -> None:
    """Return once the controller answers and, with ``agent``, its agent is connected. Raises SystemExit after 20 s."""
    for _ in range(400):
        try:
            info = Client(state).info()
            if not agent or info.agent == "connected":
                return
        except TideError:
            pass  # it is still starting
        time.sleep(0.05)
    raise SystemExit("the controller did not come up")
