"""Views made by hand and at random: a job table and a board filled directly, without an engine."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from ..base.units import HOUR, MINUTE, SECOND
from ..model.board import Board, Layout
from ..model.job import JobSpec, Level, State
from ..model.node import Allocation, NodeSpec, device_count, lone_node, milli_devices
from ..model.rate import FULL_RATE
from ..model.table import JobTable
from ..model.view import View
from ..placement.find import place
from ..plan.request import request_of

GIB = 2**30
PLACEMENTS = ("consolidate", "one-node", "any")
NOW = 100 * HOUR


def pool(
    nodes: int, devices: int = 8, kind: str = "gpu", rack: int = 16, memory: int = 80 * GIB
) -> tuple[NodeSpec, ...]:
    """Equal nodes in racks of ``rack``."""
    return tuple(
        NodeSpec(
            name=f"{kind}-{i}", kind=kind, devices=devices, device_memory=memory, domain=(f"{kind}-rack{i // rack}",)
        )
        for i in range(nodes)
    )


class ViewBuilder:
    """A book in miniature. Times are absolute microseconds; ``now`` is 100 hours unless said otherwise."""

    def __init__(self, nodes: tuple[NodeSpec, ...], now: int = NOW) -> None:
        self.now = now
        self.board = Board(Layout.of(nodes))
        self.table = JobTable()
        self.specs: dict[int, JobSpec] = {}
        self.allocations: dict[int, Allocation] = {}
        self.reservations: dict[int, Allocation] = {}
        self.image_nodes: dict[int, tuple[int, ...]] = {}
        self.tolerances: dict[str, dict[int, int]] = {}

    def queue(self, spec: JobSpec, **columns: Any) -> int:
        """Add a waiting job; returns its id."""
        return self._add(spec, {"state": int(State.QUEUED), **columns})

    def run(self, spec: JobSpec, count: int = 0, allocation: Allocation | None = None, **columns: Any) -> int:
        """Add a running job if there is room for it (with ``count`` devices); returns its id, or -1."""
        found = allocation or place(self.board, request_of(self.board.layout, spec, count))
        if found is None:
            return -1
        self.board.acquire(found)
        devices = device_count(found)
        values = {"state": int(State.RUNNING), "run_since": self.now - HOUR, "first_start": self.now - HOUR}
        values |= {"held": devices, "held_milli": milli_devices(found), "rate": devices * FULL_RATE // spec.devices}
        job = self._add(spec, values | columns | self._yielding(found, columns))
        self.allocations[job] = found
        self.table.lone_node[self.table.row[job]] = lone_node(found)
        return job

    def _yielding(self, found: Allocation, columns: dict[str, Any]) -> dict[str, Any]:
        """Level and origin as the engine sets them: what the devices do not allow is not there."""
        level, layout = columns.get("level", int(Level.FULL)), self.board.layout
        kinds = [layout.node_kind[part.node] for part in found if layout.nodes[part.node].full]
        if level == Level.FREEZE and len(found) > 1:
            return {"level": int(Level.NONE)}
        return {"restore_kind": kinds[0]} if level == Level.FULL and len(kinds) == len(found) else {}

    def _add(self, spec: JobSpec, columns: dict[str, Any]) -> int:
        job = len(self.specs) + 1
        self.specs[job] = spec
        submit = columns.get("submit", self.now - HOUR)
        values = {
            "tier": int(spec.tier_rank), "level": int(Level.FULL), "placement": PLACEMENTS.index(spec.placement),
            "submit": submit, "since": submit, "wait_since": submit, "first_start": -1, "run_since": -1,
            "demand": spec.devices, "floor": spec.floor, "ranks": spec.ranks, "memory": spec.gpu_memory,
            "gpu_milli": spec.compute_milli, "cpus_milli": spec.cpus_milli, "host_memory": spec.memory,
            "kinds": self.board.layout.kind_mask(spec.device_types), "expected": spec.expected_us,
            "limit": spec.max_duration_us, "weight": spec.weight, "pinned_node": -1, "restore_kind": -1, "reference": -1,
            "accrued": self.now, "save_us": SECOND, "restore_us": SECOND // 2,
        }  # fmt: skip
        self.table.add(job, values | columns)
        return job

    def view(self) -> View:
        """The book as it is now. The builder must not be used on while the view is."""
        self.board.forget_marks()
        return View(
            self.now,
            1,
            self.table,
            self.board,
            self.specs,
            self.allocations,
            self.reservations,
            self.image_nodes,
            tolerances=self.tolerances,
        )


def random_view(
    seed: int, nodes: int = 12, running: int = 60, waiting: int = 60, *, mixed: bool = True, elastic: bool = True
) -> View:
    """A busy pool: jobs of all sizes, tiers, levels and ages; with ``mixed`` two device kinds, shares and a dead node."""
    dice = random.Random(seed)
    kinds = (*pool(nodes - nodes // 3, kind="big"), *pool(nodes // 3, 4, "small")) if mixed else pool(nodes)
    if mixed and dice.random() < 0.5:
        kinds = tuple(structs.replace(node, full=dice.random() < 0.7) for node in kinds)
    asks = random.Random(seed + 1) if mixed and seed % 3 == 0 else None
    if asks is not None:
        kinds = tuple(structs.replace(node, cpus=32, memory=256 * GIB) for node in kinds)
    builder = ViewBuilder(kinds, NOW)
    for _ in range(running):
        ran = dice.choice((1, 30, 600, 7200, 80_000)) * SECOND
        level = dice.choice(
            (Level.NONE, Level.REQUEUE, Level.COOPERATIVE, Level.FREEZE, Level.FULL, Level.FULL, Level.FULL)
        )
        spec = asking(asks, random_spec(dice, mixed=mixed, elastic=elastic))
        count = dice.randint(spec.floor, spec.devices)
        builder.run(
            spec, count, level=int(level), state=int(dice.choice((State.RUNNING,) * 8 + (State.STARTING,))),
            run_since=NOW - ran, since=NOW - ran, submit=NOW - ran - HOUR, wait_since=NOW - ran - dice.choice((0, 1, 5)) * HOUR,
            ideal=ran // 2, attained=ran * spec.devices * 500, first_start=NOW - ran,
        )  # fmt: skip
    for _ in range(waiting):
        waited = dice.choice((0, 5, 300, 4000, 30_000)) * SECOND
        spec = asking(asks, random_spec(dice, mixed=mixed, elastic=elastic))
        frozen = not spec.device_types and spec.devices <= 4 and dice.random() < 0.1
        state = (
            {"state": int(State.SUSPENDED), "level": int(Level.FREEZE), "pinned_node": dice.randrange(nodes)}
            if frozen
            else {}
        )
        imaged = [builder.board.layout.node_kind[at] for at, node in enumerate(kinds) if node.full]
        if imaged and not frozen and not spec.device_types and dice.random() < 0.3:
            state = {"state": int(State.SUSPENDED), "level": int(Level.FULL), "restore_kind": dice.choice(imaged)}
        job = builder.queue(spec, submit=NOW - waited, since=NOW - waited, wait_since=NOW - waited, **state)
        if "restore_kind" in state:
            builder.image_nodes[job] = tuple(dice.choices(range(nodes), k=dice.choice((1, 1, 2, 3))))
    if mixed and dice.random() < 0.3:
        builder.board.set_up(dice.randrange(nodes), False)
    return builder.view()


def asking(dice: random.Random | None, spec: JobSpec) -> JobSpec:
    """The same job, which now and then asks for CPUs and memory of its hosts, or for compute of a device; None: it never does."""
    if dice is None or dice.random() < 0.5:
        return spec
    milli = dice.choice((0, 100, 500)) if spec.devices == 1 else 0
    fraction = dice.choice((0, 0, 250, 1000)) if spec.devices == 1 and not (milli or spec.gpu_memory) else 0
    effort: Any = "be" if spec.tier == "basic" and (fraction or spec.gpu_memory) and dice.random() < 0.3 else "rt"
    cpus_milli, memory = dice.choice((0, 500, 2000, 6000)), dice.choice((0, 4, 32)) * GIB
    return structs.replace(
        spec, gpu_milli=milli, gpu_share=fraction, share_class=effort, cpus_milli=cpus_milli, memory=memory
    )


def random_spec(dice: random.Random, *, mixed: bool = True, elastic: bool = True) -> JobSpec:
    """One job of Philly-like sizes (Jeon et al., ATC'19: most jobs ask for one device)."""
    devices = dice.choice((1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 24))
    memory = dice.choice((10, 20, 40)) * GIB if mixed and devices == 1 and dice.random() < 0.3 else 0
    floor = dice.randint(1, devices) if elastic and devices > 1 and dice.random() < 0.3 else 0
    placement = dice.choice(PLACEMENTS if devices <= 4 else ("consolidate", "consolidate", "any"))
    return JobSpec(
        command=("train",), ranks=devices, devices=devices, min_devices=floor, gpu_memory=memory,
        device_types=dice.choice(((), (), (), ("big",), ("small", "big"))) if mixed else (),
        tier=dice.choice(("premium", "standard", "basic", "basic")), placement=placement,  # type: ignore[arg-type]
        expected_us=dice.choice((0, 1, 10, 100, 1000)) * MINUTE, max_duration_us=dice.choice((0, 0, 24)) * HOUR,
    )  # fmt: skip


def views(*, mixed: bool = True, elastic: bool = True) -> st.SearchStrategy[View]:
    """Random views for property tests; they shrink towards small pools."""
    return st.builds(
        lambda seed, nodes, running, waiting: random_view(seed, nodes, running, waiting, mixed=mixed, elastic=elastic),
        st.integers(0, 2**32), st.integers(3, 14), st.integers(0, 60), st.integers(0, 40),
    )  # fmt: skip
