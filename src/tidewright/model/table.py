"""The job table: one numpy column per fact, one row per job that has not ended.

Only the engine writes it. A view borrows the arrays; while a view is alive the next write copies them first
(``own``), so a view never changes and taking one costs microseconds whatever the number of jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]

COLUMNS: dict[str, str] = {
    "id": "i8",
    "state": "i1",
    "tier": "i1",
    "level": "i1",
    "placement": "i1",
    "reserved": "?",
    "submit": "i8",
    "since": "i8",
    "wait_since": "i8",
    "first_start": "i8",
    "run_since": "i8",
    "demand": "i4",
    "floor": "i4",
    "ranks": "i4",
    "held": "i4",
    "rate": "i4",
    "kinds": "i8",
    "memory": "i8",
    "gpu_milli": "i2",
    "cpus_milli": "i4",
    "host_memory": "i8",
    "ideal": "i8",
    "attained": "i8",
    "accrued": "i8",
    "held_milli": "i8",
    "expected": "i8",
    "predicted": "i8",
    "predicted_low": "i8",
    "predicted_high": "i8",
    "deadline": "i8",
    "limit": "i8",
    "waived": "i8",
    "weight": "f8",
    "team": "i4",
    "pinned_node": "i4",
    "restore_kind": "i2",
    "reference": "i2",
    "save_us": "i8",
    "restore_us": "i8",
    "preemptions": "i4",
    "attempt": "i4",
}
"""Name to dtype. Times are microseconds, absolute unless named ``*_us``; -1 means never or nowhere.

``memory`` and ``gpu_milli`` are of a share of one device (0: not asked for), ``cpus_milli`` and ``host_memory`` of each rank.
``rate`` is the millionths of full speed at which the job runs now (0 when it does not); ``reference`` the index of the kind of
device that full speed is measured on (-1: all are alike); ``ideal`` is full-speed run time
and ``attained`` milli-device-microseconds, both up to ``accrued``; ``kinds`` is a set of kind indices; ``pinned_node`` the node a
frozen job's memory is on; ``reserved``: devices are reserved for it and it will start or resume without another plan;
``restore_kind``: index of the kind on whose image-taking nodes alone it can run (its image is from there), -1 for no such limit;
``predicted``, ``predicted_low`` and ``predicted_high``: median, first and ninth decile of the run times of similar jobs, of a
job whose user gave no ``expected`` (0: not enough have ended); ``waived``: of the time since submission, what the promise of the
present tier does not count (negative: what it counts beyond that), because the job had another tier then.
"""


LONE_NODE = "lone_node"
"""A column that follows from the allocations and is in no snapshot: one more than the number of the only node on which a job
holds devices, 0 where it holds none or those of several nodes."""
RESOURCES = ("gpu_milli", "cpus_milli", "host_memory")
"""Columns of what jobs ask for besides devices and their memory. As long as none does they are zero, and cost nothing."""
_DTYPES = {**COLUMNS, LONE_NODE: "i4"}
_OTHERS = tuple(name for name in _DTYPES if name not in RESOURCES)


class JobTable:
    """Dense columns of capacity >= ``n``; rows move when one is removed (the last row takes its place).

    ``resourced``: whether a row has ever had one of ``RESOURCES``.
    """

    __slots__ = (*_DTYPES, "_leases", "_seen", "n", "resourced", "row")

    def __init__(self, capacity: int = 1024) -> None:
        self.n = 0
        self.resourced = False
        self.row: dict[int, int] = {}
        self._leases: list[weakref.ref[Any]] = []
        self._seen: dict[str, Column] | None = None
        for name, dtype in _DTYPES.items():
            setattr(self, name, np.zeros(capacity, dtype))

    def arrays(self) -> dict[str, Column]:
        """The columns as they are now, at full capacity and read-only. The same dict until they are copied or grow."""
        if self._seen is None:
            self._seen = {name: getattr(self, name).view() for name in _DTYPES}
            for column in self._seen.values():
                column.flags.writeable = False
        return self._seen

    def lend(self, borrower: object) -> None:
        """Note who looks at the arrays."""
        self._leases.append(weakref.ref(borrower))

    def own(self) -> bool:
        """Copy the columns if a borrower is still alive; true when a copy was made. Called before the first write of a step."""
        if not self._leases:
            return False
        alive = any(lease() is not None for lease in self._leases)
        self._leases.clear()
        if not alive:
            return False
        for name in self._written:
            setattr(self, name, getattr(self, name).copy())
        self._seen = None
        self.row = self.row.copy()
        return True

    @property
    def _written(self) -> Iterable[str]:
        """Names of the columns that may hold anything but zero."""
        return _DTYPES if self.resourced else _OTHERS

    def add(self, job: int, values: dict[str, Any]) -> int:
        """Append a row; unnamed columns are zero."""
        row = self.n
        if not self.resourced and (values.get("gpu_milli") or values.get("cpus_milli") or values.get("host_memory")):
            self.resourced = True
        if row == len(self.id):
            for name in _DTYPES:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
            self._seen = None
        for name in self._written:
            getattr(self, name)[row] = values.get(name, 0)
        self.id[row] = job
        self.row[job] = row
        self.n = row + 1
        return row

    def remove(self, job: int) -> None:
        """Drop a row; the last row moves into its place."""
        row = self.row.pop(job)
        last = self.n - 1
        if row != last:
            for name in self._written:
                column = getattr(self, name)
                column[row] = column[last]
            self.row[int(self.id[row])] = row
        self.n = last

    def record(self, job: int) -> dict[str, Any]:
        """One row as plain Python values (for snapshots, histories and errors)."""
        row = self.row[job]
        return {name: getattr(self, name)[row].item() for name in COLUMNS}

    # mypy cannot see attributes made from a dict of names.
    def __getattr__(self, name: str) -> Column:
        raise AttributeError(f"no column {name!r}")
