"""What ``kubectl inspect gpushare`` prints, byte for byte, and what it leaves out with ``wide``. Pure.

Source: what gpushare-device-plugin's cmd/inspect puts out: Go's ``text/tabwriter`` with a padding of two spaces, percentages
cut off, a rule as long as the first row with its tabs and 20 more (10 with ``-d``, all rows of the first node).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ...base.errors import UsageError
from ..objects import names
from ..objects.gpu_inventory import GpuInventory, read_gpu_inventory
from ..objects.metadata import ENDED, annotations_of, bound_to, phase
from ..objects.pod_request import GpuAssignment, read_gpu_assignment, read_pod_request, requests_memory
from ..objects.schema import Node, Pod, validated
from ..objects.usage import used_on

MIB_FROM = 100
"""More units per GPU than this are taken for MiB."""
Row = Mapping[str, Any]
NONE_UNHEALTHY: Mapping[str, frozenset[int]] = {}


@dataclass(frozen=True, slots=True)
class PodShare:
    """What one pod has on a node; ``gpus`` empty: it asks ``pending`` units and has no GPU yet. ``used``: MiB that it was
    last seen to use, by GPU; None where it is not measured. ``level``: its isolation level, empty where it is not known."""

    namespace: str
    name: str
    gpus: Mapping[int, int]
    pending: int = 0
    uid: str = ""
    level: str = ""
    used: Mapping[int, int] | None = None

    @property
    def total(self) -> int:
        """Units."""
        return sum(self.gpus.values()) + self.pending


@dataclass(frozen=True, slots=True)
class NodeShares:
    """One node. ``address``: its InternalIP; ``first_address``: whatever comes first; "unknown" without."""

    inventory: GpuInventory
    address: str
    first_address: str
    shares: tuple[PodShare, ...]
    level: str = ""
    heartbeat: str = ""
    """The device plugin's heartbeat as it stands in the annotation."""

    @property
    def total(self) -> int:
        """Units of all its GPUs."""
        return sum(card.units for card in self.inventory.cards)

    @property
    def used(self) -> int:
        """Units given out."""
        return sum(share.total for share in self.shares)

    @property
    def pending(self) -> int:
        """Units of pods without a GPU."""
        return sum(share.pending for share in self.shares)

    def on(self, gpu: int) -> int:
        """Units given out on one GPU."""
        return sum(share.gpus.get(gpu, 0) for share in self.shares)

    def size(self, gpu: int) -> int:
        """Units of one GPU; 0 where there is none."""
        return next((card.units for card in self.inventory.cards if card.index == gpu), 0)


@dataclass(frozen=True, slots=True)
class Inspection:
    """All nodes that share GPUs, by name. ``odd``: objects that could not be read, and why."""

    nodes: tuple[NodeShares, ...]
    odd: tuple[str, ...] = field(default=())

    @staticmethod
    def of(
        nodes: Iterable[Row], pods: Iterable[Row], unhealthy: Mapping[str, frozenset[int]] = NONE_UNHEALTHY
    ) -> Inspection:
        """From what the API server lists. ``unhealthy``: GPUs not to be used, by node."""
        by_node: dict[str, list[PodShare]] = {}
        odd: list[str] = []
        for pod in pods:
            try:
                found = _share(pod)
            except UsageError as error:
                odd.append(error.message)
                continue
            if found is not None:
                by_node.setdefault(bound_to(pod), []).append(found)
        shown = []
        for node in sorted(nodes, key=lambda node: str((node.get("metadata") or {}).get("name", ""))):
            validated(node, Node)
            inventory = read_gpu_inventory(node, unhealthy.get(str(node["metadata"]["name"]), frozenset()))
            if inventory.cards:
                notes, use = annotations_of(node), used_on(node)
                shares = sorted(by_node.get(inventory.node, ()), key=lambda share: (share.namespace, share.name))
                if use is not None:
                    shares = [replace(share, used=use.get(share.uid, {})) for share in shares]
                shown.append(
                    NodeShares(
                        inventory, *_addresses(node), tuple(shares),
                        level=str(notes.get(names.LEVEL, "")), heartbeat=str(notes.get(names.PLUGIN, "")),
                    )
                )  # fmt: skip
        return Inspection(tuple(shown), tuple(odd))

    def only(self, node: str) -> Inspection:
        """Of one node. Raises UsageError when it shares no GPUs."""
        found = tuple(one for one in self.nodes if one.inventory.node == node)
        if not found:
            known = ", ".join(one.inventory.node for one in self.nodes) or "none"
            raise UsageError(f"node {node!r} shares no GPUs", f"nodes that do: {known}")
        return Inspection(found, self.odd)

    def unit(self) -> str:
        """GiB or MiB, guessed as gpushare does."""
        sizes = [card.units for node in self.nodes for card in node.inventory.cards]
        return "MiB" if max(sizes, default=0) > MIB_FROM else "GiB"

    def gpus(self) -> range:
        """Columns: as many as the node with the most GPUs needs."""
        return range(max((card.index + 1 for node in self.nodes for card in node.inventory.cards), default=0))


def _no_more(row: NodeShares | PodShare) -> list[str]:
    return []


def summary(
    found: Inspection, titles: tuple[str, ...] = (), more: Callable[[NodeShares], list[str]] = _no_more, width: int = 0
) -> str:
    """The table without ``-d``. ``more``: cells of further columns under ``titles``; ``width``: see ``folded``."""
    pending = any(node.pending for node in found.nodes)
    head = ["NAME", "IPADDRESS", *(f"GPU{gpu}(Allocated/Total)" for gpu in found.gpus())]
    head += ["PENDING(Allocated)"] if pending else []
    text, rule = "\t".join([*head, f"GPU Memory({found.unit()})", *titles]) + "\n", 0
    for node in found.nodes:
        cells = [f"{node.on(gpu)}/{node.size(gpu)}" for gpu in found.gpus()]
        cells += [str(node.pending) if node.pending else ""] if pending else []
        row = "\t".join([node.inventory.node, node.address, *cells, f"{node.used}/{node.total}", *more(node)]) + "\n"
        rule = rule or len(row) + 20
        text += row
    return aligned(folded(f"{text}{'-' * rule}\nAllocated/Total GPU Memory In Cluster:\n{_cluster(found)}", width))


def details(
    found: Inspection, titles: tuple[str, ...] = (), more: Callable[[PodShare], list[str]] = _no_more, width: int = 0
) -> str:
    """The table with ``-d``: a row per pod. ``more``: cells of further columns under ``titles``; ``width``: see ``folded``."""
    text, rule = "", 0
    for node in found.nodes:
        gpus = range(max(card.index + 1 for card in node.inventory.cards))
        head = ["NAME", "NAMESPACE", *(f"GPU{gpu}(Allocated)" for gpu in gpus)]
        head += [*(["Pending(Allocated)"] if node.pending else []), *titles]
        rows = ""
        for share in sorted(
            node.shares, key=lambda share: (sorted(share.gpus) or [len(gpus)], share.namespace, share.name)
        ):
            cells = [share.name, share.namespace, *(str(share.gpus.get(gpu, 0)) for gpu in gpus)]
            rows += "\t".join([*cells, *([str(share.pending)] if node.pending else []), *more(share)]) + "\t\n"
        rule = rule or len(rows) + 10
        percent = 100 * node.used // node.total if node.total else 0
        text += (
            f"\nNAME:\t{node.inventory.node}\nIPADDRESS:\t{node.first_address}\n\n" + "\t".join(head) + "\t\n" + rows
        )
        text += f"Allocated :\t{node.used} ({percent}%)\t\nTotal :\t{node.total} \t\n{'-' * rule}\n"
    return aligned(folded(f"{text}\n\nAllocated/Total GPU Memory In Cluster:\t{_cluster(found)}", width))


_TABLE = 3
"""Cells of a line from which it belongs to a table."""


def folded(text: str, width: int, padding: int = 2) -> str:
    """Lines with tabs, of which no table is wider than ``width`` (0: as wide as it is): the columns of one that is follow in
    several tables, each with the names of the rows. Names above a third of the width are shortened in the middle, rules cut."""
    if not width:
        return text
    lines: list[str] = []
    for cells, rows in groupby((line.split("\t") for line in text.split("\n")), key=len):
        if cells < _TABLE:
            lines += ["\t".join(row)[: width if set(row[0]) == {"-"} else None] for row in rows]
        else:
            table = [[_short(row[0], width // 3), *row[1:]] for row in rows]
            blocks = _blocks(table, width, padding)
            for block in blocks:
                lines += ["\t".join(row[at] for at in block) for row in table]
                lines += [""] * (
                    len(blocks) > 1
                )  # or the tables, and what follows, would share the widths of their columns
    return "\n".join(lines)


def _blocks(table: list[list[str]], width: int, padding: int) -> list[list[int]]:
    """Which columns stand in which of the tables, the first one in all of them."""
    own = [max(len(row[at]) for row in table) + padding for at in range(len(table[0]))]
    blocks: list[list[int]] = [[0]]
    for at in range(1, len(own)):
        if len(blocks[-1]) > 1 and sum(own[one] for one in (*blocks[-1], at)) - padding > width:
            blocks.append([0])
        blocks[-1].append(at)
    return blocks


def _short(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    behind = (width - 1) * 3 // 8
    return f"{text[: width - 1 - behind]}…{text[len(text) - behind :]}"


def aligned(text: str, padding: int = 2) -> str:
    """Go's ``text/tabwriter``: a tab ends a cell, and neighbouring lines that have a cell there share the column's width."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[0] * (len(cells) - 1) for cells in lines]
    for column in range(max(map(len, lines)) - 1):
        begin = 0
        while begin < len(lines):
            end = begin
            while end < len(lines) and len(lines[end]) - 1 > column:
                end += 1
            for at in range(begin, end):
                widths[at][column] = max(len(lines[row][column]) for row in range(begin, end)) + padding
            begin = max(end, begin + 1)
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(cells, [*wide, 0], strict=True))
        for cells, wide in zip(lines, widths, strict=True)
    )


def as_json(found: Inspection) -> dict[str, Any]:
    """For ``-o json``."""
    return {
        "unit": found.unit(),
        "nodes": [
            {
                "name": node.inventory.node,
                "address": node.address,
                "ready": node.inventory.ready,
                "note": node.inventory.reason,
                "isolation": node.level,
                "gpus": [
                    {"index": card.index, "uuid": card.uuid, "model": card.model, "healthy": card.ok, "total": card.units,
                     "allocated": node.on(card.index), "foreign": card.foreign}
                    for card in node.inventory.cards
                ],
                "pods": [
                    {"namespace": share.namespace, "name": share.name, "pending": share.pending, "isolation": share.level,
                     "gpus": {str(gpu): units for gpu, units in share.gpus.items()},
                     "usedMiB": None if share.used is None else {str(gpu): mib for gpu, mib in share.used.items()}}
                    for share in node.shares
                ],
            }
            for node in found.nodes
        ],
    }  # fmt: skip


def _cluster(found: Inspection) -> str:
    used, total = sum(node.used for node in found.nodes), sum(node.total for node in found.nodes)
    percent = 100 * used // total if total else 0
    return f"{used}/{total} ({percent}%)\t\n"


def _share(pod: Row) -> PodShare | None:
    """None for pods that are elsewhere, ended, or have nothing to do with GPUs."""
    if not requests_memory(validated(pod, Pod)) or not bound_to(pod):
        return None
    if phase(pod) in ENDED:
        return None
    held: GpuAssignment | None = read_gpu_assignment(pod)
    meta = pod["metadata"]
    if held is None:
        return PodShare(meta.get("namespace", ""), meta["name"], {}, read_pod_request(pod).total)
    return PodShare(
        held.namespace, held.name, dict(held.units), 0, held.uid, str(annotations_of(pod).get(names.LEVEL, ""))
    )


def _addresses(node: Row) -> tuple[str, str]:
    """(the first InternalIP, the first of all)."""
    addresses = [one for one in (node.get("status") or {}).get("addresses") or () if "address" in one]
    inner = next((one["address"] for one in addresses if one.get("type") == "InternalIP"), "unknown")
    return inner, addresses[0]["address"] if addresses else "unknown"
