"""The GPUs of a cluster and who holds them: one matrix of free units, a row per node. Pure: time is an argument.

Every change goes through ``hold``, ``reserve``, ``reserve_unbound`` and ``release``, which refuse nothing that the API server
already says (what is, is) but never *choose* a GPU that lacks room. So what this extender decides cannot over-commit, and
what others decided is still counted: free units may then be negative, and stay so until the pods are gone. What a pod that
is not bound says of itself is counted after all else, and only as far as there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from ..objects.gpu_inventory import GpuInventory
from ..objects.pod_request import GpuAssignment, PodRequest
from .units import occupied_units

Ints = NDArray[np.int64]
NEVER = -(2**62)
"""Free units where there is no usable GPU: less than anybody asks."""


@dataclass(slots=True)
class Reservation:
    """``holding`` not yet seen on a bound pod. ``until_s``: when to ask the API server what became of it."""

    assignment: GpuAssignment
    until_s: float
    decided: bool = True
    """By us; else only said by a pod that is not bound."""


@dataclass(slots=True)
class Pool:
    """``free[row, gpu]``: units that may still be given out; rows by ``row`` of a node's name."""

    row: dict[str, int] = field(default_factory=dict)
    inventories: dict[str, GpuInventory] = field(default_factory=dict)
    held: dict[str, GpuAssignment] = field(default_factory=dict)
    """By pod uid: what pods hold, seen or reserved."""
    reserved: dict[str, Reservation] = field(default_factory=dict)
    free: Ints = field(default_factory=lambda: np.full((64, 8), NEVER, dtype=np.int64))
    version: Ints = field(default_factory=lambda: np.zeros(64, dtype=np.int64))
    """Of each row; grows with each change, so scores can be kept for rows that did not change."""
    cpu: Ints = field(default_factory=lambda: np.zeros(64, dtype=np.int64))
    """Of each row: millicores that no pod requests. Only for choosing well; kube-scheduler sees to it that they suffice."""
    size: Ints = field(default_factory=lambda: np.ones(64, dtype=np.int64))
    """Of each row: units of its largest GPU."""
    _loads: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Node and millicores by pod uid."""
    _load: Counter[str] = field(default_factory=Counter)
    """Millicores by node."""
    _on: dict[str, set[str]] = field(default_factory=dict)
    _spare: list[int] = field(default_factory=list)
    _whole: dict[str, dict[int, int]] = field(default_factory=dict)
    """Units of the GPUs that go to one pod each, by node and index."""
    _unbound: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    """By node and pod uid, the oldest first: units that are kept, by GPU."""

    def set_node(self, inventory: GpuInventory) -> None:
        """A node appeared or changed; nothing happens when it is as before."""
        if self.inventories.get(inventory.node) == inventory:
            return
        self.inventories[inventory.node] = inventory
        self._whole[inventory.node] = {card.index: card.units for card in inventory.cards if card.whole}
        if inventory.node not in self.row:
            self.row[inventory.node] = self._spare.pop() if self._spare else len(self.row)
        self._grow(
            max(self.row[inventory.node] + 1, len(self.row)),
            1 + max((card.index for card in inventory.cards), default=0),
        )
        self._refill(inventory.node)

    def drop_node(self, node: str) -> None:
        """A node is gone. What its pods hold is remembered: the node may come back before they go."""
        if self.inventories.pop(node, None) is not None:
            del self._whole[node]
            row = self.row.pop(node)
            self._spare.append(row)
            self.free[row] = NEVER
            self.version[row] += 1

    def hold(self, assignment: GpuAssignment) -> None:
        """A pod holds this, says the API server; replaces what it held before, reservations included."""
        if self.held.get(assignment.uid) != assignment or assignment.uid in self.reserved:
            self._take(assignment)

    def reserve(self, assignment: GpuAssignment, until_s: float) -> None:
        """Ours, decided now. ``until_s`` on the caller's clock."""
        self._take(assignment)
        self.reserved[assignment.uid] = Reservation(assignment, until_s)

    def reserve_unbound(self, assignment: GpuAssignment, until_s: float) -> None:
        """A pod that is not bound says that it holds this. A leader before us may have written it and its binding may be on
        its way, so it is kept; but anybody may write it, so it never takes more than is free."""
        self.release(assignment.uid)
        self.held[assignment.uid] = assignment
        self._on.setdefault(assignment.node, set()).add(assignment.uid)
        self.reserved[assignment.uid] = Reservation(assignment, until_s, decided=False)
        self._unbound.setdefault(assignment.node, {})[assignment.uid] = {}
        self._refill(assignment.node)

    def load(self, uid: str, node: str, cpu: int) -> None:
        """A pod requests so many millicores of a node."""
        if self._loads.get(uid) != (node, cpu):
            self.unload(uid)
            if cpu:
                self._loads[uid] = (node, cpu)
                self._burden(node, cpu)

    def unload(self, uid: str) -> None:
        """It requests none (any more)."""
        if found := self._loads.pop(uid, None):
            self._burden(found[0], -found[1])

    def cpu_to(self, uid: str, rows: Ints) -> Ints:
        """Free millicores of each row, for a pod that is not in its own way."""
        node, cpu = self._loads.get(uid, ("", 0))
        found: Ints = self.cpu[rows] + np.where(rows == self.row.get(node, -2), cpu, 0)
        return found

    def _burden(self, node: str, cpu: int) -> None:
        self._load[node] += cpu
        if not self._load[node]:
            del self._load[node]
        if (row := self.row.get(node)) is not None:
            self.cpu[row] -= cpu
            self.version[row] += 1

    def postpone(self, uid: str, until_s: float) -> None:
        """A reservation is asked about again later."""
        if found := self.reserved.get(uid):
            found.until_s = until_s

    def release(self, uid: str) -> None:
        """The pod holds nothing (any more)."""
        if self.reserved.pop(uid, None):
            self.unload(uid)
        if found := self.held.pop(uid, None):
            self._on[found.node].discard(uid)
            self._unbound.get(found.node, {}).pop(uid, None)
            self._add(found, +1)

    def overdue(self, now_s: float) -> tuple[GpuAssignment, ...]:
        """Reservations whose pods have said nothing for too long."""
        return tuple(found.assignment for found in self.reserved.values() if found.until_s <= now_s)

    def rows(self, nodes: Iterable[str]) -> Ints:
        """Row of each node, -1 for one without GPUs to share."""
        return np.fromiter(map(self.row.get, nodes, repeat(-1)), dtype=np.int64)

    def fits(self, ask: PodRequest, rows: Ints) -> NDArray[np.bool_]:
        """Where ``count`` GPUs have ``units`` free each, for this pod."""
        enough: NDArray[np.bool_] = (self.free_to(ask.uid, rows) >= ask.units).sum(axis=1) >= ask.count
        return enough & (rows >= 0)

    def firm(self, uid: str) -> bool:
        """Whether what a pod holds was decided, not only said by itself."""
        found = self.reserved.get(uid)
        return found is None or found.decided

    def own_row(self, uid: str) -> int:
        """Of the node where a pod holds something; -2 where it does not."""
        held = self.held.get(uid)
        return self.row.get(held.node, -2) if held is not None and uid else -2

    def free_to(self, uid: str, rows: Ints) -> Ints:
        """Free units of each row and GPU, as a copy, for a pod that is not in its own way: with what it holds itself."""
        found: Ints = self.free[rows]
        if (own := self.own_row(uid)) >= 0:
            here = rows == own
            for gpu, units in self._own(uid).items():
                if 0 <= gpu < found.shape[1] and self.free[own, gpu] > NEVER // 2:
                    found[here, gpu] += units
        return found

    def _own(self, uid: str) -> Mapping[int, int]:
        """Units by GPU that would be free without a pod that holds some."""
        held = self.held[uid]
        promised = self._unbound.get(held.node, {}).get(uid)
        return self.weighed(held).units if promised is None else promised

    def on(self, node: str) -> tuple[GpuAssignment, ...]:
        """Holdings on a node, by pod name."""
        found = (self.held[uid] for uid in self._on.get(node, ()))
        return tuple(sorted(found, key=lambda assignment: (assignment.namespace, assignment.name, assignment.uid)))

    def free_of(self, node: str, uid: str = "") -> dict[int, int]:
        """Free units by GPU index, for the pod ``uid`` if given; GPUs that must not be used are left out."""
        if node not in self.row:
            return {}
        found = self.free_to(uid, np.array([self.row[node]], dtype=np.int64))[0]
        return {
            card.index: int(found[card.index])
            for card in self.inventories[node].cards
            if found[card.index] > NEVER // 2
        }

    def used(self, node: str) -> dict[int, int]:
        """Units held by pods, by GPU index, also of GPUs that the node does not have (any more)."""
        found: dict[int, int] = {}
        for uid in self._on.get(node, ()):
            for gpu, units in self.held[uid].units.items():
                found[gpu] = found.get(gpu, 0) + units
        return found

    def weight(self, node: str, gpu: int, units: int) -> int:
        """What is not free any more when a pod holds ``units`` of a GPU."""
        return occupied_units(units, self._whole.get(node, {}).get(gpu, 0))

    def weighed(self, assignment: GpuAssignment) -> GpuAssignment:
        """With what would be free without it."""
        units = {gpu: self.weight(assignment.node, gpu, count) for gpu, count in assignment.units.items()}
        return replace(assignment, units=units)

    def _taken(self, node: str) -> Counter[int]:
        """Without reservations of unbound pods."""
        found: Counter[int] = Counter()
        for uid in sorted(self._on.get(node, set()) - self._unbound.get(node, {}).keys()):
            found.update(self.weighed(self.held[uid]).units)
        return found

    def overcommitted(self) -> dict[str, dict[int, int]]:
        """Nodes on which pods hold more of a GPU than it has, and by how much. Empty, unless others gave it away."""
        found = {}
        for node, inventory in self.inventories.items():
            taken = self._taken(node)
            over = {
                card.index: taken[card.index] - card.units for card in inventory.cards if taken[card.index] > card.units
            }
            if over:
                found[node] = over
        return found

    def _take(self, assignment: GpuAssignment) -> None:
        self.release(assignment.uid)
        self.held[assignment.uid] = assignment
        self._on.setdefault(assignment.node, set()).add(assignment.uid)
        self._add(assignment, -1)

    def _add(self, assignment: GpuAssignment, sign: int) -> None:
        row = self.row.get(assignment.node)
        if row is None:
            return
        if assignment.node in self._unbound:
            self._refill(assignment.node)
            return
        for gpu, units in assignment.units.items():
            if 0 <= gpu < self.free.shape[1] and self.free[row, gpu] > NEVER // 2:
                self.free[row, gpu] += sign * self.weight(assignment.node, gpu, units)
        self.version[row] += 1

    def _refill(self, node: str) -> None:
        """Work a node's row out anew."""
        if node not in self.row:
            return
        row, inventory = self.row[node], self.inventories[node]
        self.free[row] = NEVER
        self.cpu[row] = inventory.cpu - self._load[node]
        self.size[row] = max((card.units for card in inventory.cards), default=1)
        taken = self._taken(node)
        for card in inventory.cards if inventory.ready else ():
            if card.ok:
                self.free[row, card.index] = card.units - card.foreign - taken[card.index]
        for uid, kept in self._unbound.get(node, {}).items():
            kept.clear()
            kept.update(self._room(self.held[uid]))
            for gpu, units in kept.items():
                self.free[row, gpu] -= units
        if not self._unbound.get(node):
            self._unbound.pop(node, None)
        self.version[row] += 1

    def _room(self, assignment: GpuAssignment) -> dict[int, int]:
        """What of it is free, by GPU."""
        free = self.free_of(assignment.node)
        return {
            gpu: min(self.weight(assignment.node, gpu, units), max(free[gpu], 0))
            for gpu, units in assignment.units.items()
            if gpu in free
        }

    def _grow(self, rows: int, gpus: int) -> None:
        """Room for so many rows and GPUs, at least doubling."""
        old_rows, old_gpus = self.free.shape
        if rows <= old_rows and gpus <= old_gpus:
            return
        shape = (max(old_rows, rows, 2 * old_rows if rows > old_rows else 0), max(old_gpus, gpus))
        free, version = np.full(shape, NEVER, dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
        free[:old_rows, :old_gpus], version[:old_rows] = self.free, self.version
        self.free, self.version = free, version
        self.cpu, self.size = np.resize(self.cpu, shape[0]), np.resize(self.size, shape[0])
