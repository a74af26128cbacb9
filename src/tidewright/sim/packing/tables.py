"""The node and pod lists of Alibaba's openb trace (cluster-trace-gpu-v2023), read from CSV with every mistake by its line.

It refuses to know in which order the pods come.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from ...base.errors import UsageError
from ...placement.scores.columns import ABSENT, NO_KIND, WHOLE, Ints, NodeColumns, ShareRequest
from ..stream import Reading, named_rows, open_lines

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_DEVICES = 64
"""Of one node."""
MAX_KINDS = 60
MOST = 2**40
"""Millicores or MiB of one row, beyond which a number is taken for a mistake."""
SHOWN = 20
_REMEDY = "the columns are those of Alibaba's cluster-trace-gpu-v2023, whole numbers: see docs/placement.md"


class NodeTable(Struct, frozen=True):
    """Nodes by name, sorted; ``kinds`` are the models of their devices, and a kind's number is its place in it."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    columns: NodeColumns

    def in_order(self, order: Ints) -> NodeColumns:
        """Columns whose rows are in another order; row k is then node ``order[k]`` of ``names``."""
        return self.columns.take(order)._replace(row=np.arange(len(order), dtype=np.int64))


class PodTable(Struct, frozen=True):
    """Pods by name, in the order of the file."""

    names: tuple[str, ...]
    requests: tuple[ShareRequest, ...]


def read_nodes(path: Path, reading: Reading | None = None) -> NodeTable:
    """The nodes in a file. Raises UsageError naming every mistake as file:line (the first twenty)."""
    table = _Rows(path, NODE_COLUMNS, "sn")
    found: list[tuple[str, str, int, int, int]] = []
    for line, row in table.rows(reading):
        cpu, memory = table.number(line, row, "cpu_milli", MOST), table.number(line, row, "memory_mib", MOST)
        devices = table.number(line, row, "gpu", MAX_DEVICES)
        found.append((row["sn"], row["model"].strip(), cpu, memory, devices))
    table.finish(bool(found), "nodes")
    return _node_table(sorted(found), path)


def _node_table(rows: list[tuple[str, str, int, int, int]], path: Path) -> NodeTable:
    kinds = tuple(sorted({model for _, model, *_ in rows}))
    if len(kinds) > MAX_KINDS:
        raise UsageError(f"{path}: {len(kinds)} models of devices, more than {MAX_KINDS}", _REMEDY)
    cpu, memory, devices = np.array([row[2:] for row in rows], dtype=np.int64).T
    widest = max(int(devices.max()), 1)
    free = np.where(np.arange(widest) < devices[:, None], WHOLE, ABSENT)
    columns = NodeColumns(
        free, cpu, memory, np.array([kinds.index(row[1]) for row in rows], dtype=np.int64),
        np.full(len(rows), WHOLE, dtype=np.int64), devices, np.zeros((len(rows), 1 + widest), dtype=np.int64),
        np.arange(len(rows), dtype=np.int64),
    )  # fmt: skip
    return NodeTable(tuple(row[0] for row in rows), kinds, columns)


def read_pods(path: Path, kinds: tuple[str, ...], reading: Reading | None = None) -> PodTable:
    """The pods in a file; ``kinds`` as in NodeTable. Raises UsageError naming every mistake as file:line."""
    table = _Rows(path, POD_COLUMNS, "name")
    names: list[str] = []
    requests: list[ShareRequest] = []
    for line, row in table.rows(reading):
        noted = table.count
        cpu, memory = table.number(line, row, "cpu_milli", MOST), table.number(line, row, "memory_mib", MOST)
        devices, units = table.number(line, row, "num_gpu", 2**20), table.number(line, row, "gpu_milli", WHOLE)
        if devices and not units and table.count == noted:
            table.mistake(line, f"num_gpu is {devices}, but gpu_milli is 0")
        # The trace gives pods without devices a gpu_milli of 0 or leaves what they had there.
        wanted = _kinds(row.get("gpu_spec") or "", kinds) if devices else 0
        names.append(row["name"])
        requests.append(ShareRequest(units if devices else 0, devices, cpu, memory, wanted))
    table.finish(bool(names), "pods")
    return PodTable(tuple(names), tuple(requests))


def _kinds(text: str, known: tuple[str, ...]) -> int:
    """The bits of ``A|B``; a kind that no node has is a bit of its own."""
    found = 0
    for name in filter(None, (part.strip() for part in text.split("|"))):
        found |= 1 << (known.index(name) if name in known else NO_KIND)
    return found


class _Rows:
    """Rows of a CSV file with a header; collects mistakes."""

    def __init__(self, path: Path, columns: tuple[str, ...], key: str) -> None:
        self._path, self._columns, self._key = path, columns, key
        self._mistakes: list[str] = []
        self.count = 0
        self._lines: dict[str, int] = {}

    def rows(self, reading: Reading | None) -> Iterator[tuple[int, dict[str, str]]]:
        with open_lines(self._path, reading) as lines:
            for row, line in named_rows(lines, str(self._path), _REMEDY, self._columns, self.mistake):
                self._check_name(line, row)
                yield line, row

    def _check_name(self, line: int, row: dict[str, str]) -> None:
        name = row[self._key] = row[self._key].strip()
        if not name:
            self.mistake(line, f"no {self._key}")
        elif name in self._lines:
            self.mistake(line, f"{name} again, as in line {self._lines[name]}")
        self._lines.setdefault(name, line)

    def number(self, line: int, row: dict[str, str], key: str, most: int) -> int:
        """A whole number from 0 to ``most``; 0 where it is none, which is noted."""
        text = row[key].strip()
        try:
            value = int(text)
        except ValueError:
            self.mistake(line, f"{key}: {text!r} is no whole number")
            return 0
        if not 0 <= value <= most:
            self.mistake(line, f"{key}: {value} is not between 0 and {most}")
            return 0
        return value

    def mistake(self, line: int, text: str) -> None:
        self.count += 1
        if len(self._mistakes) < SHOWN:
            self._mistakes.append(f"{self._path}:{line}: {text}")

    def finish(self, some: bool, what: str) -> None:
        if self.count > SHOWN:
            self._mistakes.append(f"and {self.count - SHOWN} more")
        if not some and not self._mistakes:
            self._mistakes.append(f"{self._path}: no {what}")
        if self._mistakes:
            raise UsageError("\n".join(self._mistakes), _REMEDY)
