"""DISB on this machine's cores: standalone latencies, the slow-down table, each workload in each row, results as files."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.units import counted
from ..runtime.cuda.compile import require_device
from ..runtime.cuda.kernels import driver_api
from ..runtime.disb.device_run import CPU_ROWS, CUDA_ROWS, DeviceRow, Loop, run_row, standalone_ns
from ..runtime.disb.networks import source
from ..runtime.disb.report import html, table
from ..runtime.disb.result import DisbMatrix
from ..runtime.disb.workload import DisbWorkload, load_workload
from ..runtime.ladder import StopLevel
from ..runtime.padding.admission import fingerprint
from ..runtime.padding.calibration import ModelToMeasure, measure, measure_gpu
from ..runtime.padding.slowdown import dump_table

ABOUT = {
    "RT-only": "the device has real-time clients alone",
    "SEQ": "one task after the other, nothing is stopped",
    "STREAM": "no classes: all clients at once",
    "PRIO": "real-time work first by priority alone; no new best-effort task while there is any, but none is stopped",
    "REEF-N": "best-effort kernels are launched two at a time, none while there is real-time work (policy re-implementation)",
    "Orion": "the same, but kernels that are short, small and bound by another resource go on (policy re-implementation)",
    "gate": "best-effort work stops between two operators (as REEF-N does between kernels)",
    "ours": "best-effort work is stopped anywhere by a signal (cores), or at each CTA by its gate (CUDA)",
    "ours+padding": "the same, but for work that a measured table admits beside",
}
Progress = Callable[[str], None]


def rows_of(names: Sequence[str], device: str = "cpu") -> list[DeviceRow]:
    """Rows of a kind of device by their labels; all where none is named. Raises UsageError."""
    rows = CUDA_ROWS if device == "cuda" else CPU_ROWS
    by_label = {row.label: row for row in rows}
    for name in names:
        if name not in by_label:
            raise UsageError(f"no row {name!r}", f"there are {', '.join(by_label)}")
    return [by_label[name] for name in names] if names else list(rows)


def run_disb(
    workloads: Sequence[str],
    rows: Sequence[DeviceRow],
    *,
    seconds: float,
    device: str = "cpu",
    small: bool = True,
    seed: int = 0,
    loop: Loop = "closed",
    slowdowns: Path | None = None,
    progress: Progress = lambda text: None,
) -> DisbMatrix:
    """Every row on every workload, on the cores of this process or its GPU. ``slowdowns``: a table for the row that pads;
    measured first where there is none. Raises UsageError, also where torch or the GPU is missing."""
    options: dict[str, Any] = {"device": device}
    if device == "cuda":
        require_device()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    loaded = [load_workload(name) for name in workloads]
    progress("latency of each network alone")
    alone = standalone_ns(loaded, small, **options)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for row in rows if device == "cuda" or len(cores) > 1 or "padding" not in row.options]
        rows = _launchable(rows, progress)
        if slowdowns is None and any(row.options.get("padding") == "TABLE" for row in rows):
            slowdowns = Path(folder) / "table.json"
            slowdowns.write_bytes(_measured(loaded, device, cores, small, progress))
        results = []
        for workload in loaded:
            for row in rows:
                progress(f"workload {workload.name}, {row.label}, {seconds:g} s")
                results.append(
                    run_row(
                        workload,
                        row,
                        alone,
                        seconds=seconds,
                        small=small,
                        seed=seed,
                        loop=loop,
                        table=str(slowdowns or ""),
                        options=options,
                    )
                )
    where = _gpu() if device == "cuda" else f"{counted(len(cores), 'core')} of {fingerprint(len(cores), 1).device}"
    return DisbMatrix(f"{where}, {'small' if small else 'full'} networks", tuple(results), _facts())


def _launchable(rows: Sequence[DeviceRow], progress: Progress) -> list[DeviceRow]:
    """Those that this installation can run."""
    singly = [row for row in rows if row.options.get("stop") == StopLevel.KERNEL.value]
    try:
        if singly:
            driver_api()
    except UsageError as error:
        progress(f"{', '.join(row.label for row in singly)} left out: {error.message}")
        return [row for row in rows if row not in singly]
    return list(rows)


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name())


def page(matrix: DisbMatrix) -> str:
    """The results as a page of HTML. Raises UsageError where matplotlib is missing."""
    return html(matrix, {row: ABOUT[row] for row in dict.fromkeys(result.row for result in matrix.results)})


def _measured(
    workloads: Sequence[DisbWorkload], device: str, cores: tuple[int, ...], small: bool, progress: Progress
) -> bytes:
    names = sorted({task.client.model_name for workload in workloads for task in workload.tasks})
    models = [ModelToMeasure(*source(name, small)) for name in names]

    def pair(done: int, of: int) -> None:
        progress(f"slow-downs: pair {done + 1} of {of}")

    found = measure_gpu(models, progress=pair) if device == "cuda" else measure(models, cores=cores, progress=pair)
    return dump_table(found)


def _facts() -> tuple[tuple[str, str], ...]:
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        ("kernel", platform.release()),
        ("python", platform.python_version()),
        ("torch", version("torch")),
        ("load", load),
    )


__all__ = ["page", "rows_of", "run_disb", "table"]
