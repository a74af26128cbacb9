"""Clusters to simulate: named ones, ``60x8:v100,10x4:a100``, or a YAML or CSV file of nodes.

It refuses to know what runs on them.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import yaml

from ..base.errors import TideError, UsageError
from ..base.ids import valid_name
from ..base.units import parse_bytes, whole_number
from ..model.job import MAX_CPUS_MILLI
from ..model.node import MAX_DEVICES_PER_NODE, NodeSpec
from .profile import load_yaml
from .stream import check_header, numbered_rows

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
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return _from_csv(text, str(path))
        rows = _yaml_rows(load_yaml(text))
    except OSError as error:
        raise UsageError(f"cannot read cluster {path}: {error.strerror}", _REMEDY) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read cluster {path}: it is not text in UTF-8 ({error.reason})", _REMEDY) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"cannot read cluster {path}: {error}", _REMEDY) from error
    return _build(rows, [f"{path} node {at}" for at in range(1, 1 + len(rows))])


def _from_csv(text: str, source: str) -> tuple[NodeSpec, ...]:
    rows: list[dict[str, Any]] = []
    places = []
    header: list[str] = []
    for cells, line in numbered_rows(io.StringIO(text, newline=""), source, _REMEDY):
        if not header:
            header = [cell.strip() for cell in cells]
            check_header(header, f"{source}:{line}")
        elif any(cells):
            names = header + [f"cell {at}" for at in range(len(header) + 1, len(cells) + 1)]
            rows.append({name: cell for name, cell in zip(names, cells, strict=False) if cell})
            places.append(f"{source}:{line}")
    return _build(rows, places, switches=set(header) >= set(_SWITCHES))


def _of_switches(row: dict[str, Any]) -> dict[str, Any]:
    """One row of a cluster file of the Tiresias simulator (NSDI'19): switches of equal nodes. Memory is in GB."""
    switches, nodes, devices = (_whole(row, name, None, 1, MAX_NODES) for name in _SWITCHES)
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


def _build(rows: list[dict[str, Any]], places: list[str], switches: bool = False) -> tuple[NodeSpec, ...]:
    nodes: list[NodeSpec] = []
    mistakes: list[str] = []
    for row, place in zip(rows, places, strict=True):
        try:
            nodes.extend(_group(_of_switches(row) if switches else row, len(nodes)))
        except (TideError, ValueError, TypeError, OverflowError) as error:
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
    count, devices = _whole(row, "count", 1, 1, MAX_NODES), _whole(row, "devices", 8, 1, MAX_DEVICES_PER_NODE)
    if first + count > MAX_NODES:
        raise ValueError(f"{first + count} nodes; at most {MAX_NODES} in all")
    return [_node(row, first + at, count, devices) for at in range(count)]


def _node(row: dict[str, Any], index: int, count: int, devices: int) -> NodeSpec:
    name = str(row.get("name", f"node-{index:04d}"))
    if "name" in row and count > 1:
        name = f"{name}-{index:04d}"
    if not valid_name(name):
        raise ValueError(f"name {name!r} may hold letters, digits and . _ - only")
    kind = row.get("kind", "gpu")
    if not isinstance(kind, str | int | float):
        raise ValueError(f"kind: {kind!r} is not a name")
    return NodeSpec(
        name=name,
        kind=str(kind).lower(),
        devices=devices,
        device_memory=parse_bytes(row.get("device_memory", 0)),
        memory=parse_bytes(row.get("memory", 0)),
        cpus=_whole(row, "cpus", 0, 0, MAX_CPUS_MILLI // 1000),
        domain=_domain(row, index),
    )


def _domain(row: dict[str, Any], index: int) -> tuple[str, ...]:
    given = row.get("domain", f"rack-{index // _whole(row, 'per_domain', NODES_PER_RACK, 1, MAX_NODES):03d}")
    parts = given if isinstance(given, list) else [given]
    if not parts or not all(isinstance(part, str | int | float) for part in parts):
        raise ValueError(f"domain: {given!r} is neither like dc1/rack2 nor a list of names")
    return tuple(map(str, parts)) if isinstance(given, list) else tuple(str(given).split("/"))


def _whole(row: dict[str, Any], key: str, default: int | None, least: int, most: int) -> int:
    given: Any = row.get(key, default)
    value = whole_number(given)
    if value is None or not least <= value <= most:
        said = "missing;" if given is None else f"{given} is not"
        raise ValueError(f"{key}: {said} a whole number between {least} and {most}")
    return value
