"""Where filling experiments come from: Alibaba's openb trace as packaged (its default workload), or a folder of its files.

``openb``, ``openb:FOLDER``, and settings after commas: ``workload=NAME`` (the part of the file names that says which pods),
``nodes=FILE``, ``pods=FILE``, ``order=FILE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from msgspec import Struct

from ...base.errors import UsageError
from ..formats import settings
from ..stream import PACKED, Reading
from .arrivals import Arrivals, draw_arrivals, read_arrivals
from .tables import NodeTable, PodTable, read_nodes, read_pods

_KEYS = ("workload", "nodes", "pods", "order")
_NODES = "openb_node_list_gpu_node.csv"
_REMEDY = (
    "write openb for the packaged trace, or openb:FOLDER[,workload=NAME] with the files of cluster-trace-gpu-v2023"
)


class FillTrace(Struct, frozen=True, kw_only=True):
    """Nodes, pods, and the arrivals of one seed."""

    name: str
    seed: int
    nodes: NodeTable
    pods: PodTable
    arrivals: Arrivals


def load_fills(text: str, seeds: list[int], reading: Reading | None = None) -> list[FillTrace]:
    """The experiment that ``text`` names, for each seed. Raises UsageError when its files cannot be read."""
    with _located(text) as (node_file, pod_file, *orders):
        nodes = read_nodes(node_file, reading)
        pods = read_pods(pod_file, nodes.kinds, reading)
        return [
            FillTrace(name=text, seed=seed, nodes=nodes, pods=pods, arrivals=_arrivals(orders, seed, nodes, pods))
            for seed in seeds
        ]


def trace_files(text: str) -> tuple[Path, ...]:
    """The files of the user's that ``text`` is read from; none for the packaged trace. Raises UsageError when one is missing."""
    with _located(text) as found:
        return found if ":" in text else ()


@contextmanager
def _located(text: str) -> Iterator[tuple[Path, ...]]:
    """The file of nodes, that of pods, and those of orders. Raises UsageError for a missing one."""
    name, _, argument = text.partition(":")
    if name != "openb":
        raise UsageError(f"no filling trace called {text!r}", _REMEDY)
    if argument:
        source, given = settings("openb", argument, _KEYS)
        yield _in_folder(text, Path(source), given)
    else:
        with as_file(files("tidewright.sim").joinpath("data/openb")) as folder:
            yield _in_folder(text, folder, {})


def _in_folder(text: str, folder: Path, given: dict[str, str]) -> tuple[Path, ...]:
    if not folder.is_dir():
        raise UsageError(f"{text}: there is no folder {folder}", _REMEDY)
    workload = given.get("workload", "default")
    nodes = _file(folder, given.get("nodes", _NODES))
    pods = _file(folder, given.get("pods", f"openb_pod_list_{workload}.csv"))
    orders = [_file(folder, given["order"])] if "order" in given else _orders(folder, workload, given)
    return nodes, pods, *orders


def _orders(folder: Path, workload: str, given: dict[str, str]) -> list[Path]:
    """Exported orders belong to the lists that they come with."""
    return [] if "nodes" in given or "pods" in given else sorted(folder.glob(f"arrival_order_{workload}_seeds*.txt*"))


def _file(folder: Path, name: str) -> Path:
    """The file of this name in the folder, packed or not; a path that leads elsewhere is taken as it is."""
    plain = folder / name
    packed = (plain.with_name(f"{plain.name}{ending}") for ending in PACKED)
    found = next((path for path in (plain, *packed, Path(name)) if path.is_file()), None)
    if found is None:
        near = ", ".join(sorted(path.name for path in folder.glob("*.csv*"))[:6]) or "no .csv files"
        raise UsageError(f"{folder} has no file {name}", f"{_REMEDY}; it has {near}")
    return found


def _arrivals(orders: list[Path], seed: int, nodes: NodeTable, pods: PodTable) -> Arrivals:
    for path in orders:
        found = read_arrivals(path, seed, nodes, pods)
        if found is not None:
            return found
    return draw_arrivals(seed, nodes, pods)
