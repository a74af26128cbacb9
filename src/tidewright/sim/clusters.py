"""Clusters to simulate: named ones, ``60x8:v100,10x4:a100``, or a YAML or CSV file of nodes.

It refuses to know what runs on them.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import yaml

from ..base.errors import TideError, UsageError
from ..base.ids import valid_name
from ..base.units import parse_bytes
from ..model.node import MAX_DEVICES_PER_NODE, NodeSpec

NODES_PER_RACK = 16
"""Nodes that share a top-of-rack switch, the topology domain when none is given."""
MAX_NODES = 100_000
NAMED = {
    # 552 machines, 2,490 GPUs in two SKUs: Jeon et al., ATC'19, section 2.2.
    "philly": "321x2:p100,231x8:p100",
    # The size at which Philly's jobs queue hard; not a cluster that existed.
    "philly-480": "60x8:p100",
}
_GROUP = re.compile(r"(\d+)x(\d+)(?::([a-z0-9][a-z0-9._-]*))?")
_KEYS = ("name", "kind", "devices", "device_memory", "memory", "cpus", "domain", "count", "per_domain")
_SWITCHES = ("num_switch", "num_node_p_switch", "num_gpu_p_node")
_REMEDY = (
    "write e.g. philly, 60x8, 60x8:v100,10x4:a100, or a .yaml or .csv file with one node (or count of nodes) a row"
)


def load_cluster(text: str) -> tuple[NodeSpec, ...]:
    """The nodes that ``text`` names. Raises UsageError with every mistake when it cannot be read."""
    if text in NAMED:
        text = NAMED[text]
    if text.endswith((".yaml", ".yml", ".csv")):
        return _from_file(Path(text))
    groups = [_GROUP.fullmatch(part.strip()) for part in text.split(",")]
    if not all(groups):
        raise UsageError(f"not a cluster: {text!r}", _REMEDY)
    rows: list[dict[str, Any]] = []
    for group in groups:
        assert group is not None
        rows.append({"count": int(group[1]), "devices": int(group[2]), "kind": group[3] or "gpu"})
    return _build(rows, [f"part {at}" for at in range(1, len(rows) + 1)])


def _from_file(path: Path) -> tuple[NodeSpec, ...]:
    try:
        text = path.read_text()
        rows = _csv_rows(text) if path.suffix == ".csv" else _yaml_rows(yaml.safe_load(text))
    except OSError as error:
        raise UsageError(f"cannot read cluster {path}: {error.strerror}", _REMEDY) from error
    except (yaml.YAMLError, csv.Error) as error:
        raise UsageError(f"cannot read cluster {path}: {error}", _REMEDY) from error
    first = 2 if path.suffix == ".csv" else 1
    return _build(
        rows,
        [f"{path}:{at}" if path.suffix == ".csv" else f"{path} node {at}" for at in range(first, first + len(rows))],
    )


def _csv_rows(text: str) -> list[dict[str, Any]]:
    rows = list(csv.DictReader(text.splitlines()))
    if rows and rows[0].keys() >= dict.fromkeys(_SWITCHES).keys():
        return [_of_switches(row) for row in rows]
    return [{key: value for key, value in row.items() if value} for row in rows]


def _of_switches(row: dict[str, Any]) -> dict[str, Any]:
    """One row of a cluster file of the Tiresias simulator (NSDI'19): switches of equal nodes. Memory is in GB."""
    switches, nodes, devices = (int(row[name]) for name in _SWITCHES)
    found: dict[str, Any] = {"count": switches * nodes, "devices": devices, "per_domain": nodes}
    if row.get("num_cpu_p_node"):
        found["cpus"] = row["num_cpu_p_node"]
    if row.get("mem_p_node"):
        found["memory"] = f"{row['mem_p_node']}GB"
    return found


def _yaml_rows(tree: Any) -> list[dict[str, Any]]:
    rows = tree.get("nodes") if isinstance(tree, dict) else tree
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("a cluster file is a list of nodes, or has one under 'nodes'", _REMEDY)
    return rows


def _build(rows: list[dict[str, Any]], places: list[str]) -> tuple[NodeSpec, ...]:
    nodes: list[NodeSpec] = []
    mistakes: list[str] = []
    for row, place in zip(rows, places, strict=True):
        try:
            nodes.extend(_group(row, len(nodes)))
        except (TideError, ValueError, TypeError) as error:
            mistakes.append(f"{place}: {error}")
    names = [node.name for node in nodes]
    if len(dict.fromkeys(names)) != len(names):
        mistakes.append("two nodes have the same name")
    if not nodes and not mistakes:
        mistakes.append("no nodes")
    if mistakes:
        raise UsageError("the cluster cannot be built:\n  " + "\n  ".join(mistakes), _REMEDY)
    return tuple(nodes)


def _group(row: dict[str, Any], first: int) -> list[NodeSpec]:
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown {', '.join(map(str, unknown))}; known: {', '.join(_KEYS)}")
    count, devices = int(row.get("count", 1)), int(row.get("devices", 8))
    if not 1 <= count <= MAX_NODES or first + count > MAX_NODES:
        raise ValueError(f"{count} nodes; between 1 and {MAX_NODES} in all")
    if not 1 <= devices <= MAX_DEVICES_PER_NODE:
        raise ValueError(f"{devices} devices a node; between 1 and {MAX_DEVICES_PER_NODE}")
    return [_node(row, first + at, count, devices) for at in range(count)]


def _node(row: dict[str, Any], index: int, count: int, devices: int) -> NodeSpec:
    name = str(row.get("name", f"node-{index:04d}"))
    if "name" in row and count > 1:
        name = f"{name}-{index:04d}"
    if not valid_name(name):
        raise ValueError(f"name {name!r} may hold letters, digits and . _ - only")
    domain = row.get("domain", f"rack-{index // int(row.get('per_domain', NODES_PER_RACK)):03d}")
    path = tuple(domain) if isinstance(domain, list | tuple) else tuple(str(domain).split("/"))
    return NodeSpec(
        name=name,
        kind=str(row.get("kind", "gpu")).lower(),
        devices=devices,
        device_memory=parse_bytes(row.get("device_memory", 0)),
        memory=parse_bytes(row.get("memory", 0)),
        cpus=int(row.get("cpus", 0)),
        domain=path,
    )
